"""The states of a function, as a user declares them: class attributes of a `ProcessFunction` or `BatchFunction`.

    class Delays(hf.ProcessFunction):
        n = hf.ValueState(pa.int64(), default=0)          # a name, a type, a default
        worst = hf.ReducingState(max, pa.float64())

Each state is one column of the operator's table, under its attribute's name. Fixed-width Arrow types lie in NumPy
columns, other Arrow types in object columns, and `type=None` (any msgpack-able object) as msgpack bytes; never pickle.

Promises: what is read is a copy and what is put is copied, so that changing an object in place never changes state.
A value that does not fit its type is refused when it is put, naming operator, state, value and type. A null value is
the same as none. The methods here only say that no operator runs; what runs is in `cells.py` and `batch_operator.py`.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa

from holdfast.errors import HoldfastError, SettingsError
from holdfast.functions.values import Codec, Misfit


class State:
    """A declared state."""

    def __init__(self, type: pa.DataType | None) -> None:
        if type is not None and not isinstance(type, pa.DataType):
            raise SettingsError(f"{self.kind} type is {type!r}; expected an Arrow type such as pa.int64(), or None")
        self.type = type

    @property
    def kind(self) -> str:
        return self.__class__.__name__

    def codec(self) -> Codec:
        return Codec(self.type)

    def _not_running(self) -> NoReturn:
        raise HoldfastError(
            f"a {self.kind} was used outside of process(); states belong to a key and can be read and changed only "
            "while the operator processes its rows"
        )

    def _check_callable(self, field: str, value: Any) -> None:
        if not callable(value):
            raise SettingsError(f"{self.kind} {field} is {value!r}; expected a function")

    def _check_value(self, field: str, value: Any) -> None:
        try:
            self.codec().put(value)
        except Misfit as misfit:
            raise SettingsError(f"{self.kind} {field}: {misfit}") from misfit


class ValueState(State):
    """One value a key.

    Parameters
    ----------
    type : pyarrow.DataType or None
        None: any msgpack-able object (None, bool, int, float, str, bytes, lists and dicts of these).
    default
        What a key without a value reads.
    """

    def __init__(self, type: pa.DataType | None = None, default: Any = None) -> None:
        super().__init__(type)
        self._check_value("default", default)
        self.default = default

    def value(self) -> Any:
        """The key's value, or the default. `ProcessFunction` only."""
        self._not_running()

    def update(self, value: Any) -> None:
        """Put a value; None clears. In a `BatchFunction` an array, one entry per distinct key, nulls kept."""
        self._not_running()

    def clear(self) -> None:
        """Forget the value: the key (in a `BatchFunction`, each key of the call) reads the default again."""
        self._not_running()

    def values(self) -> Any:
        """A copy of all values, one entry per distinct key. `BatchFunction` only.

        A `pyarrow.Array` of the state's type, with the default (or null) where a key has no value; a list of objects
        where the type is None.
        """
        self._not_running()


class ReducingState(State):
    """One value a key: all that were added, reduced by `fn(kept, added)`. `ProcessFunction` only."""

    def __init__(self, fn: Callable[[Any, Any], Any], type: pa.DataType | None = None) -> None:
        super().__init__(type)
        self._check_callable("fn", fn)
        self.fn = fn

    def add(self, value: Any) -> None:
        """Reduce the key's value and this one; the first value is kept as it is."""
        self._not_running()

    def get(self) -> Any:
        """The reduced value, or None before the first `add`."""
        self._not_running()

    def clear(self) -> None:
        """Forget the value."""
        self._not_running()


class AggregatingState(State):
    """One accumulator a key, which may differ in type from what is added and read. `ProcessFunction` only.

    Parameters
    ----------
    add : callable
        (accumulator, added) → accumulator.
    initial
        The accumulator before the first `add`.
    result : callable, optional
        accumulator → what `get()` returns; the accumulator itself by default.
    type : pyarrow.DataType or None
        The accumulator's type.
    """

    def __init__(
        self,
        add: Callable[[Any, Any], Any],
        initial: Any,
        result: Callable[[Any], Any] | None = None,
        type: pa.DataType | None = None,
    ) -> None:
        super().__init__(type)
        self._check_callable("add", add)
        if result is not None:
            self._check_callable("result", result)
        self._check_value("initial", initial)
        self.add_fn = add
        self.initial = initial
        self.result = result

    def add(self, value: Any) -> None:
        """Bring a value into the key's accumulator."""
        self._not_running()

    def get(self) -> Any:
        """The result of the accumulator, or None before the first `add`."""
        self._not_running()

    def clear(self) -> None:
        """Forget the accumulator."""
        self._not_running()


def declared_states(function: object) -> dict[str, State]:
    """The states of a function's class, base classes first, in order of declaration."""
    found: dict[str, State] = {}
    for cls in reversed(type(function).__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, State):
                found[name] = value
            else:
                found.pop(name, None)
    return found
