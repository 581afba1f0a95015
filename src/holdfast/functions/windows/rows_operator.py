"""A subtask that keeps the rows of windows until they close, and then makes output of each window's rows.

    rows ──► late ones out ──► rows that open windows need ──► rows (key, pane, position → row), sizes (key, pane)
    watermark ──► windows that end by it ──► their panes' rows, by the index, and those of this batch ──► `WindowFinish`

Rows of windows that close in the batch that brought them are never stored. An operator whose input is the output of a
window never stores rows, for this reason.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.functions.operator import BatchContext, NewTable, OperatorResult, TableSchema, Timers
from holdfast.functions.rows.columns import concatenated
from holdfast.functions.rows.grouping import distinct_slots, ranks, spans
from holdfast.functions.rows.pieces import fits, in_pieces
from holdfast.functions.windows.declared import PANE
from holdfast.functions.windows.panes import PaneOperator, TimePiece, in_time_pieces
from holdfast.functions.windows.sending import PANE_FIELD
from holdfast.functions.windows.windowed import WindowedSpec
from holdfast.ids import FIRST_BATCH
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Integers, Slots, values_of
from holdfast.state.table import StateTable

ROWS, SIZE, POSITION = "rows", "__size", "__position"
ROWS_AT_ONCE_MAX = 1 << 18
"""Number of rows that are put together when windows close; a row counts once for each of its windows. A higher value
takes more memory."""


def rows_schemas(spec: WindowedSpec) -> dict[str, TableSchema]:
    """The tables: how many rows each key and pane has, and the rows."""
    panes = pa.schema(spec.pane_keys)
    positions = pa.schema([*panes, pa.field(POSITION, pa.int64())])
    values = pa.schema([field for field in spec.input.schema if field.name not in spec.input.key_columns])
    groups = max(1, len(panes) - 1)
    return {
        "state": TableSchema(grouped_by(panes, groups), pa.schema([pa.field(SIZE, pa.int64())])),
        ROWS: TableSchema(grouped_by(positions, groups), values),
    }


class ClosingRows(NamedTuple):
    """The rows of windows that close: of the input's schema, in order of their windows.

    `keys`: the windows' key columns with their bounds, as in the output. `groups`: the rows' indexes among these.
    """

    rows: pa.RecordBatch
    keys: pa.RecordBatch
    groups: Integers


class WindowFinish(ABC):
    """Makes output of the rows of windows that close."""

    @abstractmethod
    def finish(self, closing: ClosingRows, context: BatchContext, result: OperatorResult) -> None:
        """Put out the rows that closing windows make of their rows."""

    def is_snapshot_available(self) -> SnapshotAvailability:
        """Say whether a checkpoint may be cut after the batch that was committed last."""
        return SnapshotAvailability.AVAILABLE

    def close(self) -> None:
        return None


class WindowRowsOperator(PaneOperator):
    def __init__(
        self, spec: WindowedSpec, of_windows: "WindowFinish", max_parallelism: int, new_table: NewTable
    ) -> None:
        self.tables = {
            name: new_table(schema.keys, schema.values, max_parallelism) for name, schema in rows_schemas(spec).items()
        }
        super().__init__(spec, self.tables["state"])
        self._of_windows = of_windows
        self._rows = self.tables[ROWS]
        self._schema = spec.input.schema
        self._sent = pa.schema([*self._schema, *spec.pane_keys[len(spec.input.key_columns) :]])

    def is_snapshot_available(self) -> SnapshotAvailability:
        return self._of_windows.is_snapshot_available()

    def close(self) -> None:
        self._of_windows.close()

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        self._index.begin()
        on_time = self._late.put_aside(inputs, lambda rows: self._late_rows(rows, context.closed_us), context, result)
        if not fits(on_time, self.room):
            for piece in in_pieces(on_time, self.room):
                self._store(concatenated([rows for _, rows in piece], self._sent))
            on_time = []
        rows = concatenated([rows for _, rows in on_time if rows.num_rows], self._sent)
        closed_us, until_us = self._ends(context.closed_us), self._ends(context.closes_us)
        closing = until_us is not None and self._window.ends_between(closed_us, until_us)
        fired = 0
        if closing:
            assert until_us is not None
            needed = values_of(rows.column(PANE)) >= self._window.closed_before(until_us)
            self._store(rows.filter(pa.array(needed)))
            self._index.add(self._table.keys_of(self._table.appeared()))
            fired = self._close(rows.filter(pa.array(~needed)), closed_us, until_us, context, result)
        else:
            self._store(rows)
            self._index.add(self._table.keys_of(self._table.appeared()))
        timers = Timers(self._next_us(until_us), None, fired)
        return replace(result, timers=timers, late=self._late.count, late_rows={0: self._late.rows})

    def _store(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        slots = self._table.lookup(rows)
        distinct, groups = distinct_slots(slots, len(self._table.present))
        sizes = self._table.column(SIZE)
        before = np.where(self._table.present[distinct], sizes.values[distinct], 0)
        positions = before[groups] + ranks(groups, len(distinct))
        put_rows(self._rows, rows, positions)
        added = np.bincount(groups, minlength=len(distinct))
        sizes.scatter(distinct, before + added, np.ones(len(distinct), np.bool_))
        self._table.present[distinct] = True

    def _close(
        self,
        direct: pa.RecordBatch,
        closed_us: int | None,
        until_us: int,
        context: BatchContext,
        result: OperatorResult,
    ) -> int:
        """Finish the windows that end by `until_us`, from stored rows and the rows `direct` of this batch; return the
        number of removed rows."""
        removed_before = self._window.closed_before(until_us)
        slots = self._slots_before(removed_before if self._window.tumbles else until_us)
        row_slots = self._row_slots(slots)
        stored = self._rows.rows_of(row_slots).select(self._sent.names)
        stored = pa.RecordBatch.from_arrays(stored.columns, schema=self._sent)
        self._finish(concatenated([stored, direct], self._sent), closed_us, until_us, context, result)
        gone = self._panes_at(slots) < removed_before
        self._table.present[slots[gone]] = False
        gone_rows = row_slots[values_of(stored.column(PANE)) < removed_before]
        self._rows.present[gone_rows] = False
        self._index.drop(removed_before)
        return len(gone_rows) + int(direct.num_rows)

    def _row_slots(self, slots: Slots) -> Slots:
        """The rows of panes, in order of pane and arrival."""
        return slots_of_rows(self._rows, self._table.keys_of(slots), self._table.column(SIZE).values[slots])

    def _finish(
        self, rows: pa.RecordBatch, closed_us: int | None, until_us: int, context: BatchContext, result: OperatorResult
    ) -> None:
        panes = values_of(rows.column(PANE))
        for piece in in_time_pieces(self._window, panes, closed_us, until_us, ROWS_AT_ONCE_MAX):
            self._finish_piece(rows.take(pa.array(piece.panes)), piece, context, result)

    def _finish_piece(
        self, rows: pa.RecordBatch, piece: TimePiece, context: BatchContext, result: OperatorResult
    ) -> None:
        """Finish the windows that end within a piece of time."""
        owners, starts = self._windows_of(values_of(rows.column(PANE)), piece.after_us, piece.until_us)
        if not len(owners):
            return
        order = np.argsort(starts, kind="stable")
        rows, starts = rows.take(pa.array(owners[order])), starts[order]
        windows = StateTable(self._keys, pa.schema([]), 1)
        windows.begin(FIRST_BATCH)
        keyed = rows.set_column(rows.schema.get_field_index(PANE), PANE_FIELD, pa.array(starts))
        distinct, groups = distinct_slots(windows.lookup(keyed), len(windows.present))
        keys = windows.keys_of(distinct)
        by_window = np.argsort(groups, kind="stable")
        shown = pa.RecordBatch.from_arrays(self._with_bounds(keys), schema=pa.schema(self._windowed.key_fields))
        whole = rows.select(self._schema.names).take(pa.array(by_window))
        self._of_windows.finish(ClosingRows(whole, shown, groups[by_window]), context, result)


def put_rows(table: StateTable, rows: pa.RecordBatch, positions: Integers) -> None:
    """Write rows into a table whose last key column is their position."""
    slots = table.lookup(rows.append_column(POSITION, pa.array(positions)))
    for field in table.value_schema:
        column = table.column(field.name)
        column.scatter(slots, *column.from_arrow(rows.column(field.name)))
    table.present[slots] = True


def slots_of_rows(table: StateTable, keys: pa.RecordBatch, sizes: Integers, firsts: Integers | None = None) -> Slots:
    """The slots of all rows of some keys, in order of key and position; `sizes` has the number of rows of each key,
    `firsts` the position of its first; None: 0."""
    groups, positions = spans(sizes, firsts)
    arrays = [*keys.take(pa.array(groups)).columns, pa.array(positions)]
    return table.lookup(pa.RecordBatch.from_arrays(arrays, schema=table.key_schema))
