"""A subtask of aggregates over rows: rows wait for the watermark, and are put out in order of time.

    rows of a batch ──► those that the watermark has not passed ──► waiting rows, with an index by time
    waiting rows that it has passed, and rows of the batch ──► in order ──► frames with the last rows before ──► output
                                                                  └──► the last rows of each key

A row waits only if the watermark does not pass it in the batch that brought it. A row whose time was passed before is
late: it is counted, and put out at once, behind the rows of its key that were put out already.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRecord
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorResult, Timers
from holdfast.functions.over.frames import Frames, FrameValues, as_numbers, frame_values, read_by
from holdfast.functions.rows.bad_rows import bad_row, where_of
from holdfast.functions.rows.columns import BoolArray, IntArray, concatenated
from holdfast.functions.rows.grouping import distinct_slots, ranks, spans
from holdfast.functions.rows.kernels import mark_first
from holdfast.functions.rows.ordering import ordered
from holdfast.functions.rows.pieces import fits, in_pieces
from holdfast.functions.timing.time_index import FollowedIndex, TimeBuckets, keys_with_times
from holdfast.functions.windows.declared import in_microseconds, times_of
from holdfast.python_values import shown_rows
from holdfast.state.physical import Integers, Slots, validity_of, values_of
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.over.declared import OverSpec

ROWS, LAST = "rows", "last"
NEXT, GIVEN, NUMBER, PLACE, AT = "__next", "__given", "__number", "__place", "__at"
ROWS_AT_ONCE_MAX = 1 << 18
"""Number of rows that are put in order together, and of the values of a group of keys, those that are kept included. A
higher value takes more memory."""
BUCKET_US = 1_000_000


class OverOperator(Operator):
    def __init__(self, spec: "OverSpec", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._schema = spec.input.schema
        self._time = spec.settings.by[0]
        self._before = spec.settings.rows - 1
        self._aggregates = spec.bound
        self._kept = spec.kept_fields
        self.tables = {
            name: new_table(schema.keys, schema.values, max_parallelism)
            for name, schema in spec.table_schemas().items()
        }
        self._heads, self._rows, self._last = self.tables["state"], self.tables[ROWS], self.tables[LAST]
        self._entries = pa.schema([*self._rows.key_schema, pa.field(AT, pa.int64())])
        self._index = FollowedIndex(self._rows, lambda: TimeBuckets(self._entries, AT, BUCKET_US), self._all_entries)

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        self._index.begin()
        timed = list(self._timed(inputs, context, result))
        direct: list[pa.RecordBatch] = []
        until_us, late = context.closes_us, 0
        for piece in in_pieces(timed, self.room):
            rows = concatenated([rows for _, rows in piece], self._schema)
            times = times_of(rows.column(self._time))
            if context.closed_us is not None:
                late += int(np.count_nonzero(times < context.closed_us))
            if until_us is not None and fits(timed, self.room):
                passed = times < until_us
                direct.append(rows.filter(pa.array(passed)))
                rows = rows.filter(pa.array(~passed))
            self._wait(rows)
        count = 0 if until_us is None else self._put_out(concatenated(direct, self._schema), until_us, context, result)
        first_us = self._index.earliest()
        timers = Timers(None if first_us is None else first_us + 1, None, count)
        return replace(result, timers=timers, late=late)

    def _timed(
        self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext, result: OperatorResult
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows whose time is not null."""
        first_row = 0
        for number, rows in inputs:
            known, before = validity_of(rows.column(self._time)), first_row
            first_row += rows.num_rows
            if known is not None:
                self._refuse(rows, ~known, f"the time {self._time!r} is null", before, context, result)
                rows = rows.filter(pa.array(known))
            if rows.num_rows:
                yield number, rows

    def _refuse(
        self,
        rows: pa.RecordBatch,
        bad: BoolArray,
        problem: str,
        first_row: int | None,
        context: BatchContext,
        result: OperatorResult,
    ) -> None:
        """Put rows aside. `first_row`: the number of the first row in the batch; None: the rows are of any batch, and
        perhaps in the state."""
        places = np.flatnonzero(bad)
        shown = shown_rows(rows.select(self._spec.shown).take(pa.array(places)))
        named = shown_rows(rows.select([*self._spec.key_columns, self._time]).take(pa.array(places)))
        advice = 'leave the row out or use bad_records="dead_letter"'
        if first_row is None:
            advice = (
                'use bad_records="dead_letter", which puts the row aside; a cast of the column to double helps a job '
                "that has no state yet"
            )
        for place, values, names in zip(places.tolist(), shown, named, strict=True):
            where = where_of(context, first_row + place) if first_row is not None else f"batch {context.batch}"
            if first_row is None:
                where += "".join(f", {name} {value}" for name, value in names.items())
            reason = f"operator {self._spec.name!r}: {problem} ({where})"
            if self._spec.settings.bad_records == "fail":
                raise BadRecord(f"{reason}; {advice}")
            result.bad.append(bad_row(self._spec.name, where, reason, values))

    # Waiting.

    def _wait(self, rows: pa.RecordBatch) -> None:
        """Keep rows until the watermark has passed them."""
        if not rows.num_rows:
            return
        distinct, groups = distinct_slots(self._heads.lookup(rows), len(self._heads.present))
        following, given = self._counters(distinct)
        numbers = following[groups] + ranks(groups, len(distinct))
        self._set_counters(distinct, following + np.bincount(groups, minlength=len(distinct)), given)
        keys = self._keyed(self._rows, rows, numbers)
        slots = self._rows.lookup(keys)
        for field in self._rows.value_schema:
            column = self._rows.column(field.name)
            column.scatter(slots, *column.from_arrow(rows.column(field.name)))
        self._rows.present[slots] = True
        times = pa.array(times_of(rows.column(self._time)))
        self._index.add(pa.RecordBatch.from_arrays([*keys.columns, times], schema=self._entries))

    def _counters(self, heads: Slots) -> tuple[Integers, Integers]:
        """Return for each key the number of its next row to wait, and the number of rows that were put out."""
        known = self._heads.present[heads]
        following, given = (np.where(known, self._heads.column(name).values[heads], 0) for name in (NEXT, GIVEN))
        return following, given

    def _set_counters(self, heads: Slots, following: Integers, given: Integers) -> None:
        valid = np.ones(len(heads), np.bool_)
        self._heads.column(NEXT).scatter(heads, following, valid)
        self._heads.column(GIVEN).scatter(heads, given, valid)
        self._heads.present[heads] = True

    def _keyed(self, table: StateTable, keys: pa.RecordBatch, last: Integers) -> pa.RecordBatch:
        """Return keys of a table: the key columns of rows, and the last column."""
        columns = [keys.column(name) for name in self._spec.key_columns]
        return pa.RecordBatch.from_arrays([*columns, pa.array(last)], schema=table.key_schema)

    def _all_entries(self, table: StateTable) -> Iterator[pa.RecordBatch]:
        kind = table.value_schema.field(self._time).type
        return keys_with_times(table, AT, lambda _, cells: in_microseconds(cells(self._time), kind))

    # Output.

    def _put_out(self, direct: pa.RecordBatch, until_us: int, context: BatchContext, result: OperatorResult) -> int:
        """Put out the rows that the watermark has passed, some of which came with this batch; return their number."""
        entries = concatenated(self._index.between(None, until_us), self._entries)
        self._index.drop(until_us)
        slots = self._rows.lookup(entries.select(self._rows.key_schema.names))
        first = np.empty(len(slots), np.bool_)
        mark_first(slots, np.zeros(len(self._rows.present), np.bool_), first)
        chosen = np.flatnonzero(first & self._rows.present[slots])
        chosen = chosen[np.argsort(values_of(entries.column(NUMBER))[chosen], kind="stable")]
        slots, stored_times = slots[chosen], values_of(entries.column(AT))[chosen]
        times = np.concatenate([stored_times, times_of(direct.column(self._time))])
        for rows in _in_time_pieces(times):
            stored = self._rows.rows_of(slots[rows[rows < len(slots)]]).select(self._schema.names)
            stored = pa.RecordBatch.from_arrays(stored.columns, schema=self._schema)
            came = direct if len(rows) == len(times) else direct.take(pa.array(rows[rows >= len(slots)] - len(slots)))
            self._put_out_piece(concatenated([stored, came], self._schema), context, result)
        self._rows.present[slots] = False
        return len(times)

    def _put_out_piece(self, rows: pa.RecordBatch, context: BatchContext, result: OperatorResult) -> None:
        heads, groups = distinct_slots(self._heads.lookup(rows), len(self._heads.present))
        (following, given), sizes = self._counters(heads), np.bincount(groups, minlength=len(heads))
        kept = np.minimum(given, self._before)
        parts = (np.cumsum(kept + sizes) - 1) // ROWS_AT_ONCE_MAX
        if parts[0] < parts[-1]:
            for part in _divided(rows, parts[groups]):
                self._put_out_piece(part, context, result)
            return
        order = pa.array(ordered(groups, len(heads), self._order_columns(rows)))
        rows, groups = rows.take(order), groups[values_of(order)]
        of_kept, numbers = spans(kept, given - kept)
        frames = Frames(of_kept, groups, len(heads), self._before)
        before = self._last_slots(self._heads.keys_of(heads).take(pa.array(of_kept)), numbers)
        columns, misfits = [], np.zeros(rows.num_rows, np.bool_)
        for bound in self._aggregates:
            cells = self._kept_cells(bound, before, len(of_kept)), frame_values(read_by(bound), rows)
            column, outside = frames.aggregated(bound, *cells)
            columns.append(column)
            if outside is not None:
                misfits |= outside
                problem = f"aggregate {bound.name!r} = {bound.aggregate} does not fit {bound.result_type}"
                self._refuse(rows, outside, problem, None, context, result)
        made = pa.RecordBatch.from_arrays(
            [*rows.select(self._spec.shown).columns, *columns], schema=self._spec.output_schema
        )
        result.output.append(made.filter(pa.array(~misfits)) if misfits.any() else made)
        places = ranks(groups, len(heads))
        self._keep(rows, places + given[groups], places >= sizes[groups] - self._before)
        self._set_counters(heads, following, given + sizes)

    def _order_columns(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The columns by which rows are ordered, ascending; nulls come first."""
        time, *others = (rows.column(name) for name in self._spec.settings.by)
        return [time, *(column for other in others for column in (other.is_valid(), other))]

    # The last rows of each key.

    def _last_slots(self, keys: pa.RecordBatch, numbers: Integers) -> Slots:
        """The slots of rows of `last`: the values of a row take the place of the values that no later frame has."""
        if not self._kept or not len(numbers):
            return np.empty(0, np.int32)
        return self._last.lookup(self._keyed(self._last, keys, numbers % self._before))

    def _kept_cells(self, bound: BoundAggregate, slots: Slots, count: int) -> FrameValues:
        """The `count` kept values that an aggregate reads."""
        read = read_by(bound)
        if read not in self._kept:  # every row counts
            return FrameValues(np.zeros(count, np.int64), np.ones(count, np.bool_))
        values, valid = self._last.column(self._kept[read].name).gather(slots)
        return FrameValues(np.zeros(count, np.int64), values) if read.counts else FrameValues(as_numbers(values), valid)

    def _keep(self, rows: pa.RecordBatch, numbers: Integers, kept: BoolArray) -> None:
        """Keep the values of rows that later frames have, given the numbers of all rows within their keys."""
        if not self._kept or not self._before:
            return
        if not kept.all():
            rows, numbers = rows.filter(pa.array(kept)), numbers[kept]
        slots = self._last_slots(rows, numbers)
        for read, field in self._kept.items():
            column, cells = self._last.column(field.name), frame_values(read, rows)
            if read.counts:
                column.scatter(slots, cells.valid, np.ones(len(slots), np.bool_))
            else:
                column.scatter(slots, *column.from_arrow(rows.column(read.column)))
        self._last.present[slots] = True


def _divided(rows: pa.RecordBatch, parts: IntArray) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each part together, in their order."""
    order = np.argsort(parts, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
        yield rows.take(pa.array(places))


def _in_time_pieces(times: Integers) -> Iterator[Integers]:
    """Yield the rows with these times in pieces, earlier times first; rows of the same time are in the same piece."""
    if len(times) <= ROWS_AT_ONCE_MAX:
        if len(times):
            yield np.arange(len(times))
        return
    order = np.argsort(times, kind="stable")
    start = 0
    while start < len(order):
        last = times[order[min(start + ROWS_AT_ONCE_MAX, len(order)) - 1]]
        stop = int(np.searchsorted(times[order], last, side="right"))
        yield order[start:stop]
        start = stop
