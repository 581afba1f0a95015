"""The states of a running `ProcessFunction`: Python dicts from slot to value for the length of a batch.

    table columns ──load (new slots, in bulk)──► cells ◄── value / update / add / get of the current key
                  ◄─store (touched slots, in bulk)──┘

A cell holds None if there is no value, otherwise the kept form of a `Codec`, which cannot change in place. So to save a
cell and put it back undoes every change of a call. Nothing reaches the table before `store`.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.functions.process.shared.states import AggregatingState, ReducingState, State, ValueState, time_column
from holdfast.functions.process.shared.values import Codec
from holdfast.functions.rows.calls import Cursor
from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.functions.timing.expiry import BatchClock, expired_rows
from holdfast.functions.undo_log import UndoLog
from holdfast.python_values import exact_values
from holdfast.state.physical import Slots, physical_dtype, values_of
from holdfast.state.table import StateTable
from holdfast.value_fits import Misfit, integer_range, usual_values

CELL_BYTES = 100
"""Approximate memory of a cell or an entry beside its value: its slot in a dict, and its key."""

_SIZES: dict[type | None, Callable[[Any], int]] = {str: str.__sizeof__, bytes: bytes.__sizeof__}
"""The functions that say the same as `sys.getsizeof`, by class, in a quarter of its time."""

NUMBER_BYTES = 32
"""Approximate memory of a number, a date or a time as a Python object."""


class Cells:
    """A single state of an operator."""

    tables: dict[str, StateTable] = {}
    """No tables: the values are columns of the operator's table."""

    def __init__(self, operator: str, name: str, state: State, cursor: Cursor, clock: BatchClock) -> None:
        self.operator = operator
        self.name = name
        self.codec: Codec = state.codec()
        self.type = "any msgpack-able object" if state.type is None else str(state.type)
        self.cursor = cursor
        self.kept: dict[int, Any] = {}
        self.expiry = state.expiry
        self._clock = clock
        self._times: dict[int, int | None] = {}
        """Time since which the value's time to live runs, by slot; None for a slot without a value. Empty without
        expiry."""

    def load(self, table: StateTable, slots: Slots) -> None:
        """Load the values of these slots. Each slot is loaded once a batch."""
        column = table.column(self.name)
        kept = exact_values(column.to_arrow(*column.gather(slots)))
        if self.expiry is not None:
            times, known = table.column(time_column(self.name)).gather(slots)
            expired = expired_rows(times, known, self.expiry, self._clock.now_us).tolist()
            kept = [None if gone else value for value, gone in zip(kept, expired, strict=True)]
            since = np.where(known, times, self._clock.now_us).tolist()
            living = [None if value is None else time for value, time in zip(kept, since, strict=True)]
            self._times.update(zip(slots.tolist(), living, strict=True))
        self.kept.update(zip(slots.tolist(), kept, strict=True))

    def store(self, table: StateTable, slots: Slots) -> BoolArray:
        """Write all cells, loaded for `slots` in this order; returns which of them have a value."""
        column = table.column(self.name)
        kept = list(self.kept.values())
        if not column.fixed_width:
            column.put_objects(slots, kept)
            some = column.gather(slots)[1]
        else:
            values, some = column.from_arrow(pa.array(kept, self.codec.column_type))
            column.scatter(slots, values, some)
        if self.expiry is not None:
            times = pa.array(list(self._times.values()), pa.int64())
            table.column(time_column(self.name)).scatter(slots, values_of(times), some)
        return some

    def save(self, slots: list[int], undo_log: UndoLog) -> None:
        """Note the values of these slots, which may repeat, so that all later changes to them can be undone."""
        undo_log.note(partial(self.kept.update, zip(slots, list(map(self.kept.__getitem__, slots)), strict=True)))
        if self.expiry is not None:
            times = list(map(self._times.__getitem__, slots))
            undo_log.note(partial(self._times.update, zip(slots, times, strict=True)))

    def reset(self) -> None:
        """Forget the values of the batch."""
        self.kept.clear()
        self._times.clear()

    def held_bytes(self, slots: list[int]) -> IntArray:
        """Return the approximate memory of the values of these slots as Python objects."""
        if physical_dtype(self.codec.column_type) is not None:
            return np.full(len(slots), CELL_BYTES + NUMBER_BYTES)
        values = [self.kept[slot] for slot in slots]
        size_of = _SIZES.get(self.codec.usual, sys.getsizeof)
        if size_of is not sys.getsizeof and None in values:
            size_of = sys.getsizeof
        return np.fromiter(map(size_of, values), np.int64, len(slots)) + CELL_BYTES

    def put(self, value: Any) -> None:
        try:
            kept = self.codec.put(value)
        except Misfit as misfit:
            raise self.misfit(misfit) from misfit
        slot = self.cursor.slot
        self.kept[slot] = kept
        if self.expiry is not None:
            if kept is None:
                self._times[slot] = None
            elif self.expiry.on != "create" or self._times[slot] is None:
                self._times[slot] = self._clock.now_us

    def misfit(self, misfit: Misfit) -> UserFunctionError:
        return UserFunctionError(f"operator {self.operator!r}: state {self.name!r} of type {self.type}: {misfit}")

    def read(self) -> Any:
        """A copy of the value, or None."""
        slot = self.cursor.slot
        kept = self.kept[slot]
        if self.expiry is not None and self.expiry.on == "read" and kept is not None:
            self._times[slot] = self._clock.now_us
        return kept if self.codec.get is None else self.codec.get(kept)

    def clear(self) -> None:
        slot = self.cursor.slot
        self.kept[slot] = None
        if self.expiry is not None:
            self._times[slot] = None


