"""A kernel is compiled once: whoever has the same code, types, versions and processor finds it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from holdfast.kernels import cache, processors
from holdfast.kernels.cache import KernelCache, NotCompiled, compiled, nothing_compiled
from holdfast.kernels.shelf import Shelf


def kernel(shelf: Shelf, **globals_: Any) -> Any:
    """A small kernel, as another process would make it anew."""
    held: dict[str, Any] = {"__name__": "holdfast.made_up", "STEP": 3} | globals_
    exec("def add(x):\n    return x + STEP\n", held)
    made = njit(nogil=True)(held["add"])
    made._cache = KernelCache(made.py_func, shelf)
    return made


def test_a_kernel_is_compiled_once_for_each_content_and_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(lambda: iter([tmp_path]))

    def news(made: Any, argument: Any) -> int:
        before = compiled().kernels
        made(argument)
        return compiled().kernels - before

    assert [news(kernel(shelf), 1), news(kernel(shelf), 1), news(kernel(shelf, STEP=4), 1)] == [1, 0, 1]
    assert kernel(shelf)(1) == 4 and kernel(shelf, STEP=4)(1) == 5
    assert compiled().seconds > 0
    files = sorted(tmp_path.glob("*/*"))
    assert [len(each.name) for each in files] == [64, 64]  # no lock, and nothing that was written aside, is left
    for each in files:
        each.write_bytes(each.read_bytes()[:-1])
    assert news(kernel(shelf), 1) == 1
    own = processors.own_processor()
    level = own._replace(folder=f"{own.folder}-level", content="a level of processors")
    monkeypatch.setattr(cache, "own_processor", lambda: level)
    monkeypatch.setattr(cache, "usable_processors", lambda: (level,))
    assert news(kernel(shelf), 1) == 1
    monkeypatch.setattr(
        cache, "usable_processors", lambda: (own._replace(content="a processor without kernels"), level)
    )
    assert news(kernel(shelf), 1) == 0


NOWHERE = """
from pathlib import Path
from holdfast.kernels.shelf import SHELF
SHELF.only(Path("/proc/none"))
from holdfast.state.hashing import mix
print(mix(1))
"""


def test_where_nothing_is_to_be_compiled_only_kernels_that_are_there_are_loaded(tmp_path: Path) -> None:
    shelf = Shelf(lambda: iter([tmp_path]))
    with nothing_compiled(), pytest.raises(NotCompiled, match="add"):
        kernel(shelf)(1)
    assert kernel(shelf)(1) == 4
    with nothing_compiled():
        assert kernel(shelf)(1) == 4


def test_levels_of_processors_are_those_whose_features_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_is_x86", lambda: True)
    monkeypatch.setattr(
        processors, "_host_features", lambda: "+" + ",+".join(processors.LEVELS["x86-64-v3"]) + ",-avx512f"
    )
    processors.usable_processors.cache_clear()
    try:
        folders = [each.folder for each in processors.usable_processors()[1:]]
    finally:
        processors.usable_processors.cache_clear()
    assert [each.rpartition("-x86-")[2] for each in folders] == ["64-v3", "64-v2", "64"]


def test_a_process_that_can_write_nowhere_compiles_in_memory() -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    run = subprocess.run([sys.executable, "-c", NOWHERE], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip().isdigit(), run.stderr
