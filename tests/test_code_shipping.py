"""Functions keep the names of their files on their way, and errors name the user's line, whoever raised them."""

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from holdfast import code_shipping, errors
from holdfast.code_shipping import HIDDEN, pickled
from holdfast.errors import in_user_code


def made_by_value(source: str, file: str = "/users/own/job.py") -> Any:
    """A function that no module has, as those of a program are."""
    names: dict[str, Any] = {"__name__": "__main__", "pa": pa}
    exec(compile(source, file, "exec"), names)
    return names["made"]


OUTER = "def made():\n    def inner():\n        raise ValueError('inner')\n    return inner\n"


@pytest.fixture(params=["own", "hidden"])
def reducer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed cloudpickle, and one that hides the files of code, as versions from 3.1.3 on do."""
    if request.param == "own":
        return
    reduced = cloudpickle.Pickler.dispatch_table[CodeType]

    def hiding(code: CodeType) -> Any:
        make, arguments = reduced(code)
        return make, tuple(HIDDEN if argument == code.co_filename else argument for argument in arguments)

    hidden = {**cloudpickle.Pickler.dispatch_table, CodeType: hiding}
    monkeypatch.setattr(cloudpickle.Pickler, "dispatch_table", hidden)


@pytest.mark.usefixtures("reducer")
def test_code_keeps_its_file_at_every_depth() -> None:
    made = cloudpickle.loads(pickled(made_by_value(OUTER)))
    assert made.__code__.co_filename == "/users/own/job.py"
    assert made().__code__.co_filename == "/users/own/job.py"
    with pytest.raises(ValueError, match="inner") as caught:
        made()()
    assert in_user_code(caught.value) == "ValueError: inner (job.py, line 3)"


@pytest.mark.usefixtures("reducer")
def test_classes_and_what_they_close_over_go_along() -> None:
    source = "def made():\n    n = 3\n    class Kept:\n        def get(self):\n            return n\n    return Kept\n"
    kept = cloudpickle.loads(pickled(made_by_value(source)()))
    assert kept().get() == 3
    assert inspect.getfile(kept.get) == "/users/own/job.py"


CALLS = {
    "pyarrow": "def made():\n    pa.array(['x']).cast('int64')\n",
    "pyarrow in a helper": "def helper():\n    pa.array(['x']).cast('int64')\ndef made():\n    helper()\n",
    "standard library": "import json\ndef made():\n    json.loads('{')\n",
}


@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_a_library_names_the_line_of_the_user_that_called_it(call: str) -> None:
    lines = {"pyarrow": 2, "pyarrow in a helper": 2, "standard library": 3}
    with pytest.raises(ValueError, match=r".") as caught:
        made_by_value(CALLS[call])()
    assert in_user_code(caught.value).endswith(f" (job.py, line {lines[call]})")


def test_a_function_that_is_installed_like_a_library_is_named_by_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_LIBRARIES", (*errors._LIBRARIES, "/users/own", __file__.rpartition("/")[0]))
    function: Callable[[], None] = made_by_value(CALLS["standard library"])

    def call() -> str:
        try:
            function()
        except ValueError as error:
            assert error.__traceback__ is not None
            return in_user_code(error.with_traceback(error.__traceback__.tb_next))
        raise AssertionError("it raises")

    assert call().endswith(" (job.py, line 3)")


def test_the_lowest_version_of_cloudpickle_has_what_the_pickler_needs() -> None:
    assert issubclass(code_shipping._Pickler, cloudpickle.Pickler)
    assert CodeType in cloudpickle.Pickler.dispatch_table
