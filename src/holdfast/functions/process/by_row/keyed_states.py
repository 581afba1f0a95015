"""The states of a subtask's copy of a `ProcessFunction`, in place of the declared ones."""

from typing import Any

import pyarrow as pa

from holdfast.functions.process.by_row.cells import Cells, KeyedAggregatingState, KeyedReducingState, KeyedValueState
from holdfast.functions.process.by_row.entry_cells import ListCells, MapCells
from holdfast.functions.process.by_row.entry_states import KeyedListState, KeyedMapState
from holdfast.functions.process.shared.entries import Making
from holdfast.functions.process.shared.states import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from holdfast.functions.rows.calls import Cursor
from holdfast.functions.undo_log import UndoLog

AnyCells = Cells | ListCells | MapCells


def keyed(
    operator: str, name: str, declared: State, cursor: Cursor, undo_log: UndoLog, key_schema: pa.Schema, making: Making
) -> tuple[AnyCells, State]:
    """The cells of a declared state, and its view for user code."""
    if isinstance(declared, MapState):
        map_cells = MapCells(operator, name, declared, cursor, undo_log, key_schema, making)
        return map_cells, KeyedMapState(declared, map_cells)
    if isinstance(declared, ListState):
        list_cells = ListCells(operator, name, declared, cursor, undo_log, key_schema, making)
        return list_cells, KeyedListState(declared, list_cells)
    cells = Cells(operator, name, declared, cursor, making.clock)
    made: Any
    if isinstance(declared, ValueState):
        made = KeyedValueState(declared, cells)
    elif isinstance(declared, ReducingState):
        made = KeyedReducingState(declared, cells)
    elif isinstance(declared, AggregatingState):
        made = KeyedAggregatingState(declared, cells)
    else:
        raise TypeError(f"{declared.kind} is not a state of this package")
    return cells, made
