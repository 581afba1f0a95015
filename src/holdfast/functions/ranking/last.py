"""`key_by(…).last(by="at")`: the row of each key with the greatest value of a column; of equal rows the last to come.

A batch that brings a key a greater row puts that row out. The state keeps the full row, so that it is known after a
restart. Senders send only the greatest row of each key.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.functions.operator import (
    BatchContext,
    Combiner,
    NewTable,
    Operator,
    OperatorInput,
    OperatorResult,
    OperatorSpec,
    TableSchema,
)
from holdfast.functions.rows.columns import concatenated
from holdfast.functions.rows.greatest import last_of_groups
from holdfast.functions.rows.grouping import distinct_keys, distinct_slots
from holdfast.functions.rows.pieces import in_pieces, rows_of_slots
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable


@dataclass(frozen=True)
class LastSpec(OperatorSpec):
    """Raises `JobRefused` when made."""

    name: str
    input: OperatorInput
    by: str

    def __post_init__(self) -> None:
        place = self.input.schema.get_field_index(self.by)
        if place < 0 or self.by in self.input.key_columns:
            found = "is a key column, in which all rows of a key are equal" if place >= 0 else "is not there"
            raise JobRefused(
                f"operator {self.name!r}: last(by={self.by!r}): the column {found}; its input has "
                f"{', '.join(self.input.schema.names)}"
            )
        kind = self.input.schema.field(place).type
        if pa.types.is_nested(kind):
            raise JobRefused(f"operator {self.name!r}: last(by={self.by!r}) has type {kind}, which has no order")

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def output_schema(self) -> pa.Schema:
        return self.input.schema

    def combiner(self, combine: bool, closed_us: int | None) -> Combiner | None:
        return LastCombiner(self) if combine else None

    @property
    def calls_no_user(self) -> bool:
        return True

    def table_schemas(self) -> dict[str, TableSchema]:
        values = [field for field in self.input.schema if field.name not in self.input.key_columns]
        return {"state": TableSchema(self.input.key_schema, pa.schema(values))}

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return LastOperator(self, max_parallelism, new_table)


class LastCombiner(Combiner):
    """Sends, of the rows that it gets at a time, the greatest row of each key."""

    def __init__(self, spec: LastSpec) -> None:
        self._spec = spec

    def take(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        _, groups = distinct_keys(rows, self._spec.input.key_schema)
        kept = np.sort(last_of_groups(rows.column(self._spec.by), groups))
        return [(0, rows if len(kept) == rows.num_rows else rows.take(pa.array(kept)))]

    def finish(self) -> list[tuple[int, pa.RecordBatch]]:
        return []


class LastOperator(Operator):
    def __init__(self, spec: LastSpec, max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        schema = spec.table_schemas()["state"]
        self._table = new_table(schema.keys, schema.values, max_parallelism)
        self.tables = {"state": self._table}

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        made: pa.RecordBatch | None = None
        changed: list[Slots] = []
        for piece in in_pieces(inputs, self.room):
            made, slots = self._take(concatenated([rows for _, rows in piece], self._spec.input.schema))
            changed.append(slots)
        if len(changed) == 1 and made is not None and made.num_rows:
            result.output.append(made)
        elif len(changed) > 1:  # a row of a piece may have replaced a row of an earlier piece
            for rows in rows_of_slots(self._table, np.unique(np.concatenate(changed)), self._spec.output_schema):
                result.output.append(rows)
        return result

    def _take(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Slots]:
        """Store the rows that are now their keys' last, and return them with their slots."""
        distinct, groups = distinct_slots(self._table.lookup(rows), len(self._table.present))
        known = np.flatnonzero(self._table.present[distinct])
        by = self._table.column(self._spec.by)
        stored = by.to_arrow(*by.gather(distinct[known]))
        values = pa.concat_arrays([stored, rows.column(self._spec.by)])
        winners = np.sort(last_of_groups(values, np.concatenate([known, groups]))) - len(known)
        winners = winners[winners >= 0]
        found = rows if len(winners) == rows.num_rows else rows.take(pa.array(winners))
        slots = distinct[groups[winners]]
        for field in self._table.value_schema:
            column = self._table.column(field.name)
            column.scatter(slots, *column.from_arrow(found.column(field.name)))
        self._table.present[slots] = True
        return found, slots
