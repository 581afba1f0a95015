"""The states of a running `ProcessFunction`: Python dicts from slot to value for the length of one batch.

    table columns ──load (new slots, in bulk)──► cells ◄── value / update / add / get of the current key
                  ◄─store (touched slots, in bulk)──┘

A cell holds None for no value, otherwise the kept form of a `Codec`, which nobody can change in place; so saving and
putting back a cell undoes whatever a call did to it. Nothing reaches the table before `store`.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.functions.columns import BoolArray, IntArray, column_array, object_array
from holdfast.functions.states import AggregatingState, ReducingState, State, ValueState
from holdfast.functions.values import Codec, Misfit
from holdfast.state.physical import values_of
from holdfast.state.table import StateTable


class Cursor:
    """Which key the function is called for; shared by all its states."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot = -1


class Cells:
    """One state of one operator."""

    def __init__(self, operator: str, name: str, state: State, cursor: Cursor) -> None:
        self.operator = operator
        self.name = name
        self.codec: Codec = state.codec()
        self.type = "any msgpack-able object" if state.type is None else str(state.type)
        self.cursor = cursor
        self.kept: dict[int, Any] = {}

    def load(self, table: StateTable, slots: IntArray) -> None:
        column = table.column(self.name)
        array = column_array(column.values[slots], column.valid[slots], self.codec.column_type)
        self.kept.update(zip(slots.tolist(), array.to_pylist(), strict=True))

    def store(self, table: StateTable, slots: IntArray) -> BoolArray:
        """Write the cells of these slots; returns which of them have a value."""
        column = table.column(self.name)
        kept = [self.kept[slot] for slot in slots.tolist()]
        some = np.fromiter((value is not None for value in kept), np.bool_, len(kept))
        is_object = column.values.dtype == object
        column.values[slots] = object_array(kept) if is_object else values_of(pa.array(kept, self.codec.column_type))
        column.valid[slots] = some
        return some

    def put(self, value: Any) -> None:
        try:
            self.kept[self.cursor.slot] = self.codec.put(value)
        except Misfit as misfit:
            raise self.misfit(misfit) from misfit

    def misfit(self, misfit: Misfit) -> UserFunctionError:
        return UserFunctionError(f"operator {self.operator!r}: state {self.name!r} of type {self.type}: {misfit}")

    def read(self) -> Any:
        kept = self.kept[self.cursor.slot]
        return kept if self.codec.get is None else self.codec.get(kept)

    def clear(self) -> None:
        self.kept[self.cursor.slot] = None


class KeyedValueState(ValueState):
    def __init__(self, declared: ValueState, cells: Cells) -> None:
        super().__init__(declared.type, declared.default)
        self._cells = cells
        self._kept = cells.kept
        self._cursor = cells.cursor
        self._put = cells.codec.put
        self._get = cells.codec.get
        self._default = cells.codec.put(declared.default)

    def value(self) -> Any:
        kept = self._kept[self._cursor.slot]
        if kept is None:
            kept = self._default
        return kept if self._get is None else self._get(kept)

    def update(self, value: Any) -> None:
        try:
            self._kept[self._cursor.slot] = self._put(value)
        except Misfit as misfit:
            raise self._cells.misfit(misfit) from misfit

    def clear(self) -> None:
        self._cells.clear()


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


def keyed(declared: State, cells: Cells) -> State:
    """What stands in a declared state's place in a running function."""
    if isinstance(declared, ValueState):
        return KeyedValueState(declared, cells)
    if isinstance(declared, ReducingState):
        return KeyedReducingState(declared, cells)
    if isinstance(declared, AggregatingState):
        return KeyedAggregatingState(declared, cells)
    raise TypeError(f"{declared.kind} is not a state of this package")
