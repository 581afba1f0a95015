"""A kernel's content is its code and all that it calls, and nothing else."""

import textwrap
from types import FunctionType
from typing import Any

import pytest

from holdfast.kernels.identity import UnknownContent, content_of
from holdfast.state import compiled, hashing, index_kernels

SOURCE = """
    STEP = 3

    def called(x):
        return x + STEP

    def kernel(x):
        return called(x) * 2
"""


def content(source: str, **names: Any) -> str:
    held: dict[str, Any] = {"__name__": "holdfast.made_up", **names}
    exec(textwrap.dedent(source), held)
    kernel = held["kernel"]
    assert isinstance(kernel, FunctionType)
    return content_of(kernel)


@pytest.mark.parametrize(
    ("old", "new"),
    [("x + STEP", "x - STEP"), ("STEP = 3", "STEP = 4"), ("* 2", "* 3"), ("STEP = 3", "STEP = 3.0")],
)
def test_another_code_a_called_function_or_a_constant_of_it_makes_another_content(old: str, new: str) -> None:
    assert content(SOURCE.replace(old, new)) != content(SOURCE)


def test_comments_and_moved_lines_leave_the_content_as_it_is() -> None:
    assert content("\n\n# said\n" + textwrap.dedent(SOURCE).replace("    return", "    # said, too\n    return")) == (
        content(SOURCE)
    )


def test_functions_that_call_each_other_have_a_content() -> None:
    assert content("def other(x):\n    return kernel(x)\n\ndef kernel(x):\n    return other(x)\n")


def test_an_object_that_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(UnknownContent):
        content("def kernel(x):\n    return odd\n", odd=object())


def test_kernels_and_intrinsics_have_contents_of_their_own() -> None:
    kernels = [
        each.made().py_func
        for module in (compiled, hashing, index_kernels)
        for each in vars(module).values()
        if isinstance(each, compiled.CalledLater) and each.__module__ == module.__name__ and hasattr(each, "py_func")
    ]
    assert len({content_of(each) for each in kernels}) == len(kernels) > 20
    assert content_of(compiled.load_u8._defn) != content_of(compiled.load_u64._defn)
