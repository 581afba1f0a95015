"""The processors for which kernels are compiled, and the processors whose kernels this machine can run.

A kernel is compiled for this machine's own processor, or for a level that many processors support (`x86-64-v3`), for an
image or archive. A machine searches for kernels of its own processor first, then for kernels of its levels.
"""

import hashlib
import re
import sys
from functools import cache
from importlib.metadata import version
from typing import NamedTuple

from llvmlite import binding  # type: ignore[import-untyped]
from numba.core import config
from numba.core.codegen import get_host_cpu_features

_V2 = ("cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS: dict[str, tuple[str, ...]] = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2, "x86-64": ()}
"""The levels of x86-64 that LLVM knows as processors, highest first, and the features that each requires."""


class Processor(NamedTuple):
    """A processor, and all other properties on which compiled code depends."""

    folder: str
    """The name of the folder with the processor's kernels."""
    content: str
    """The facts that are part of the address of each kernel."""


@cache
def own_processor() -> Processor:
    """Return the processor for which Numba compiles in this process."""
    return _processor(config.CPU_NAME or binding.get_host_cpu_name(), _host_features())


@cache
def usable_processors() -> tuple[Processor, ...]:
    """Return the processors whose kernels this machine can run, the best first."""
    if config.CPU_NAME is not None:
        return (own_processor(),)
    there = {each[1:] for each in _host_features().split(",") if each.startswith("+")}
    fitting = [level for level, needed in LEVELS.items() if _is_x86() and there.issuperset(needed)]
    return (own_processor(), *(_processor(level, "") for level in fitting))


def _is_x86() -> bool:
    return str(binding.get_process_triple()).startswith(("x86_64", "amd64"))


def _host_features() -> str:
    if config.CPU_FEATURES is not None:
        return str(config.CPU_FEATURES)
    return str(get_host_cpu_features())


def _processor(processor: str, features: str) -> Processor:
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    content = "\0".join(
        [python, version("numba"), version("llvmlite"), binding.get_process_triple(), processor, features]
    )
    named = re.sub(r"[^a-z0-9-]", "", processor.lower()) or "processor"
    suffix = f"-{hashlib.sha256(features.encode()).hexdigest()[:8]}" if features else ""
    return Processor(f"{python}-numba-{version('numba')}-{named}{suffix}", content)
