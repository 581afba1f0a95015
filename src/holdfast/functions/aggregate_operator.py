"""A subtask of `KeyedStream.aggregate`: from rows to state columns and output.

    for each input batch: lookup ─► checked sums (all rows or none) ─► counters opened ─► accumulators ─► running rows
    at the end, emit="changes": one row per key that a row was applied to, in order of first touch

Invariant: a row is applied by all aggregates or by none. A key becomes present when the first row is applied to it.
Does not own the transaction around it (the caller begins, commits and undoes the table), nor what is declared
(`aggregates.py`).
"""

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRecord
from holdfast.functions import kernels
from holdfast.functions.accumulators import (
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
from holdfast.functions.checked_sums import CheckedSum, DecimalSum, IntegerSum, overflowing_rows, try_all
from holdfast.functions.columns import IntArray, has_kernels
from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorResult
from holdfast.sources.base import BadRow
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.aggregates import AggregateSpec, BoundAggregate

_FIXED: dict[str, type[Accumulator]] = {"min": Extreme, "max": Extreme, "first": First, "last": Last}


def accumulator(bound: "BoundAggregate", table: StateTable) -> Accumulator:
    """The accumulator for an aggregate and the type of its column."""
    function = bound.aggregate.function
    if function == "count":
        return Count(bound, table)
    if function == "mean":
        return Mean(bound, table)
    if function == "sum":
        if pa.types.is_decimal(bound.result_type):
            return DecimalSum(bound, table)
        return IntegerSum(bound, table) if pa.types.is_integer(bound.result_type) else FloatSum(bound, table)
    return (_FIXED[function] if has_kernels(bound.result_type) else ObjectFold)(bound, table)


class AggregateOperator(Operator):
    def __init__(self, spec: "AggregateSpec", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._table = new_table(spec.key_schema, spec.value_schema, max_parallelism)
        self.tables = {"state": self._table}
        self._schema = spec.output_schema
        self._accumulators = [accumulator(bound, self._table) for bound in spec.bound]
        self._sums = [one for one in self._accumulators if isinstance(one, CheckedSum)]

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(output=[])
        applied: list[IntArray] = []
        row_offset = 0
        for _, rows in inputs:
            if rows.num_rows:
                applied.append(self._take(rows, row_offset, context, result, bool(result.bad)))
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
        self, rows: pa.RecordBatch, row_offset: int, context: BatchContext, result: OperatorResult, had_bad: bool
    ) -> IntArray:
        """Apply one input batch; the slots of the rows that were applied."""
        before = len(self._table.touched())
        chunk = Chunk(rows, self._table.lookup(rows), self._spec.emit == "every")
        new = self._table.touched()[before:]
        self._open([name for one in self._sums for name in one.open_columns], new)
        if not try_all(self._sums, chunk):
            bad = overflowing_rows(self._sums, chunk)
            self._refuse(chunk, bad, row_offset, context, result)
            good = np.ones(rows.num_rows, dtype=np.bool_)
            good[list(bad)] = False
            chunk, had_bad = chunk.only(good), True
            if not try_all(self._sums, chunk):
                raise AssertionError(f"operator {self._spec.name!r}: rows without overflow overflow")
        if had_bad:
            new = chunk.slots
        self._appear(new)
        columns = [one.add(chunk) for one in self._accumulators]
        if chunk.running and chunk.rows.num_rows:
            keys = [chunk.rows.column(name) for name in self._spec.key_columns]
            result.output.append(pa.RecordBatch.from_arrays([*keys, *columns], schema=self._schema))
        return chunk.slots

    def _open(self, names: list[str], slots: IntArray) -> None:
        for name in names:
            column = self._table.column(name)
            kernels.open_states(slots, column.valid, column.values)

    def _appear(self, slots: IntArray) -> None:
        """Keys that rows are now applied to: present, with counters that count from 0."""
        kernels.raise_flags(slots, self._table.present)
        for one in self._accumulators:
            self._open([*one.counters, *(() if isinstance(one, CheckedSum) else one.open_columns)], slots)
            for name in one.counters:
                kernels.raise_flags(slots, self._table.column(name).valid)

    def _changes(self, slots: IntArray) -> pa.RecordBatch:
        keys = self._table.keys_of(slots)
        columns = [one.results(slots) for one in self._accumulators]
        return pa.RecordBatch.from_arrays([*keys.columns, *columns], schema=self._schema)

    def _refuse(
        self, chunk: Chunk, bad: dict[int, CheckedSum], row_offset: int, context: BatchContext, result: OperatorResult
    ) -> None:
        for row, culprit in bad.items():
            values = chunk.rows.slice(row, 1).to_pylist()[0]
            key = {name: values[name] for name in self._spec.key_columns}
            where = f"row {row_offset + row} of batch {context.batch}, subtask {context.subtask}"
            reason = (
                f"operator {self._spec.name!r}: aggregate {culprit.bound.name!r} = {culprit.bound.aggregate} does not "
                f"fit {culprit.type} any more for key {key} after adding {values[culprit.bound.aggregate.column or '']}"
                f" ({where})"
            )
            if self._spec.bad_records == "fail":
                raise BadRecord(f'{reason}; cast the column to decimal or double, or use bad_records="dead_letter"')
            payload = json.dumps(values, default=str)
            result.bad.append(BadRow("", "", where, reason, payload, operator=self._spec.name))