class KeyedValueState(ValueState):
    """The running `ValueState`. `value` and `update` are closures instead of methods, since they decide the cost of a
    row."""

    def __init__(self, declared: ValueState, cells: Cells) -> None:
        super().__init__(declared.type, declared.default)
        self._cells = cells
        self.__dict__["value"] = _reader(cells, cells.codec.put(declared.default))
        self.__dict__["update"] = _writer(cells)

    def clear(self) -> None:
        self._cells.clear()


def _reader(cells: Cells, default: Any) -> Callable[[], Any]:
    kept, cursor, get = cells.kept, cells.cursor, cells.codec.get

    def read_value() -> Any:
        found = cells.read()
        if found is not None:
            return found
        return default if get is None else get(default)

    def value() -> Any:
        found = kept[cursor.slot]
        return default if found is None else found

    def copied_value() -> Any:
        assert get is not None
        found = kept[cursor.slot]
        return get(default if found is None else found)

    if cells.expiry is not None:
        return read_value
    return value if get is None else copied_value


def _writer(cells: Cells) -> Callable[[Any], None]:
    kept, cursor, put = cells.kept, cells.cursor, cells.put
    usual = cells.codec.usual

    def update_integer(value: Any) -> None:
        if type(value) is int and low <= value <= high:
            kept[cursor.slot] = value
        else:
            put(value)

    def update_text(value: Any) -> None:
        if type(value) is str and value.isascii():
            kept[cursor.slot] = value
        else:
            put(value)

    def update_other(value: Any) -> None:
        if type(value) is usual:
            kept[cursor.slot] = value
        else:
            put(value)

    def update_list(value: Any) -> None:
        if type(value) is list and are_usual_elements(value):
            kept[cursor.slot] = value.copy()
        else:
            put(value)

    if cells.expiry is not None:
        return put
    if pa.types.is_list(cells.codec.column_type):
        element: pa.Field = cells.codec.column_type.value_field
        are_usual_elements = usual_values(element.type, element.nullable)
        return update_list
    if usual is str:
        return update_text
    if usual is not int:
        return put if usual is None else update_other
    low, high = integer_range(cells.codec.column_type)
    return update_integer


class KeyedReducingState(ReducingState):
    def __init__(self, declared: ReducingState, cells: Cells) -> None:
        super().__init__(declared.fn, declared.type)
        self._cells = cells

    def add(self, value: Any) -> None:
        kept = self._cells.read()
        self._cells.put(value if kept is None else self.fn(kept, value))

    def get(self) -> Any:
        return self._cells.read()

    def clear(self) -> None:
        self._cells.clear()


class KeyedAggregatingState(AggregatingState):
    def __init__(self, declared: AggregatingState, cells: Cells) -> None:
        super().__init__(declared.add_fn, declared.initial, declared.result, declared.type)
        self._cells = cells
        self._initial = cells.codec.put(declared.initial)

    def add(self, value: Any) -> None:
        kept = self._cells.read()
        if kept is None:
            get = self._cells.codec.get
            kept = self._initial if get is None else get(self._initial)
        self._cells.put(self.add_fn(kept, value))

    def get(self) -> Any:
        kept = self._cells.read()
        return kept if kept is None or self.result is None else self.result(kept)

    def clear(self) -> None:
        self._cells.clear()
