"""The list of the kernels that `make prepared` compiles for the tests."""

from holdfast.kernels.cache import compiled
from kernel_list import compile_kernel, listed, types_of


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
