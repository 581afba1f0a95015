"""The list of the kernels that `make prepared` compiles for the tests."""

import importlib
import re
from pathlib import Path
from types import FunctionType

import holdfast
from holdfast.kernels.cache import compiled
from kernel_list import compile_kernel, listed, types_of

KERNEL = re.compile(r"^@kernel\ndef (\w+)\(", re.MULTILINE)


def kernels() -> dict[str, FunctionType]:
    """The functions of all kernels, by the names that the list has for them."""
    root, found = Path(holdfast.__file__).parent, {}
    for file in root.rglob("*.py"):
        if names := KERNEL.findall(file.read_text()):
            module = importlib.import_module(".".join(file.relative_to(root.parent).with_suffix("").parts))
            found |= {f"{module.__name__}.{name}": getattr(module, name).__wrapped__ for name in names}
    return found


def called_by(kernel: FunctionType) -> set[str]:
    functions = [kernel.__globals__.get(name) for name in kernel.__code__.co_names]
    return {f"{each.__module__}.{each.__name__}" for each in functions if hasattr(each, "__wrapped__")}


def test_each_kernel_is_listed_with_as_many_types_as_it_has_parameters() -> None:
    """A kernel that a listed one calls is compiled with that one. `make kernels` writes the list."""
    there, parts, named = kernels(), set(), set()
    for line in listed():
        name, _, types = line.removesuffix(")").partition("(")
        assert name in there, f"{line}: there is no such kernel"
        assert there[name].__code__.co_argcount == len(list(types_of(types))), line
        named.add(name)
        parts |= called_by(there[name])
    assert there.keys() - named - parts == set()


def test_the_types_of_a_listed_kernel_are_those_that_numba_writes() -> None:
    for line in listed():
        types = line.partition("(")[2].removesuffix(")")
        assert ", ".join(map(str, types_of(types))) == types


def test_a_listed_kernel_is_there_before_it_is_called_and_a_line_of_another_time_is_passed_over() -> None:
    assert compile_kernel("holdfast.state.hashing.mix(uint64)") == ""
    before = compiled().kernels
    assert compile_kernel("holdfast.state.hashing.mix(uint64)") == ""
    assert compiled().kernels == before
    assert "AttributeError" in compile_kernel("holdfast.state.hashing.no_such_kernel(int64)")
