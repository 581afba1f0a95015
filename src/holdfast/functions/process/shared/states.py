"""The states of a function, as a user declares them: class attributes of a `ProcessFunction` or `BatchFunction`.

    class Delays(hf.ProcessFunction):
        n = hf.ValueState(pa.int64(), default=0)          # a name, a type, a default
        worst = hf.ReducingState(max, pa.float64())

Each state is a column of the operator's table, under its attribute's name. Fixed-width Arrow types lie in NumPy
columns, other Arrow types as bytes in an arena, and `type=None` (any msgpack-able object) as msgpack bytes; never
pickle.

Promises: a value that is read is a copy, and a value that is put is copied, so that changing an object in place never
changes state. A value that does not fit its type is refused when it is put, naming operator, state, value and type. A
null value is the same as none. The methods here only say that no operator runs; the running states are in `cells.py`
and `batch_operator.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pyarrow as pa

from holdfast.errors import HoldfastError, JobRefused, SettingsError
from holdfast.functions.operator import TableSchema
from holdfast.functions.process.shared.entries import VALUE, list_schema, map_schema
from holdfast.functions.process.shared.values import Codec
from holdfast.functions.timing.expiry import Expiry, TtlOn, expiry_of
from holdfast.quantities import Duration
from holdfast.state.keys import check_key_types
from holdfast.value_fits import Misfit


def size_column(state: str) -> str:
    """Name the column of the operator's own table that counts the entries of a key's list or map."""
    return f"{state}.size"


def start_column(state: str) -> str:
    """Name the column of the operator's own table with the position of a key's first list entry; null means 0."""
    return f"{state}.start"


def time_column(state: str) -> str:
    """Name the column of the operator's own table with the time from which a value's time to live runs (microseconds of
    `batch_time`)."""
    return f"{state}.time"


_SHOWN = ("fn", "add_fn", "initial", "result", "key_type", "type", "default", "ttl", "ttl_on")
"""Attributes of states that their `repr` shows, where they are set."""


def _text(value: Any) -> str:
    return str(value) if isinstance(value, pa.DataType) else getattr(value, "__name__", repr(value))


class State:
    """A declared state.

    `ttl`: how long a value (of a list or map: an entry) lives by `batch_time`, counted from when it was made
    (`ttl_on="create"`), last written ("write") or last read or written ("read"). None: for ever.
    """

    def __init__(self, type: pa.DataType | None, ttl: Duration | None = None, ttl_on: TtlOn = "write") -> None:
        if type is not None and not isinstance(type, pa.DataType):
            raise SettingsError(f"{self.kind} type is {type!r}; expected an Arrow type such as pa.int64(), or None")
        self.type = type
        self.ttl = ttl
        self.ttl_on = ttl_on
        self.expiry: Expiry | None = expiry_of(self.kind, ttl, ttl_on)

    def fields(self, name: str) -> list[pa.Field]:
        """Return the columns in the operator's own table of a state called `name`."""
        value = self.codec().field(name)
        return [value] if self.expiry is None else [value, pa.field(time_column(name), pa.int64())]

    def tables(self, name: str, key_schema: pa.Schema) -> dict[str, TableSchema]:
        """Schemas of the tables that this state has for itself, by name. `key_schema`: the function's key columns."""
        return {}

    def __repr__(self) -> str:
        """Show the state as it was declared, without the options that were left out."""
        shown = {name: vars(self).get(name) for name in _SHOWN if vars(self).get(name) is not None}
        if self.ttl is None:
            del shown["ttl_on"]
        texts = [f"{name.removesuffix('_fn')}={_text(value)}" for name, value in shown.items()]
        return f"{self.kind}({', '.join(texts)})"

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
    """A value for each key.

    Parameters
    ----------
    type : pyarrow.DataType or None
        None: any msgpack-able object (None, bool, int, float, str, bytes, lists and dicts of these).
    default
        The value that a key without a value reads.
    ttl, ttl_on
        See `State`.
    """

    def __init__(
        self,
        type: pa.DataType | None = None,
        default: Any = None,
        *,
        ttl: Duration | None = None,
        ttl_on: TtlOn = "write",
    ) -> None:
        super().__init__(type, ttl, ttl_on)
        self._check_value("default", default)
        self.default = default

    def value(self) -> Any:
        """The key's value, or the default. `ProcessFunction` only."""
        self._not_running()

    def update(self, value: Any) -> None:
        """Put a value; None clears. In a `BatchFunction` an array, an entry for each distinct key, nulls kept."""
        self._not_running()

    def clear(self) -> None:
        """Forget the value: the key (in a `BatchFunction`, each key of the call) reads the default again."""
        self._not_running()

    def values(self) -> Any:
        """A copy of all values, an entry for each distinct key. `BatchFunction` only.

        A `pyarrow.Array` of the state's type, with the default (or null) where a key has no value; a list of objects
        where the type is None.
        """
        self._not_running()


