"""The states of a subtask's copy of a `BatchFunction`: arrays over the distinct keys of the current call.

    values     columns of the operator's own table, at the slots of the distinct keys
    lists      `entries.ListEntries`, sizes in the operator's own table
    maps       `entries.MapEntries`, the same

Writes reach the tables at once. The values that a write replaces go to the undo log, if there is one, by which a call
that raises is undone.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.casts import cast_in_range
from holdfast.errors import UserFunctionError
from holdfast.functions.process.shared.entries import ListEntries, Making, MapEntries
from holdfast.functions.process.shared.states import (
    ListState,
    MapState,
    State,
    ValueState,
    size_column,
    start_column,
    time_column,
)
from holdfast.functions.process.shared.values import Codec
from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.functions.timing.expiry import expired_rows, renewed
from holdfast.functions.undo_log import UndoLog
from holdfast.python_values import exact_values
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable
from holdfast.value_fits import Misfit


class Arrays:
    """The conversion between values of user code and Arrow arrays of a declared type."""

    def __init__(self, operator: str, name: str, kind: pa.DataType | None) -> None:
        self.where = (
            f"operator {operator!r}: state {name!r} of type {'any msgpack-able object' if kind is None else kind}"
        )
        self.declared = kind
        self.codec = Codec(kind)
        self.kind: pa.DataType = self.codec.column_type

    def fitted(self, value: Any, count: int, each: str) -> pa.Array:
        """Convert `count` values. Numbers are cast if no value is lost, other arrays must have the type, and each value
        of a list is checked."""
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        try:
            if self.declared is not None and isinstance(value, np.ndarray) and value.dtype != object:
                value = pa.array(value)
            if self.declared is not None and isinstance(value, pa.Array):
                array = value if value.type == self.kind else _cast(value, self.kind)
                array.validate(full=True)  # an array may hold values that its type does not have
            else:
                array = pa.array([self.codec.put(item) for item in value], type=self.kind)
        except (pa.ArrowException, Misfit, TypeError) as error:
            raise self.misfit(str(error)) from error
        if len(array) != count:
            raise self.misfit(f"found {len(array)} values, expected a value for each of the {count} {each}")
        return array

    def given(self, array: pa.Array) -> Any:
        """Convert an array for user code: to the array itself, or to a list of objects if there is no declared type."""
        get = self.codec.get
        return array if self.declared is not None or get is None else [get(kept) for kept in exact_values(array)]

    def misfit(self, problem: str) -> UserFunctionError:
        return UserFunctionError(f"{self.where}: {problem}")

    def default(self, value: Any) -> pa.Scalar | None:
        kept = self.codec.put(value)
        return None if kept is None else pa.scalar(kept, self.kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers = (pa.types.is_integer, pa.types.is_floating)
    if array.null_count == len(array):
        return pa.nulls(len(array), kind)
    if not all(any(test(one) for test in numbers) for one in (array.type, kind)):
        raise TypeError(f"found an array of {array.type}, expected {kind}; cast it")
    values, outside = cast_in_range(array, kind)
    if outside is not None:
        raise TypeError(f"found {array[int(np.argmax(outside))]} in an array of {array.type}, expected {kind}")
    return values


def _fill(array: pa.Array, default: pa.Scalar | None, missing: BoolArray) -> pa.Array:
    """Replace missing values by the default."""
    if default is None or not missing.any():
        return array
    plain = default.as_py()
    if pa.types.is_nested(array.type):
        values = zip(exact_values(array), missing.tolist(), strict=True)
        return pa.array([plain if gone else value for value, gone in values], type=array.type)
    return pc.if_else(pa.array(missing), default, array)


class _Bound:
    """The base of all array states: the distinct keys of the call, and the operator's own table."""

    own_tables: dict[str, StateTable] = {}

    def __init__(self, name: str, table: StateTable) -> None:
        self.name = name
        self._table = table
        self._slots: Slots = np.zeros(0, dtype=np.int32)
        self._keys: pa.RecordBatch = table.keys_of(self._slots)

    def enter(self, keys: pa.RecordBatch, slots: Slots, undo_log: UndoLog | None) -> None:
        """Begin a call for these distinct keys."""
        self._keys, self._slots = keys, slots

    @property
    def _sizes(self) -> IntArray:
        values, valid = self._table.column(size_column(self.name)).gather(self._slots)
        return np.where(valid, values, 0)

    def _resize(self, sizes: IntArray) -> None:
        self._table.column(size_column(self.name)).scatter(self._slots, sizes, sizes > 0)

    def some(self) -> BoolArray:
        """Return a mask of the distinct keys that have any entry."""
        return self._sizes > 0

    def _groups(self, groups: Any) -> IntArray:
        """The index of a distinct key for each entry that user code names."""
        if groups is None:
            return np.arange(len(self._slots))
        found = np.asarray(groups, dtype=np.int64)
        if len(found) and not (found.min() >= 0 and found.max() < len(self._slots)):
            raise IndexError(
                f"state {self.name!r}: groups has {found.min()} to {found.max()}, expected indexes of the "
                f"{len(self._slots)} distinct keys"
            )
        return found


