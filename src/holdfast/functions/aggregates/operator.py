"""A subtask of `KeyedStream.aggregate`: from rows to state columns and output.

    for each input batch: lookup ─► checked sums (all rows or none) ─► counters opened ─► accumulators ─► running rows
    at the end, emit="changes": a row per key that a row was applied to, in order of first touch

Combined rows (`combining.py`) go the same way, with accumulators that read states instead of values.

Invariant: a row is applied by all aggregates or by none.
Does not own the transaction around it (the caller begins, commits and undoes the table), nor the declaration
(`declared.py`).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRecord
from holdfast.functions.aggregates.accumulators import Chunk
from holdfast.functions.aggregates.checked_sums import CheckedSum, overflowing_rows, try_all
from holdfast.functions.aggregates.table import AggregateTable, rows_needed, running_pieces
from holdfast.functions.operator import COMBINED_INPUT, BatchContext, NewTable, Operator, OperatorResult
from holdfast.functions.rows.bad_rows import bad_row, where_of
from holdfast.functions.rows.columns import RESERVED_PREFIX, BoolArray
from holdfast.functions.rows.pieces import checked
from holdfast.python_values import shown_rows
from holdfast.state.physical import Slots

if TYPE_CHECKING:
    from holdfast.functions.aggregates.spec import AggregateSpec


class AggregateOperator(Operator):
    def __init__(self, spec: "AggregateSpec", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._table = new_table(spec.key_schema, spec.value_schema, max_parallelism)
        self.tables = {"state": self._table}
        values = {name: schema for name, schema in spec.table_schemas().items() if name != "state"}
        self.tables |= {name: new_table(*schema, max_parallelism) for name, schema in values.items()}
        self.aggregates = AggregateTable(spec.bound, self._table, self.tables)
        self._schema = spec.output_schema
        self._running_bytes = 0  # of all running rows so far
        self._applied: BoolArray | None = None
        """Flags of the slots to which a row of the batch was applied; None: all touched slots, since no row was
        refused."""

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        slots = self.apply(inputs, context, result)
        for piece in self.aggregates.pieces(slots) if self._spec.emit == "changes" else ():
            keys = self._table.keys_of(piece)
            columns = [*keys.columns, *self.aggregates.results(piece)]
            result.output.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return result

    def apply(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext, result: OperatorResult) -> Slots:
        """Apply all rows, and return the slots that rows were applied to. Bad rows and running values go into
        `result`."""
        self._applied = None
        row_offset = 0
        combined = any(number == COMBINED_INPUT for number, _ in inputs)
        for number, rows in checked(inputs, self.room):
            if number == COMBINED_INPUT:
                self._merge(rows)
            else:
                for start, piece in self._pieces(rows):
                    self._take(piece, row_offset + start, context, result, combined)
            row_offset += rows.num_rows
        touched, applied = self._table.touched(), self._applied
        return touched if applied is None else touched[_longer(applied, len(self._table.present))[touched]]

    def _pieces(self, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Divide rows into pieces to take together, each with its offset: a single piece, unless each row gives a
        list."""
        if self._spec.emit == "every" and self.aggregates.gathers:
            yield from running_pieces(rows, lambda: self._running_bytes)
        elif rows.num_rows:
            yield 0, rows

    def _take(
        self, rows: pa.RecordBatch, row_offset: int, context: BatchContext, result: OperatorResult, combined: bool
    ) -> None:
        """Apply an input batch. `combined`: the batch may hold combined rows."""
        aggregates = self.aggregates
        before = len(self._table.touched())
        chunk, new = aggregates.look_up(rows, self._spec.emit == "every")
        sums = aggregates.of_rows.sums
        if not try_all(sums, chunk):
            if combined:
                raise rows_needed(self._spec.name)
            bad = overflowing_rows(sums, chunk)
            self._refuse(chunk, bad, row_offset, context, result)
            if self._applied is None:  # rows were applied to all slots so far
                self._applied = np.zeros(len(self._table.present), np.bool_)
                self._applied[self._table.touched()[:before]] = True
            good = np.ones(rows.num_rows, dtype=np.bool_)
            good[list(bad)] = False
            chunk = chunk.only(good)
            if not try_all(sums, chunk):
                raise AssertionError(f"operator {self._spec.name!r}: rows without overflow overflow")
        if self._applied is not None:
            self._applied = _longer(self._applied, len(self._table.present))
            self._applied[chunk.slots] = True
        aggregates.appear(chunk.slots if result.bad else new)
        columns = aggregates.of_rows.add(chunk)
        if chunk.running and chunk.rows.num_rows:
            keys = [chunk.rows.column(name) for name in self._spec.key_columns]
            running = pa.RecordBatch.from_arrays([*keys, *columns], schema=self._schema)
            self._running_bytes += running.nbytes
            result.output.append(running)

    def _merge(self, rows: pa.RecordBatch) -> None:
        """Apply combined rows. A batch with combined rows has no bad rows."""
        chunk, new = self.aggregates.look_up(rows, True)
        sums = self.aggregates.of_combined.sums
        if not try_all(sums, chunk) or not all(one.fitted_between(chunk) for one in sums):
            raise rows_needed(self._spec.name)
        self.aggregates.appear(new)
        self.aggregates.of_combined.add(Chunk(rows, chunk.slots, False))

    def _refuse(
        self, chunk: Chunk, bad: dict[int, CheckedSum], row_offset: int, context: BatchContext, result: OperatorResult
    ) -> None:
        for row, culprit in bad.items():
            found = shown_rows(chunk.rows.slice(row, 1))[0]
            values = {name: value for name, value in found.items() if not name.startswith(RESERVED_PREFIX)}
            key = {name: values[name] for name in self._spec.key_columns if name in values}
            where = where_of(context, row_offset + row)
            reason = (
                f"operator {self._spec.name!r}: aggregate {culprit.bound.name!r} = {culprit.bound.aggregate} does not "
                f"fit {culprit.type} any more for key {key} after adding {values[culprit.bound.aggregate.column or '']}"
                f" ({where})"
            )
            if self._spec.bad_records == "fail":
                raise BadRecord(f'{reason}; cast the column to decimal or double, or use bad_records="dead_letter"')
            result.bad.append(bad_row(self._spec.name, where, reason, values))


def _longer(flags: BoolArray, length: int) -> BoolArray:
    """Return the flags, extended by False up to a length."""
    return flags if len(flags) == length else np.append(flags, np.zeros(length - len(flags), np.bool_))