class FoldingState(State):
    """A value for each key, made of all values that were added. `ProcessFunction` only."""

    def add(self, value: Any) -> None:
        """Combine a value with the key's value."""
        self._not_running()

    def get(self) -> Any:
        """Return the result of the key's values so far, or None before the first `add`."""
        self._not_running()

    def clear(self) -> None:
        """Forget the key's value."""
        self._not_running()


class ReducingState(FoldingState):
    """All values that were added to the key, reduced by `fn(kept, added)`; the first value is kept as it is.

    `type`: the type of the kept value. `ttl`, `ttl_on`: as of `ValueState`."""

    def __init__(
        self,
        fn: Callable[[Any, Any], Any],
        type: pa.DataType | None = None,
        *,
        ttl: Duration | None = None,
        ttl_on: TtlOn = "write",
    ) -> None:
        super().__init__(type, ttl, ttl_on)
        self._check_callable("fn", fn)
        self.fn = fn


class AggregatingState(FoldingState):
    """An accumulator for each key, which may differ in type from the values that are added and read.

    Parameters
    ----------
    add : callable
        (accumulator, added) → accumulator.
    initial
        The accumulator before the first `add`.
    result : callable, optional
        accumulator → the result of `get()`; the accumulator itself by default.
    type : pyarrow.DataType or None
        The accumulator's type.
    ttl, ttl_on
        As of `ValueState`.
    """

    def __init__(
        self,
        add: Callable[[Any, Any], Any],
        initial: Any,
        result: Callable[[Any], Any] | None = None,
        type: pa.DataType | None = None,
        *,
        ttl: Duration | None = None,
        ttl_on: TtlOn = "write",
    ) -> None:
        super().__init__(type, ttl, ttl_on)
        self._check_callable("add", add)
        if result is not None:
            self._check_callable("result", result)
        self._check_value("initial", initial)
        self.add_fn = add
        self.initial = initial
        self.result = result


class ListState(State):
    """A list for each key, each element a row of its own: adding an element writes no other.

    Parameters
    ----------
    type : pyarrow.DataType or None
        Type of the elements, which may be null. None: any msgpack-able object.
    ttl, ttl_on
        See `State`; each element has its own time.
    """

    def __init__(
        self, type: pa.DataType | None = None, *, ttl: Duration | None = None, ttl_on: TtlOn = "write"
    ) -> None:
        super().__init__(type, ttl, ttl_on)

    def fields(self, name: str) -> list[pa.Field]:
        return [pa.field(size_column(name), pa.int64()), pa.field(start_column(name), pa.int64())]

    def tables(self, name: str, key_schema: pa.Schema) -> dict[str, TableSchema]:
        return {f"{name}.elements": list_schema(key_schema, self.codec().field(VALUE), self.expiry is not None)}

    def add(self, value: Any) -> None:
        """Append `value` as an element. `ProcessFunction` only."""
        self._not_running()

    def get(self) -> Any:
        """The elements, in order: a list; in a `BatchFunction` an array of lists, a list for each distinct key."""
        self._not_running()

    def append(self, values: Any, groups: Any = None) -> None:
        """Append `values`. `BatchFunction` only.

        With `groups`, an element for each of them: the index of its key among the distinct keys; otherwise a list
        of elements for each distinct key.
        """
        self._not_running()

    def update(self, values: Any) -> None:
        """Put the list `values` in place of all elements; in a `BatchFunction` a list for each distinct key."""
        self._not_running()

    def clear(self) -> None:
        """Forget all elements: of the key, in a `BatchFunction` of each key of the call."""
        self._not_running()


