"""`key_by(…).top(n, by="price")` without a window: the `n` rows of each key with the greatest values, and their ranks.

    state: key → number of rows;   rows: (key, rank) → the other columns

Output: the key columns, `rank` from 1, the other columns. A batch puts out each row that took a rank in it, and later
rows of the same key and rank replace earlier ones. Among equal rows the first to come wins, even if the other comes in
a later batch.
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
from holdfast.functions.ranking.greatest import check_order, check_top
from holdfast.functions.rows.columns import concatenated
from holdfast.functions.rows.greatest import greatest
from holdfast.functions.rows.grouping import distinct_keys, distinct_slots, ranks, spans
from holdfast.functions.rows.pieces import in_pieces, rows_of_slots
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Integers, Slots
from holdfast.state.table import StateTable

RANK, SIZE, ROWS = "rank", "__size", "rows"
LONG_KEY = 512
"""Number of stored rows of a key from which on a search finds the first rank that changes. With a higher value, more
rows are read unnecessarily."""
PROBES = 64
"""Stored rows of a key that a step of the search compares. More make fewer steps, which read more rows."""


@dataclass(frozen=True)
class KeyedTopSpec(OperatorSpec):
    """Raises `JobRefused` when made."""

    name: str
    input: OperatorInput
    n: int
    by: str
    least: bool = False
    combine: bool = True

    def __post_init__(self) -> None:
        check_top(self.n, self.by)
        check_order(self.name, self.by, self.input.schema)
        if RANK in self.input.schema.names:
            raise JobRefused(
                f"operator {self.name!r}: top() without a window has an output column {RANK!r}, which its input has "
                "too; rename the column before key_by"
            )

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (*self.input.key_columns, RANK)

    @property
    def declared_keys(self) -> tuple[str, ...]:
        return self.input.key_columns

    @property
    def others(self) -> list[pa.Field]:
        """The columns of the input that are not keys."""
        return [field for field in self.input.schema if field.name not in self.input.key_columns]

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.input.key_schema, pa.field(RANK, pa.int64(), nullable=False), *self.others])

    def combiner(self, combine: bool, closed_us: int | None) -> Combiner | None:
        return KeyedTopCombiner(self) if combine and self.combine else None

    def table_schemas(self) -> dict[str, TableSchema]:
        keys = self.input.key_schema
        ranked = grouped_by(keys.append(pa.field(RANK, pa.int64())), len(keys))
        return {
            "state": TableSchema(keys, pa.schema([pa.field(SIZE, pa.int64())])),
            ROWS: TableSchema(ranked, pa.schema(self.others)),
        }

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return KeyedTopOperator(self, max_parallelism, new_table)


class KeyedTopCombiner(Combiner):
    """Sends, of the rows that it gets at a time, the `n` greatest rows of each key, in their order."""

    def __init__(self, spec: KeyedTopSpec) -> None:
        self._spec = spec

    def take(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        spec = self._spec
        count, groups = distinct_keys(rows, spec.input.key_schema)
        if count * spec.n >= rows.num_rows:
            return [(0, rows)]
        kept = np.sort(greatest(rows.column(spec.by), groups, spec.n, False, spec.least))
        return [(0, rows if len(kept) == rows.num_rows else rows.take(pa.array(kept)))]

    def finish(self) -> list[tuple[int, pa.RecordBatch]]:
        return []


class KeyedTopOperator(Operator):
    def __init__(self, spec: KeyedTopSpec, max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self.tables = {
            name: new_table(schema.keys, schema.values, max_parallelism)
            for name, schema in spec.table_schemas().items()
        }
        self._sizes, self._rows = self.tables["state"], self.tables[ROWS]
        self._schema = spec.input.schema

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        made: list[pa.RecordBatch] = []
        written: list[Slots] = []
        for piece in in_pieces(inputs, self.room):
            made, slots = self._take(concatenated([rows for _, rows in piece], self._schema))
            written.append(slots)
        if len(written) > 1:  # a row of a piece may have taken the rank of a row of an earlier piece
            made = list(rows_of_slots(self._rows, np.unique(np.concatenate(written)), self._spec.output_schema))
        for rows in made:
            result.output.append(rows)
        return result

    def _take(self, rows: pa.RecordBatch) -> tuple[list[pa.RecordBatch], Slots]:
        """Store the rows that take ranks; return them, as output, with their slots."""
        spec = self._spec
        distinct, groups = distinct_slots(self._sizes.lookup(rows), len(self._sizes.present))
        sizes = self._sizes.column(SIZE)
        known = np.where(self._sizes.present[distinct], np.minimum(sizes.values[distinct], spec.n), 0)
        unmoved = self._unmoved(distinct, known, rows, groups)
        stored, of_stored, places = self._stored(distinct, known - unmoved, unmoved)
        of_all = np.concatenate([of_stored, groups])
        values = pa.concat_arrays([self._values(stored), rows.column(spec.by)])
        winners = greatest(values, of_all, spec.n, False, spec.least)
        taken = unmoved[of_all[winners]] + ranks(of_all[winners], len(distinct))
        has_rank = taken < spec.n
        winners, taken = winners[has_rank], taken[has_rank]
        before = np.full(len(of_all), -1, np.int64)
        before[: len(places)] = places
        moved = before[winners] != taken
        now = unmoved + np.bincount(of_all[winners], minlength=len(distinct))
        sizes.scatter(distinct, now, np.ones(len(distinct), np.bool_))
        self._sizes.present[distinct] = True
        winners, taken = winners[moved], taken[moved]
        is_new = winners >= len(stored)
        old = winners[~is_new]
        written = [self._move(stored[old], distinct[of_all[old]], taken[~is_new])] if len(old) else []
        places = np.full(rows.num_rows, -1, np.int64)
        places[winners[is_new] - len(stored)] = taken[is_new]
        written.append(self._put(rows, places))
        return [each for each, _ in written if each.num_rows], np.concatenate([slots for _, slots in written])

    def _unmoved(self, distinct: Slots, known: Integers, rows: pa.RecordBatch, groups: Integers) -> Integers:
        """Count, for each key with many stored rows, the stored rows above all new rows: they keep their ranks."""
        least, most = np.zeros(len(distinct), np.int64), np.where(known >= LONG_KEY, known, 0)
        if not most.any():
            return least
        best = rows.column(self._spec.by).take(pa.array(self._greatest(rows.column(self._spec.by), groups)))
        while len(searched := np.flatnonzero(least < most)):
            lengths = most[searched] - least[searched]
            counts = np.minimum(lengths, PROBES)
            of_probes, numbers = spans(counts)
            steps = lengths[of_probes] * (numbers + 1) // counts[of_probes]
            slots, _, places = self._at(distinct, searched[of_probes], least[searched][of_probes] + steps - 1)
            values = pa.concat_arrays([self._values(slots), best.take(pa.array(searched[of_probes]))])
            pairs = np.arange(len(slots))
            is_above = self._greatest(values, np.concatenate([pairs, pairs])) < len(slots)
            np.maximum.at(least, searched[of_probes[is_above]], places[is_above] + 1)
            np.minimum.at(most, searched[of_probes[~is_above]], places[~is_above])
        return least

    def _greatest(self, values: pa.Array, groups: Integers) -> Integers:
        """Return the number of each group's greatest value, of equal values the first."""
        return greatest(values, groups, 1, False, self._spec.least)

    def _stored(self, distinct: Slots, sizes: Integers, begins: Integers) -> tuple[Slots, Integers, Integers]:
        """Return `sizes` stored rows of each key, from the ranks `begins` (counted from 0) on: their slots, the index
        of the key of each, and their ranks."""
        return self._at(distinct, *spans(sizes, begins))

    def _at(self, distinct: Slots, groups: Integers, places: Integers) -> tuple[Slots, Integers, Integers]:
        keys = self._sizes.keys_of(distinct).take(pa.array(groups))
        arrays = [*keys.columns, pa.array(places + 1)]
        return self._rows.lookup(pa.RecordBatch.from_arrays(arrays, schema=self._rows.key_schema)), groups, places

    def _values(self, stored: Slots) -> pa.Array:
        by = self._rows.column(self._spec.by)
        return by.to_arrow(*by.gather(stored))

    def _move(self, stored: Slots, keys: Slots, places: Integers) -> tuple[pa.RecordBatch, Slots]:
        """Let stored rows take other ranks, without their bytes; return them as output, with their new slots. `keys`
        are the slots of their keys."""
        arrays = [*self._sizes.keys_of(keys).columns, pa.array(places + 1)]
        slots = self._rows.lookup(pa.RecordBatch.from_arrays(arrays, schema=self._rows.key_schema))
        for field in self._rows.value_schema:
            column = self._rows.column(field.name)
            column.scatter(slots, *column.gather(stored))
        self._rows.present[slots] = True
        schema = self._spec.output_schema
        return pa.RecordBatch.from_arrays(self._rows.rows_of(slots).select(schema.names).columns, schema=schema), slots

    def _put(self, rows: pa.RecordBatch, places: Integers) -> tuple[pa.RecordBatch, Slots]:
        """Store the rows of the batch that have a place at their ranks, after stored rows have left these; return them
        as output, with their slots."""
        chosen = places >= 0
        found = rows if chosen.all() else rows.filter(pa.array(chosen))
        keys = [found.column(name) for name in self._spec.input.key_columns]
        arrays = [*keys, pa.array(places[chosen] + 1)]
        slots = self._rows.lookup(pa.RecordBatch.from_arrays(arrays, schema=self._rows.key_schema))
        for field in self._rows.value_schema:
            column = self._rows.column(field.name)
            column.scatter(slots, *column.from_arrow(found.column(field.name)))
        self._rows.present[slots] = True
        made = [*arrays, *(found.column(field.name) for field in self._spec.others)]
        return pa.RecordBatch.from_arrays(made, schema=self._spec.output_schema), slots
