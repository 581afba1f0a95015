"""The function that computes aggregates over rows: rows wait for the watermark, and are given out in order of time.

rows of a batch ──► waiting rows of each key ──► a timer at the newest time of each key's rows
timer ──► waiting rows up to its time, in order ──► each with the aggregate of the values before it ──► `last`
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.functions.process.declared import BatchFunction, Context
from holdfast.functions.process.shared.states import ListState

AGGREGATES_OVER_ROWS = ("mean", "sum", "min", "max", "count")
"""The aggregates of values that are not null. Without such values the result is null, or 0 for `count`."""
TIME, VALUE = "__row_time", "__row_value"
"""The last columns: the time of a row, further values that order rows of the same time, and the value that is
aggregated. The other columns are given out unchanged."""


class _LastRows(BatchFunction):
    """An aggregate over each row and the `before` rows of its key before it."""

    waiting: ListState
    last: ListState
    aggregate: str
    before: int
    output: pa.Schema

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Context) -> None:
        times = batch.column(TIME)
        if times.null_count:
            raise ValueError("the time of ORDER BY is null")
        self.waiting.append(pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema)), groups)
        newest = np.full(keys.num_rows, np.iinfo(np.int64).min)
        np.maximum.at(newest, groups, times.cast(pa.int64()).to_numpy())
        ctx.timers.register_event_time(pa.array(newest).cast(times.type))

    def on_timers(self, keys: pa.RecordBatch, timestamps: pa.Array, ctx: Context) -> pa.RecordBatch:
        rows, parents = _flat(self.waiting.get())
        due = pc.less_equal(rows.field(TIME), timestamps.cast(rows.type.field(TIME).type).take(pa.array(parents)))
        rest = pc.invert(due)
        self.waiting.clear()
        self.waiting.append(rows.filter(rest), parents[rest.to_numpy(zero_copy_only=False)])
        rows, parents = rows.filter(due), parents[due.to_numpy(zero_copy_only=False)]
        order = _in_order(rows, parents)
        rows, parents = rows.take(order), parents[order.to_numpy()]
        before, of_before = _flat(self.last.get())
        values = pa.concat_arrays([before, rows.field(VALUE)])
        owners = np.concatenate([of_before, parents])
        joined = np.argsort(owners, kind="stable")
        found = self._aggregated(values.take(pa.array(joined)), owners[joined])
        place = np.empty(len(joined), np.int64)
        place[joined] = np.arange(len(joined))
        made = found.take(pa.array(place[len(before) :]))
        self._keep_last(values.take(pa.array(joined)), owners[joined])
        columns = [rows.field(name) for name in self.output.names[:-1]]
        return pa.RecordBatch.from_arrays([*columns, made.cast(self.output.field(-1).type)], schema=self.output)

    def _keep_last(self, values: pa.Array, owners: Any) -> None:
        """Keep the last values of each key, which the aggregates of later rows include."""
        _, counts = np.unique(owners, return_counts=True)
        behind = np.repeat(np.cumsum(counts), counts) - np.arange(len(owners))
        kept = behind <= self.before
        self.last.clear()
        self.last.append(values.filter(pa.array(kept)), owners[kept])

    def _aggregated(self, values: pa.Array, owners: Any) -> pa.Array:
        """Return the aggregate of each value and the values before it. The values are in order, key by key."""
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        ranks = np.arange(len(owners)) - np.repeat(starts, np.diff(np.append(starts, len(owners))))
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        counts, made = valid.astype(np.int64), _numbers(values, self.aggregate)
        first = made.copy()
        for behind in range(1, min(self.before, int(ranks.max(initial=0))) + 1):
            with_row = np.flatnonzero((ranks >= behind) & np.roll(valid, behind))
            _combine(self.aggregate, made, counts, first, with_row, behind)
            counts[with_row] += 1
        if self.aggregate == "count":
            return pa.array(counts)
        if self.aggregate == "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                made = made.astype(np.float64) / counts
        return pa.array(made.tolist() if made.dtype == object else made, mask=counts == 0)


def _combine(aggregate: str, made: Any, counts: Any, first: Any, rows: Any, behind: int) -> None:
    """Add the values that are `behind` rows before the given rows to the aggregates of these rows."""
    others = first[rows - behind]
    if aggregate in ("mean", "sum"):
        made[rows] += others
    elif aggregate in ("min", "max"):
        before = made[rows]  # NaN is above every number; of equal values, 0.0 and -0.0, the earlier counts
        earlier = (others <= before) | np.isnan(before) if aggregate == "min" else (others >= before) | np.isnan(others)
        made[rows] = np.where(earlier | (counts[rows] == 0), others, before)


def _numbers(values: pa.Array, aggregate: str) -> Any:
    """Return values as numbers, with 0 for null. Whole numbers that may overflow become Python's."""
    kind = values.type
    whole = values.cast(pa.int64()) if pa.types.is_timestamp(kind) or pa.types.is_boolean(kind) else values
    found = pc.fill_null(whole, 0).to_numpy(zero_copy_only=False).copy()
    if pa.types.is_integer(kind):
        found = found.astype(np.int64)
        if aggregate in ("sum", "mean") and len(found) and np.abs(found.astype(np.float64)).max() > 2.0**48:
            return found.astype(object)
    return found.astype(np.float64) if pa.types.is_floating(kind) else found


def _flat(lists: pa.Array) -> tuple[Any, Any]:
    counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return lists.flatten(), np.repeat(np.arange(len(lists)), counts)


def _in_order(rows: pa.Array, parents: Any) -> pa.Array:
    """Return the order of rows by key, time and further values; rows that are equal in all stay in order of arrival."""
    columns = {"__key": pa.array(parents)}
    for name in (field.name for field in rows.type if field.name.startswith(TIME)):
        columns |= {f"{name} is there": rows.field(name).is_valid(), name: rows.field(name)}  # nulls first
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])


def last_rows(rows: pa.Schema, output: pa.Schema, aggregate: str, before: int) -> BatchFunction:
    """Return the function for rows of a schema. Its states have the types of the rows."""
    states = {"waiting": ListState(pa.struct(list(rows))), "last": ListState(rows.field(VALUE).type)}
    made: BatchFunction = type("LastRows", (_LastRows,), states)()
    vars(made).update(output=output, aggregate=aggregate, before=before)
    return made