class MapState(State):
    """A map for each key, each entry a row of its own: reading or writing an entry touches no other.

    Parameters
    ----------
    key_type : pyarrow.DataType
        Type of the map's keys, which are not null: integer, string, binary, boolean, date, time, timestamp, decimal.
    value_type : pyarrow.DataType or None
        Type of the values, which may be null. None: any msgpack-able object.
    default
        The value that a map key without an entry reads.
    ttl, ttl_on
        See `State`; each entry has its own time.
    """

    def __init__(
        self,
        key_type: pa.DataType,
        value_type: pa.DataType | None = None,
        default: Any = None,
        *,
        ttl: Duration | None = None,
        ttl_on: TtlOn = "write",
    ) -> None:
        super().__init__(value_type, ttl, ttl_on)
        if not isinstance(key_type, pa.DataType):
            raise SettingsError(f"MapState key_type is {key_type!r}; expected an Arrow type such as pa.string()")
        wrong = f"MapState key_type is {key_type}, which cannot be a map's key here"
        try:
            check_key_types(pa.schema([("key", key_type)]))
        except JobRefused as error:
            raise SettingsError(wrong) from error
        if pa.types.is_floating(key_type):
            raise SettingsError(
                f"{wrong}: in Python a NaN is unequal to itself. Use the text or the bits of the number"
            )
        self.key_type = key_type
        self._check_value("default", default)
        self.default = default

    def fields(self, name: str) -> list[pa.Field]:
        return [pa.field(size_column(name), pa.int64())]

    def tables(self, name: str, key_schema: pa.Schema) -> dict[str, TableSchema]:
        value = self.codec().field(VALUE)
        return {
            f"{name}.entries": map_schema(key_schema, self.key_type, value, self.expiry is not None),
            f"{name}.order": list_schema(key_schema, pa.field(VALUE, self.key_type)),
        }

    def get(self, map_key: Any, groups: Any = None) -> Any:
        """The value of the entry of `map_key`, or the default.

        In a `BatchFunction` an array of values for an array of map keys: a map key for each distinct key, or, with
        `groups`, for each of these indexes of distinct keys. So it is for `contains`, `put` and `remove`.
        """
        self._not_running()

    def contains(self, map_key: Any, groups: Any = None) -> Any:
        """True if there is an entry of `map_key`; `groups` as in `get`."""
        self._not_running()

    def put(self, map_key: Any, value: Any, groups: Any = None) -> None:
        """Write `value` as the entry of `map_key`; of several writes of the same entry in a call the last counts.

        `groups`: as in `get`.
        """
        self._not_running()

    def remove(self, map_key: Any, groups: Any = None) -> None:
        """Remove the entry of `map_key`; do nothing if the key has none. `groups`: as in `get`."""
        self._not_running()

    def update(self, entries: Mapping[Any, Any]) -> None:
        """Put several entries. `ProcessFunction` only."""
        self._not_running()

    def keys(self) -> Any:
        """All map keys of the key, ascending. `ProcessFunction` only."""
        self._not_running()

    def values(self) -> Any:
        """All values of the key, in the order of their map keys. `ProcessFunction` only."""
        self._not_running()

    def items(self) -> Any:
        """All entries of the key, as pairs, in ascending order of map keys.

        In a `BatchFunction` a record batch of all entries of the distinct keys: `group`, `key`, `value`, ascending.
        """
        self._not_running()

    def is_empty(self) -> Any:
        """True if the key has no entry. `ProcessFunction` only."""
        self._not_running()

    def clear(self) -> None:
        """Remove all entries: of the key, in a `BatchFunction` of each key of the call."""
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