class ArrayValueState(_Bound, ValueState):
    def __init__(self, operator: str, name: str, declared: ValueState, table: StateTable, making: Making) -> None:
        ValueState.__init__(self, declared.type, declared.default, ttl=declared.ttl, ttl_on=declared.ttl_on)
        _Bound.__init__(self, name, table)
        self._arrays = Arrays(operator, name, declared.type)
        self._default = self._arrays.default(declared.default)
        self._clock = making.clock

    def values(self) -> Any:
        column = self._table.column(self.name)
        alive = self.some()
        if self.expiry is not None and self.expiry.on == "read":
            self._renew(self._slots[alive])
        array = column.to_arrow(column.gather(self._slots)[0], alive)
        return self._arrays.given(_fill(array, self._default, ~alive))

    def update(self, value: Any) -> None:
        array = self._arrays.fitted(value, len(self._slots), "distinct keys")
        if self.expiry is not None:
            self._renew(self._slots)
        column = self._table.column(self.name)
        column.scatter(self._slots, *column.from_arrow(array))

    def clear(self) -> None:
        self._table.column(self.name).valid[self._slots] = False

    def some(self) -> BoolArray:
        return self._alive(self._slots)

    def _alive(self, slots: Slots) -> BoolArray:
        valid: BoolArray = self._table.column(self.name).valid[slots]
        if self.expiry is None:
            return valid
        times = self._table.column(time_column(self.name)).gather(slots)
        return valid & ~expired_rows(*times, self.expiry, self._clock.now_us)

    def _renew(self, slots: Slots) -> None:
        assert self.expiry is not None
        column = self._table.column(time_column(self.name))
        times, known = column.gather(slots)
        times = renewed(times, known & self._alive(slots), self.expiry, self._clock.now_us)
        column.scatter(slots, times, np.ones(len(slots), np.bool_))


class ArrayListState(_Bound, ListState):
    def __init__(
        self, operator: str, name: str, declared: ListState, table: StateTable, key_schema: pa.Schema, making: Making
    ) -> None:
        ListState.__init__(self, declared.type, ttl=declared.ttl, ttl_on=declared.ttl_on)
        _Bound.__init__(self, name, table)
        elements = f"{name}.elements"
        self.entries = ListEntries(declared.tables(name, key_schema)[elements], making, declared.expiry)
        self.own_tables = {elements: self.entries.rows.table}
        self._elements = Arrays(operator, name, declared.type)

    def enter(self, keys: pa.RecordBatch, slots: Slots, undo_log: UndoLog | None) -> None:
        super().enter(keys, slots, undo_log)
        self.entries.rows.undo_log = undo_log

    def get(self) -> Any:
        groups, elements = self.entries.read(self._keys, self._sizes, self._starts)
        ends = np.cumsum(np.bincount(groups, minlength=len(self._slots)))
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        if self.type is not None:
            return pa.ListArray.from_arrays(pa.array(offsets), elements)
        objects = self._elements.given(elements)
        return [objects[start:stop] for start, stop in pairwise(offsets.tolist())]

    def append(self, values: Any, groups: Any = None) -> None:
        if groups is None:
            found, elements = self._flat(values)
        else:
            found = self._groups(groups)
            elements = self._elements.fitted(values, len(found), "groups")
        self._write(False, found, elements)

    def update(self, values: Any) -> None:
        self._write(True, *self._flat(values))

    def _write(self, replaces: bool, groups: IntArray, elements: pa.Array) -> None:
        replaced = np.full(len(self._slots), replaces)
        sizes, starts = self.entries.write(self._keys, self._sizes, self._starts, replaced, groups, elements)
        self._resize(sizes)
        self._table.column(start_column(self.name)).scatter(self._slots, starts, starts > 0)

    @property
    def _starts(self) -> IntArray:
        values, valid = self._table.column(start_column(self.name)).gather(self._slots)
        return np.where(valid, values, 0)

    def clear(self) -> None:
        self.update([[]] * len(self._slots))

    def _flat(self, values: Any) -> tuple[IntArray, pa.Array]:
        """Return the group and the value of each element of the lists; there is a list for each distinct key."""
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        lists = exact_values(values) if isinstance(values, pa.Array) else list(values)
        if len(lists) != len(self._slots) or not all(isinstance(each, list | tuple | np.ndarray) for each in lists):
            raise self._elements.misfit(
                f"found {len(lists)} values, expected a list for each of the {len(self._slots)} distinct keys"
            )
        lengths = [len(each) for each in lists]
        elements = self._elements.fitted([item for each in lists for item in each], sum(lengths), "elements")
        return np.repeat(np.arange(len(lists)), lengths), elements


