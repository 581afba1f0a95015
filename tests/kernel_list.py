"""The kernels that tests compile, by name and types: compiled once, side by side, before the tests run.

    python tests/kernel_list.py          compiles what the list names, in two processes
    pytest -p kernel_list …              notes in `build/kernel_list.txt` what its tests compile

A kernel takes the compiler half a second of processor time, and tests need some 250. The list lies in
`kernel_list.txt`, a kernel a line. Where it lacks a kernel the first test that needs it compiles it; a kernel that is
gone, or has other arguments now, is passed over. `make kernels` writes the list anew once all tests have passed.
"""

import importlib
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".txt")
NOTED = Path(__file__).parents[1] / "build" / FILE.name
PROCESSES = 2


def listed() -> list[str]:
    return FILE.read_text().splitlines() if FILE.exists() else []


def main() -> None:
    """Each process takes every second kernel. One that another process is compiling is waited for."""
    lines = listed()
    with get_context("spawn").Pool(PROCESSES) as pool:
        for line in filter(None, pool.imap_unordered(compile_kernel, lines)):
            print(line, file=sys.stderr)


def compile_kernel(line: str) -> str:
    """Compile a kernel, or find it compiled. Return what is wrong with its line."""
    from numba.core.errors import NumbaError

    name, _, types = line.removesuffix(")").partition("(")
    module, _, function = name.rpartition(".")
    try:
        getattr(importlib.import_module(module), function).compile(tuple(types_of(types)))
    except (ImportError, AttributeError, NumbaError, TypeError) as error:
        return f"{line} is not compiled: {type(error).__name__}: {error}"
    return ""


def types_of(text: str) -> Iterator[Any]:
    """Numba's types of the texts in which it writes them: `int64, readonly array(uint8, 1d, C), Tuple(…)`."""
    from numba.core import types

    for each in divided(text):
        kind, _, inside = each.removesuffix(")").removeprefix("readonly ").partition("(")
        if kind == "array":
            element, dimensions, layout = divided(inside)
            mutable = not each.startswith("readonly ")
            yield types.Array(next(types_of(element)), int(dimensions[0]), layout, readonly=not mutable)
        elif kind == "UniTuple":
            element, _, count = inside.rpartition(" x ")
            yield types.UniTuple(next(types_of(element)), int(count))
        else:
            yield types.Tuple(tuple(types_of(inside))) if inside else getattr(types, kind)


def divided(text: str) -> list[str]:
    """Divide at the commas outside of parentheses."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [each.strip() for each in parts if each.strip()]


def pytest_configure() -> None:
    """Note each kernel that is compiled in this process."""
    from holdfast.kernels.cache import KernelCache

    NOTED.parent.mkdir(exist_ok=True)
    before = KernelCache.save_overload

    def save_overload(cache: KernelCache, sig: Any, data: Any) -> None:
        before(cache, sig, data)
        module, name = cache._function.__module__, cache._function.__qualname__
        named = getattr(sys.modules.get(module), name, None)
        if hasattr(named, "compile") and "Literal" not in str(cache._types(sig)):  # others are parts of kernels
            with NOTED.open("a") as file:
                file.write(f"{module}.{name}({cache._types(sig)})\n")

    KernelCache.save_overload = save_overload


if __name__ == "__main__":
    main()
