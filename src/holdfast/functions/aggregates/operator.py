"""A subtask of `KeyedStream.aggregate`: from rows to state columns and output.

    for each input batch: lookup ─► checked sums (all rows or none) ─► counters opened ─► accumulators ─► running rows
    at the end, emit="changes": one row per key that a row was applied to, in order of first touch

Combined rows (`combining.py`) go the same way, with accumulators that read states instead of values.

Invariant: a row is applied by all aggregates or by none. A key becomes present when the first row is applied to it.
Does not own the transaction around it (the caller begins, commits and undoes the table), nor what is declared
(`aggregates.py`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRecord, RowsNeeded
from holdfast.functions import kernels
from holdfast.functions.aggregates.accumulators import (
    Accumulator,
    Chunk,
    Count,
    Extreme,
    First,
    FloatSum,
    Last,
    Mean,
    ObjectFold,
)
from holdfast.functions.aggregates.checked_sums import CheckedSum, DecimalSum, IntegerSum, overflowing_rows, try_all
from holdfast.functions.columns import has_kernels
from holdfast.functions.operator import COMBINED_INPUT, BatchContext, NewTable, Operator, OperatorResult
from holdfast.functions.running import bad_row, where_of
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.aggregates.declared import AggregateSpec, BoundAggregate

_FIXED: dict[str, type[Accumulator]] = {"min": Extreme, "max": Extreme, "first": First, "last": Last}


def accumulator(bound: "BoundAggregate", table: StateTable, combined: bool = False) -> Accumulator:
    """The accumulator for an aggregate and the type of its column."""
    return _class_for(bound.aggregate.function, bound.result_type)(bound, table, combined)


def _class_for(function: str, kind: pa.DataType) -> type[Accumulator]:
    if function == "count":
        return Count
    if function == "mean":
        return Mean
    if function == "sum":
        if pa.types.is_decimal(kind):
            return DecimalSum
        return IntegerSum if pa.types.is_integer(kind) else FloatSum
    return _FIXED[function] if has_kernels(kind) else ObjectFold


class Accumulators:
    """Those of some aggregates over one table, for input rows or for combined ones."""

    def __init__(self, bounds: Sequence["BoundAggregate"], table: StateTable, combined: bool = False) -> None:
        self._all = [accumulator(bound, table, combined) for bound in bounds]
        self.sums = [one for one in self._all if isinstance(one, CheckedSum)]
        self.counters = [name for one in self._all for name in one.counters]
        self.opened_first = [name for one in self.sums for name in one.open_columns]
        """To be opened before the checked sums are tried; `opened_then` before the others run."""
        self.opened_then = [
            name for one in self._all if not isinstance(one, CheckedSum) for name in (*one.counters, *one.open_columns)
        ]

    def add(self, chunk: Chunk, but_sums: bool = False) -> list[pa.Array | None]:
        return [one.add(chunk) for one in self._all if not (but_sums and isinstance(one, CheckedSum))]

    def results(self, slots: Slots) -> list[pa.Array]:
        return [one.results(slots) for one in self._all]


def rows_needed(operator: str) -> RowsNeeded:
    return RowsNeeded(
        f"operator {operator!r}: a sum of combined rows leaves its type; by which row, and what becomes of that one, "
        "shows only without combining"
    )


class AggregateOperator(Operator):
    def __init__(self, spec: "AggregateSpec", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._table = new_table(spec.key_schema, spec.value_schema, max_parallelism)
        self.tables = {"state": self._table}
        self._schema = spec.output_schema
        self._of_rows = Accumulators(spec.bound, self._table)
        self._of_combined = Accumulators(spec.bound, self._table, combined=True)

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(output=[])
        applied: list[Slots] = []
        row_offset = 0
        combined = any(number == COMBINED_INPUT for number, _ in inputs)
        for number, rows in inputs:
            if number == COMBINED_INPUT:
                self._merge(rows)
            elif rows.num_rows:
                applied.append(self._take(rows, row_offset, context, result, combined))
            row_offset += rows.num_rows
        if self._spec.emit == "changes":
            slots = self._table.touched()
            if result.bad:
                some = np.zeros(len(self._table.present), dtype=np.bool_)
                some[np.concatenate(applied)] = True
                slots = slots[some[slots]]
            if len(slots):
                result.output.append(self._changes(slots))
        return result

    def _take(
        self, rows: pa.RecordBatch, row_offset: int, context: BatchContext, result: OperatorResult, combined: bool
    ) -> Slots:
        """Apply one input batch; the slots of the rows that were applied. `combined`: whether any rows of the batch."""
        chunk, new = self._look_up(rows, self._spec.emit == "every")
        sums = self._of_rows.sums
        if not try_all(sums, chunk):
            if combined:
                raise rows_needed(self._spec.name)
            bad = overflowing_rows(sums, chunk)
            self._refuse(chunk, bad, row_offset, context, result)
            good = np.ones(rows.num_rows, dtype=np.bool_)
            good[list(bad)] = False
            chunk = chunk.only(good)
            if not try_all(sums, chunk):
                raise AssertionError(f"operator {self._spec.name!r}: rows without overflow overflow")
        self._appear(chunk.slots if result.bad else new)
        columns = self._of_rows.add(chunk)
        if chunk.running and chunk.rows.num_rows:
            keys = [chunk.rows.column(name) for name in self._spec.key_columns]
            result.output.append(pa.RecordBatch.from_arrays([*keys, *columns], schema=self._schema))
        return chunk.slots

    def _merge(self, rows: pa.RecordBatch) -> None:
        """Apply combined rows. A batch that has any has no bad rows."""
        chunk, new = self._look_up(rows, True)
        sums = self._of_combined.sums
        if not try_all(sums, chunk) or not all(one.fitted_between(chunk) for one in sums):
            raise rows_needed(self._spec.name)
        self._appear(new)
        self._of_combined.add(Chunk(rows, chunk.slots, False))

    def _look_up(self, rows: pa.RecordBatch, running: bool) -> tuple[Chunk, Slots]:
        """Rows with the slots of their keys, ready for the checked sums; and those of the slots that are new."""
        before = len(self._table.touched())
        chunk = Chunk(rows, self._table.lookup(rows), running)
        new = self._table.touched()[before:]
        self._open(self._of_rows.opened_first, new)
        return chunk, new

    def _open(self, names: list[str], slots: Slots) -> None:
        for name in names:
            column = self._table.column(name)
            kernels.open_states(slots, column.valid, column.values)

    def _appear(self, slots: Slots) -> None:
        """Keys that rows are now applied to: present, with counters that count from 0."""
        kernels.raise_flags(slots, self._table.present.array)
        self._open(self._of_rows.opened_then, slots)
        for name in self._of_rows.counters:
            kernels.raise_flags(slots, self._table.column(name).valid)

    def _changes(self, slots: Slots) -> pa.RecordBatch:
        keys = self._table.keys_of(slots)
        columns = self._of_rows.results(slots)
        return pa.RecordBatch.from_arrays([*keys.columns, *columns], schema=self._schema)

    def _refuse(
        self, chunk: Chunk, bad: dict[int, CheckedSum], row_offset: int, context: BatchContext, result: OperatorResult
    ) -> None:
        for row, culprit in bad.items():
            values = chunk.rows.slice(row, 1).to_pylist()[0]
            key = {name: values[name] for name in self._spec.key_columns}
            where = where_of(context, row_offset + row)
            reason = (
                f"operator {self._spec.name!r}: aggregate {culprit.bound.name!r} = {culprit.bound.aggregate} does not "
                f"fit {culprit.type} any more for key {key} after adding {values[culprit.bound.aggregate.column or '']}"
                f" ({where})"
            )
            if self._spec.bad_records == "fail":
                raise BadRecord(f'{reason}; cast the column to decimal or double, or use bad_records="dead_letter"')
            result.bad.append(bad_row(self._spec.name, where, reason, values))
