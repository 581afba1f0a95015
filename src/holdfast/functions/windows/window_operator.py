"""A subtask of aggregates by window: panes are filled by rows, windows are made of panes when they close or change.

    rows ──► late ones out ──► panes (key, pane → aggregates) ──► index: keys by their pane's time
    watermark ──► windows that end by it ──► their panes, by the index ──► merged, in a table of the moment ──► output
             └──► panes that are in closed windows only ──► removed

A pane that is a window by itself needs no merging. The index is in memory, and costs the keys of open panes
(`timing.time_index`). The cost of a batch depends on the rows that came and the windows that close, not on those open.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.functions.aggregates.operator import AggregateOperator
from holdfast.functions.aggregates.table import AggregateTable
from holdfast.functions.operator import BatchContext, NewTable, OperatorResult, Timers
from holdfast.functions.windows.declared import PANE
from holdfast.functions.windows.merging import merge_states
from holdfast.functions.windows.panes import LONG_AGO_US, PaneOperator, TimePiece, in_time_pieces
from holdfast.functions.windows.sending import PANE_FIELD
from holdfast.ids import FIRST_BATCH
from holdfast.state.physical import Integers, Slots, values_of
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.windows.aggregate import WindowSpec

ROWS_AT_ONCE_MAX = 1 << 18
"""Keys of panes, or values in their lists, that are read and merged together when windows close. A higher value takes
more memory."""


class WindowOperator(PaneOperator):
    def __init__(self, spec: "WindowSpec", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._panes = AggregateOperator(spec.kept, max_parallelism, new_table)
        self.tables = self._panes.tables
        super().__init__(spec, self.tables["state"])

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        self._index.begin()
        self._panes.room = self.room
        on_time = self._late.put_aside(inputs, lambda rows: self._late_rows(rows, context.closed_us), context, result)
        touched = self._panes.apply(on_time, context, result)
        self._index.add(self._table.keys_of(self._table.appeared()))
        closed_us, until_us = self._ends(context.closed_us), self._ends(context.closes_us)
        if self._spec.windowing.emit == "changes":
            self._put_out_changed(touched, closed_us, context, result)
        fired = 0 if until_us is None else self._close(closed_us, until_us, context, result)
        timers = Timers(self._next_us(until_us), None, fired)
        return replace(result, timers=timers, late=self._late.count, late_rows={0: self._late.rows})

    # Closing.

    def _close(self, closed_us: int | None, until_us: int, context: BatchContext, result: OperatorResult) -> int:
        """Put out the windows that end by `until_us`; return the number of panes removed, as no window needs them."""
        if not self._window.ends_between(closed_us, until_us):
            return 0
        removed_before = self._window.closed_before(until_us)
        stop_us = removed_before if self._window.tumbles or self._spec.windowing.emit == "changes" else until_us
        found = self._slots_before(stop_us)
        panes = self._panes_at(found)
        if self._spec.windowing.emit == "final":
            if self._window.tumbles:
                self._put_out(self._panes.aggregates, found, result)
            else:
                for piece in in_time_pieces(self._window, panes, closed_us, until_us, self._pairs_max(found)):
                    self._put_out_closed(found[piece.panes], piece, context, result)
        gone = found if self._window.tumbles else found[panes < removed_before]
        self._table.present[gone] = False
        self._index.drop(removed_before)
        return len(gone)

    def _put_out(self, aggregates: AggregateTable, slots: Slots, result: OperatorResult) -> None:
        """Put out windows, whose keys have the window's start in place of the pane."""
        for piece in aggregates.pieces(slots):
            arrays = [*self._with_bounds(aggregates.table.keys_of(piece)), *aggregates.results(piece)]
            result.output.append(pa.RecordBatch.from_arrays(arrays, schema=self._spec.output_schema))

    # Merging panes.

    def _pairs_max(self, slots: Slots) -> int:
        """Return the number of pairs of a pane and a window to merge at a time: fewer if the panes keep many values."""
        values = self._panes.aggregates.values_kept(slots)
        return max(1, ROWS_AT_ONCE_MAX * len(slots) // max(1, len(slots), values))

    def _new_merged(self) -> AggregateTable:
        """A table for windows, keyed like panes, with a window's start in place of the pane's."""
        table = StateTable(self._keys, self._table.value_schema, 1)
        table.begin(FIRST_BATCH)
        return AggregateTable(self._spec.kept.bound, table)

    def _put_out_closed(self, slots: Slots, piece: TimePiece, context: BatchContext, result: OperatorResult) -> None:
        """Put out the windows that end within a piece of time, from their panes."""
        merged = self._new_merged()
        for start in range(0, len(slots), ROWS_AT_ONCE_MAX):
            some = slots[start : start + ROWS_AT_ONCE_MAX]
            rows, starts = self._windows_of(self._panes_at(some), piece.after_us, piece.until_us)
            self._add_panes(merged, some[rows], starts, context, result)
        self._put_out_merged(merged, result)

    def _add_panes(
        self, merged: AggregateTable, slots: Slots, starts: Integers, context: BatchContext, result: OperatorResult
    ) -> None:
        """Add the states of panes, by their slots, to the windows that begin at `starts`."""
        if not len(slots):
            return
        rows = self._table.rows_of(slots)
        place = rows.schema.get_field_index(PANE)
        rows = rows.set_column(place, PANE_FIELD, pa.array(starts))
        merge_states(merged, rows, self._spec.name, self._spec.windowing.bad_records, context, result)

    def _put_out_merged(self, merged: AggregateTable, result: OperatorResult) -> None:
        slots = merged.table.touched()
        self._put_out(merged, slots[merged.table.present[slots]], result)

    # Changes.

    def _put_out_changed(
        self, touched: Slots, closed_us: int | None, context: BatchContext, result: OperatorResult
    ) -> None:
        """Put out the open windows that rows of this batch belong to."""
        touched = touched[self._table.present[touched]]
        if self._window.tumbles:
            self._put_out(self._panes.aggregates, touched, result)
            return
        pairs_max = self._pairs_max(touched)
        at_once = max(1, pairs_max * self._window.pane_us // self._window.size_us)
        panes = self._panes_at(touched)
        for piece in in_time_pieces(self._window, panes, closed_us, -LONG_AGO_US, pairs_max):
            windows = self._changed_windows(touched[piece.panes], piece)
            for start in range(0, windows.num_rows, at_once):
                self._put_out_whole(windows.slice(start, at_once), context, result)

    def _changed_windows(self, slots: Slots, piece: TimePiece) -> pa.RecordBatch:
        """Return each window of the panes that ends within a piece of time once: its keys, with its start in place of
        the pane."""
        wanted = self._new_merged().table
        rows, starts = self._windows_of(self._panes_at(slots), piece.after_us, piece.until_us)
        place = self._keys.get_field_index(PANE)
        wanted.lookup(self._table.keys_of(slots[rows]).set_column(place, PANE_FIELD, pa.array(starts)))
        return wanted.keys_of(wanted.touched())

    def _put_out_whole(self, windows: pa.RecordBatch, context: BatchContext, result: OperatorResult) -> None:
        """Put out windows, made of all their panes in the table."""
        pane_us = self._window.pane_us
        width = self._window.size_us // pane_us
        starts = np.repeat(values_of(windows.column(PANE)), width)
        panes = starts + np.tile(np.arange(width) * pane_us, windows.num_rows)
        keys = windows.take(pa.array(np.repeat(np.arange(windows.num_rows), width)))
        found = self._table.lookup(keys.set_column(self._keys.get_field_index(PANE), PANE_FIELD, pa.array(panes)))
        there = self._table.present[found]
        merged = self._new_merged()
        self._add_panes(merged, found[there], starts[there], context, result)
        self._put_out_merged(merged, result)
