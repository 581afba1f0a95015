"""`stream.drop_duplicates("id", within="1h")`: the first row of each key, and rows whose time is later by more than
that.

    rows ──► late ones out ──► key → time of the kept row ──► rows whose key has none, or has it too early
    watermark ──► keys for which no row on time can be a duplicate any more, by the index ──► forgotten

A key is forgotten only once no row on time can be its duplicate, so the output does not depend on the moment.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.functions.duplicates.kernels import choose_first
from holdfast.functions.operator import (
    BatchContext,
    NewTable,
    Operator,
    OperatorInput,
    OperatorResult,
    OperatorSpec,
    TableSchema,
    Timers,
)
from holdfast.functions.rows.columns import BoolArray, concatenated
from holdfast.functions.rows.kernels import mark_first
from holdfast.functions.rows.late import LateRows
from holdfast.functions.rows.pieces import checked
from holdfast.functions.rows.policies import LatePolicy
from holdfast.functions.timing.time_index import FollowedIndex, TimeBuckets, keys_with_times
from holdfast.functions.windows.declared import shown_duration, times_of
from holdfast.state.physical import Integers
from holdfast.state.table import StateTable

AT = "__at"
"""State column: the event time of a key's kept row, in microseconds."""
FOR_EVER = (1 << 63) - 1


@dataclass(frozen=True)
class DuplicatesSpec(OperatorSpec):
    """Raises `JobRefused` when made. `within_us` None: a key is remembered for ever."""

    name: str
    input: OperatorInput
    within_us: int | None
    late: LatePolicy = "drop"

    def __post_init__(self) -> None:
        if self.within_us is not None:
            _ = self.time

    @property
    def time(self) -> str:
        """The column with the event time."""
        found = self.input.event_time
        if found is None:
            raise JobRefused(
                f"operator {self.name!r}: drop_duplicates(within=…) needs a watermark, by which keys are forgotten: "
                "add .with_watermark(column, delay) right after read()"
            )
        if found.column is None:
            raise JobRefused(
                f"operator {self.name!r}: drop_duplicates(within=…) needs the rows' event time, and its input has no "
                f"column {' or '.join(map(repr, found.names))} any more; it has {', '.join(self.input.schema.names)}"
            )
        return found.column

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def declared_keys(self) -> tuple[str, ...]:
        if self.within_us is None:
            return self.key_columns
        return (*self.key_columns, f"within {shown_duration(self.within_us)}")

    @property
    def output_schema(self) -> pa.Schema:
        return self.input.schema

    @property
    def late_schemas(self) -> dict[int, pa.Schema]:
        return {0: self.input.schema} if self.late == "stream" else {}

    @property
    def grows(self) -> str:
        if self.within_us is not None:
            return ""
        return "drop_duplicates() remembers every key for ever: say for how long with within="

    @property
    def is_timed(self) -> bool:
        return self.within_us is not None

    @property
    def calls_no_user(self) -> bool:
        return True

    def table_schemas(self) -> dict[str, TableSchema]:
        return {"state": TableSchema(self.input.key_schema, pa.schema([pa.field(AT, pa.int64())]))}

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return DuplicatesOperator(self, max_parallelism, new_table)


class DuplicatesOperator(Operator):
    def __init__(self, spec: DuplicatesSpec, max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._within_us = spec.within_us
        schema = spec.table_schemas()["state"]
        self._table = new_table(schema.keys, schema.values, max_parallelism)
        self.tables = {"state": self._table}
        self._late = LateRows(spec.name, spec.late)
        self._entries = pa.schema([*schema.keys, pa.field(AT, pa.int64())])
        width_us = max(1_000_000, (spec.within_us or 0) // 16)
        self._index = FollowedIndex(self._table, lambda: TimeBuckets(self._entries, AT, width_us), self._all_entries)

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        if self._within_us is None:
            for _, rows in checked(inputs, self.room):
                self._choose(rows, np.zeros(rows.num_rows, np.int64), FOR_EVER, result)
            return result
        self._index.begin()
        on_time = self._late.put_aside(inputs, lambda rows: self._late_rows(rows, context.closed_us), context, result)
        for _, rows in checked(on_time, self.room):
            times = times_of(rows.column(self._spec.time))
            kept = self._choose(rows, times, self._within_us, result)
            self._index.add(
                kept.select(self._spec.input.key_columns).append_column(
                    self._entries.field(AT), pa.array(times_of(kept.column(self._spec.time)))
                )
            )
        forgotten = 0 if context.closes_us is None else self._forget(context.closes_us - self._within_us)
        first_us = self._index.earliest()
        timers = Timers(None if first_us is None else first_us + self._within_us + 1, None, forgotten)
        return replace(result, timers=timers, late=self._late.count, late_rows={0: self._late.rows})

    def _late_rows(self, rows: pa.RecordBatch, closed_us: int | None) -> BoolArray | None:
        if closed_us is None or not rows.num_rows:
            return None
        late: BoolArray = times_of(rows.column(self._spec.time)) < closed_us
        return late if late.any() else None

    def _choose(self, rows: pa.RecordBatch, times: Integers, within_us: int, result: OperatorResult) -> pa.RecordBatch:
        """Put out the rows that are no duplicates, and return them."""
        slots = self._table.lookup(rows)
        kept, chosen = self._table.column(AT), np.empty(len(slots), np.bool_)
        choose_first(slots, times, within_us, self._table.present.array, kept.values, chosen)
        kept.valid[slots] = True
        found = rows if chosen.all() else rows.filter(pa.array(chosen))
        if found.num_rows:
            result.output.append(found)
        return found

    def _forget(self, before_us: int) -> int:
        """Forget the keys whose kept row has a time before that; return the number of keys."""
        entries = concatenated(self._index.between(None, before_us), self._entries)
        self._index.drop(before_us)
        slots = self._table.lookup(entries.select(self._table.key_schema.names))
        first = np.empty(len(slots), np.bool_)
        mark_first(slots, np.zeros(len(self._table.present), np.bool_), first)
        slots = slots[first & self._table.present[slots] & (self._table.column(AT).values[slots] < before_us)]
        self._table.present[slots] = False
        return len(slots)

    def _all_entries(self, table: StateTable) -> Iterator[pa.RecordBatch]:
        return keys_with_times(table, AT, lambda _, cells: cells(AT))
