"""Calls of a user's function: its rows as named tuples, the current key, and the wording of a failure."""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from holdfast.errors import in_user_code


class Cursor:
    """The key that a function is called for, as its slot; shared by all its states."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = -1


def named_tuples(name: str, fields: Sequence[str]) -> Callable[[Iterable[Any]], Any]:
    """A maker of named tuples; a field name that Python does not allow becomes `_<position>`."""
    made: Any = namedtuple(name, fields, rename=True)  # type: ignore[misc]
    return cast(Callable[[Iterable[Any]], Any], partial(tuple.__new__, made))


def raised(
    operator: str, key: Mapping[str, Any] | None, where: str, error: BaseException, method: str = "process"
) -> str:
    """Describe the failure of a call on a single line."""
    of_key = "" if key is None else f", key {dict(key)!r}"
    return f"operator {operator!r}{of_key}, {where}: {method}() raised {in_user_code(error)}"