class ArrayMapState(_Bound, MapState):
    def __init__(
        self, operator: str, name: str, declared: MapState, table: StateTable, key_schema: pa.Schema, making: Making
    ) -> None:
        MapState.__init__(
            self, declared.key_type, declared.type, declared.default, ttl=declared.ttl, ttl_on=declared.ttl_on
        )
        _Bound.__init__(self, name, table)
        schemas = declared.tables(name, key_schema)
        entries, order = f"{name}.entries", f"{name}.order"
        self.entries = MapEntries(schemas[entries], schemas[order], making, declared.expiry)
        self.own_tables = {entries: self.entries.rows.table, order: self.entries.order.rows.table}
        self._map_keys = Arrays(operator, name, declared.key_type)
        self._values = Arrays(operator, name, declared.type)
        self._default = self._values.default(declared.default)

    def enter(self, keys: pa.RecordBatch, slots: Slots, undo_log: UndoLog | None) -> None:
        super().enter(keys, slots, undo_log)
        self.entries.rows.undo_log = self.entries.order.rows.undo_log = undo_log

    def _named(self, map_key: Any, groups: Any) -> tuple[IntArray, pa.Array]:
        found = self._groups(groups)
        map_keys = self._map_keys.fitted(map_key, len(found), "distinct keys" if groups is None else "groups")
        if map_keys.null_count:
            raise self._map_keys.misfit("found a null among the map keys, expected none")
        return found, map_keys

    def get(self, map_key: Any, groups: Any = None) -> Any:
        values, alive = self.entries.get(self._keys, *self._named(map_key, groups))
        return self._values.given(_fill(values, self._default, ~alive))

    def contains(self, map_key: Any, groups: Any = None) -> Any:
        return self.entries.get(self._keys, *self._named(map_key, groups))[1]

    def put(self, map_key: Any, value: Any, groups: Any = None) -> None:
        found, map_keys = self._named(map_key, groups)
        values = self._values.fitted(value, len(found), "map keys")
        self._write(found, map_keys, values, np.ones(len(found), np.bool_))

    def remove(self, map_key: Any, groups: Any = None) -> None:
        found, map_keys = self._named(map_key, groups)
        self._write(found, map_keys, pa.nulls(len(found), self._values.kind), np.zeros(len(found), np.bool_))

    def _write(self, groups: IntArray, map_keys: pa.Array, values: pa.Array, keep: BoolArray) -> None:
        self._resize(self.entries.put(self._keys, self._sizes, groups, map_keys, values, keep))

    def items(self) -> Any:
        groups, map_keys, values, alive = self.entries.items(self._keys, self._sizes)
        entries = pa.record_batch([pa.array(groups), map_keys, values], names=["group", "key", "value"])
        entries = entries.filter(pa.array(alive))
        return entries.sort_by([("group", "ascending"), ("key", "ascending")])

    def clear(self) -> None:
        sizes = self._sizes
        self.entries.clear(self._keys, sizes)
        self._resize(np.zeros(len(sizes), np.int64))


AnyArrayState = ArrayValueState | ArrayListState | ArrayMapState


def array_state(
    operator: str, name: str, declared: State, table: StateTable, key_schema: pa.Schema, making: Making
) -> AnyArrayState:
    """Make the array state that replaces a declared state while the function runs. Raises `TypeError` for a kind
    without arrays."""
    if isinstance(declared, MapState):
        return ArrayMapState(operator, name, declared, table, key_schema, making)
    if isinstance(declared, ListState):
        return ArrayListState(operator, name, declared, table, key_schema, making)
    if isinstance(declared, ValueState):
        return ArrayValueState(operator, name, declared, table, making)
    raise TypeError(f"{declared.kind} in a BatchFunction")
