"""Aggregates by windows over changes: each window is a key of its own, from its first row until it closes.

    rows with weights ──► late ones out ──► once for each open window ──► aggregates of (key, window start)
    emit="changes"    at the end of a batch: what changed of the windows that it touched (`told`)
    emit="final"      when the watermark closes a window: its results, as a row that stays
    closed windows    leave the state, with all that their aggregates keep

Sums that are taken back cannot be merged from panes, so a row of windows that overlap counts in each of them:
`size / slide` times. A change in a closed window is late.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.functions.changes.aggregate import ChangesAggregateOperator, ChangesAggregateSpec
from holdfast.functions.changes.told import CHANGE_FIELD
from holdfast.functions.operator import (
    BatchContext,
    Combiner,
    NewTable,
    Operator,
    OperatorInput,
    OperatorResult,
    TableSchema,
    Timers,
)
from holdfast.functions.rows.columns import BoolArray
from holdfast.functions.rows.pieces import in_pieces
from holdfast.functions.windows.aggregate import WindowedAggregates
from holdfast.functions.windows.declared import PANE, GivenWindow, Window
from holdfast.functions.windows.panes import PaneOperator, windows_of
from holdfast.functions.windows.sending import PANE_FIELD, WindowCombiner, late_panes
from holdfast.schema import CHANGE_TYPE, StreamKind
from holdfast.state.keys import grouped_by
from holdfast.state.physical import values_of
from holdfast.state.table import StateTable


@dataclass(frozen=True)
class ChangesPaneSpec(ChangesAggregateSpec):
    """The aggregates of each key and window. Values are kept in logs, which go with the window."""

    counts_values: ClassVar[bool] = False

    @property
    def key_schema(self) -> pa.Schema:
        keys = self.input.key_schema
        return keys if len(keys) == 1 else grouped_by(keys, len(keys) - 1)


@dataclass(frozen=True)
class ChangesWindowSpec(WindowedAggregates):
    """`changes`: with emit="changes", the output is a stream of changes; otherwise of upserts by key and window."""

    changes: bool = False

    takes: ClassVar[tuple[StreamKind, ...]] = ("append", "changes")

    def __post_init__(self) -> None:
        if CHANGE_TYPE in self.input.key_columns:
            raise JobRefused(f"operator {self.name!r}: {CHANGE_TYPE!r} is no key; it says how rows change")
        super().__post_init__()

    @property
    def window(self) -> Window:
        assert isinstance(self.input.window, Window), "checked"
        return self.input.window

    @property
    def is_final(self) -> bool:
        return self.windowing.emit == "final"

    @property
    def output_kind(self) -> StreamKind:
        if self.is_final:
            return "append"
        return "changes" if self.changes else "upserts"

    @property
    def output_schema(self) -> pa.Schema:
        return super().output_schema if self.is_final else super().output_schema.append(CHANGE_FIELD)

    @property
    def kept(self) -> ChangesAggregateSpec:
        panes = self.pane_keys
        schema = pa.schema([*self.input.schema, *panes[len(self.input.key_columns) :]])
        keys = OperatorInput(schema, tuple(field.name for field in panes), kind=self.input.kind)
        return ChangesPaneSpec(self.name, keys, self.aggregates, "changes", changes=self.changes)

    def combiner(self, combine: bool, closed_us: int | None) -> Combiner:
        return WindowCombiner(self.window, closed_us, self.lateness_us, None, self.to_one)

    @property
    def calls_no_user(self) -> bool:
        return True

    def table_schemas(self) -> dict[str, TableSchema]:
        return self.kept.table_schemas()

    def check_stored(self, tables: Mapping[str, pa.Schema]) -> None:
        self.kept.check_stored(tables)

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return ChangesWindowOperator(self, max_parallelism, new_table)


class ChangesWindowOperator(PaneOperator):
    """The operator's tables have a window's start in place of the pane."""

    def __init__(self, spec: ChangesWindowSpec, max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._aggregates = ChangesAggregateOperator(spec.kept, max_parallelism, new_table)
        self.tables = self._aggregates.tables
        super().__init__(spec, self.tables["state"])
        self._aggregates.schema, self._aggregates.shown = spec.output_schema, self._with_bounds
        self._declared = spec.window
        self._window = GivenWindow(spec.window.column, spec.window.size_us, spec.window.slide_us, spec.window.start_us)

    @property
    def copies_of_a_row(self) -> int:
        return -(-self._declared.size_us // self._declared.slide_us)

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        self._index.begin()
        on_time = self._late.put_aside(inputs, lambda rows: self._late_rows(rows, context.closed_us), context, result)
        closed_us, until_us = self._ends(context.closed_us), self._ends(context.closes_us)
        pieces = in_pieces(on_time, self.room, self.copies_of_a_row)
        rows = (self._in_windows(rows, closed_us) for piece in pieces for _, rows in piece)
        self._aggregates.apply(rows, None if self._spec.is_final else result)
        self._index.add(self._table.keys_of(self._table.appeared()))
        fired = 0 if until_us is None else self._close(until_us, result)
        timers = Timers(self._next_us(until_us), None, fired)
        return replace(result, timers=timers, late=self._late.count, late_rows={0: self._late.rows})

    def _late_rows(self, rows: pa.RecordBatch, closed_us: int | None) -> BoolArray | None:
        return late_panes(self._declared, values_of(rows.column(PANE)), closed_us, self._spec.lateness_us)

    def _in_windows(self, rows: pa.RecordBatch, closed_us: int | None) -> pa.RecordBatch:
        """Return rows once for each of their open windows, with its start in place of the pane."""
        if self._declared.tumbles:
            return rows
        places, starts = windows_of(self._declared, values_of(rows.column(PANE)), closed_us)
        rows = rows.take(pa.array(places))
        return rows.set_column(rows.schema.get_field_index(PANE), PANE_FIELD, pa.array(starts))

    def _close(self, until_us: int, result: OperatorResult) -> int:
        """Remove the windows that end by `until_us`, put out those that are final, and return how many there were."""
        before_us = self._window.closed_before(until_us)
        slots = self._slots_before(before_us)
        if self._spec.is_final:
            for keys, columns in self._aggregates.results_of(slots):
                arrays = [*self._with_bounds(keys), *columns]
                result.output.append(pa.RecordBatch.from_arrays(arrays, schema=self._spec.output_schema))
        self._aggregates.drop(slots)
        self._index.drop(before_us)
        return len(slots)
