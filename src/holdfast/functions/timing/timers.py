"""Timers of a subtask: by key, kind and time, rows of a table of their own, in the job's state backend.

    process / on_timer ── register, delete ──► changes of the batch ──► table, at the end
    after the rows: due ones by the index, in order of time ──► on_timer, which may register more that are due

A timer is due once the watermark (event time) or the batch's planned time (processing time) has reached it. It is
removed before its `on_timer` is called, in the same transaction: it fires once, whatever fails in between.

Each kind has an index of the timers by time (`time_index`), which follows the table.
"""

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import UserFunctionError
from holdfast.functions.operator import NewTable, TableSchema, Timers
from holdfast.functions.rows.calls import Cursor
from holdfast.functions.rows.columns import concatenated
from holdfast.functions.rows.times import to_micros
from holdfast.functions.timing.time_index import FollowedIndex, TimeBuckets, keys_of_table
from holdfast.functions.undo_log import UndoLog
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable
from holdfast.watermarks import END_US

TIMERS = "timers"
"""The name of the timers' table."""
KIND_KEY, TIME_KEY = "__timer_kind", "__timer_time"
EVENT, PROCESSING = 0, 1
KINDS = (EVENT, PROCESSING)
BUCKET_US = 60_000_000
"""Width of a bucket of timers in microseconds. A higher value costs less overhead, but more timers are compared in
vain."""
DELETED_LEAST = 65_536
"""Number of deleted timers up to which the index is never built anew, however few timers are left. A higher value takes
more memory and builds the index anew less often."""


def timers_schema(key_schema: pa.Schema) -> TableSchema:
    """Return the schema of the timers' table: a timer is a key without values."""
    keys = pa.schema([*key_schema, pa.field(KIND_KEY, pa.int8()), pa.field(TIME_KEY, pa.int64())])
    return TableSchema(grouped_by(keys, len(key_schema)), pa.schema([]))


class TimerService:
    """`ctx.timers`: timers of the current key. A timestamp is a datetime; without a zone it is UTC."""

    def __init__(self, set_timer: Callable[[int, int, bool], None]) -> None:
        self._set = set_timer

    def register_event_time(self, timestamp: datetime) -> None:
        """Call `on_timer` once the watermark has reached `timestamp`; once for a key, however often registered."""
        self._set(EVENT, to_micros(timestamp), True)

    def delete_event_time(self, timestamp: datetime) -> None:
        """Delete a timer of the current key; do nothing if there is no such timer."""
        self._set(EVENT, to_micros(timestamp), False)

    def register_processing_time(self, timestamp: datetime) -> None:
        """Call `on_timer` in the first batch whose `ctx.batch_time` has reached `timestamp`."""
        self._set(PROCESSING, to_micros(timestamp), True)

    def delete_processing_time(self, timestamp: datetime) -> None:
        """Delete a timer of the current key; do nothing if there is no such timer."""
        self._set(PROCESSING, to_micros(timestamp), False)


class NoTimers(TimerService):
    """The timers of functions without `on_timer`."""

    def __init__(self) -> None:
        super().__init__(self._refuse)

    def _refuse(self, kind: int, time_us: int, wanted: bool) -> None:
        raise UserFunctionError(
            "ctx.timers needs a ProcessFunction that defines on_timer(self, timestamp, ctx), or a BatchFunction that "
            "defines on_timers(self, keys, timestamps, ctx)"
        )


Timer = tuple[int, int, int]
"""Slot of the key in the operator's own table, kind, time."""


class TimerTable:
    """The timers of a subtask. `own` is the operator's own table, whose slots stand for keys.

    `watermarked`: whether the operator's input has a watermark; without, event-time timers would never fire.
    """

    def __init__(
        self,
        key_schema: pa.Schema,
        max_parallelism: int,
        new_table: NewTable,
        own: StateTable,
        cursor: Cursor,
        undo_log: UndoLog,
        watermarked: bool = True,
    ) -> None:
        schema = timers_schema(key_schema)
        self.table = new_table(schema.keys, schema.values, max_parallelism)
        self.service = TimerService(self._set_current)
        self._own = own
        self._cursor = cursor
        self._watermarked = watermarked
        self._changes: dict[Timer, bool] = {}
        self._undo_log = undo_log
        self._sets = 0
        """Changes of timers in this batch, without those that were undone."""
        self._due: list[tuple[int, int, int]] = []
        self._stored: dict[int, dict[Timer, None]] = {}
        self._firing: tuple[int, int] | None = None
        """Kind of the timers that fire now, and the time up to which they are due; None while no timers fire."""
        self._fired = 0
        self._indexes = {kind: timer_index(self.table, kind) for kind in KINDS}

    @property
    def index_bytes(self) -> int:
        """Memory of the timers in order of time."""
        return sum(index.memory_bytes for index in self._indexes.values())

    def begin(self) -> None:
        """Begin a batch: bring the indexes to the state of the table."""
        for index in self._indexes.values():
            index.begin()

    def reset(self) -> None:
        """Forget the changes of the batch."""
        self._changes.clear()
        self._sets = 0
        self._due.clear()
        self._stored.clear()
        self._firing = None
        self._fired = 0

    def fire(self, kind: int, until_us: int | None, own_slots: Callable[[pa.RecordBatch], Slots]) -> Iterator[int]:
        """Yield the time of each due timer, in order, with the cursor at its key; timers that become due meanwhile are
        among them.

        `own_slots` looks keys up in the operator's own table and loads their states.
        """
        if until_us is None:
            return
        stored = self._stored.get(kind)
        if stored is None:
            stored = self._stored[kind] = self._stored_due(kind, until_us, own_slots)
        new = [timer for timer in self._changes if timer[1] == kind and timer[2] <= until_us and timer not in stored]
        self._due = [(timer[2], number, timer[0]) for number, timer in enumerate([*stored, *new])]
        heapq.heapify(self._due)
        self._firing = (kind, until_us)
        while self._due:
            time_us, _, slot = heapq.heappop(self._due)
            timer = (slot, kind, time_us)
            if self._changes.get(timer, timer in stored):
                self._set(timer, False)
                self._fired += 1
                self._cursor.slot = slot
                yield time_us
        self._firing = None

    def store(self) -> Timers:
        """Write all changes of the batch; return the work that is left."""
        if self._changes:
            timers = np.array(list(self._changes), np.int64).reshape(-1, 3)
            keys = self._own.keys_of(timers[:, 0].astype(np.int32))
            rows = self._rows(keys, timers[:, 1].astype(np.int8), pa.array(timers[:, 2]))
            slots = self.table.lookup(rows)
            before = self.table.present[slots]
            wanted = np.fromiter(self._changes.values(), np.bool_, len(slots))
            self.table.present[slots] = wanted
            added = rows.filter(pa.array(wanted & ~before))
            for kind, index in self._indexes.items():
                index.add(added.filter(pc.equal(added.column(KIND_KEY), kind)))
        return Timers(self._indexes[EVENT].earliest(), self._indexes[PROCESSING].earliest(), self._fired)

    def _set_current(self, kind: int, time_us: int, wanted: bool) -> None:
        if kind == EVENT and wanted:
            if not self._watermarked:
                raise UserFunctionError(
                    "ctx.timers.register_event_time() needs a watermark, without which the timer would never fire: "
                    "add .with_watermark(column, delay) right after read(), or use register_processing_time()"
                )
            if self._firing == (EVENT, END_US):
                return  # The input is complete and no event time comes any more: the remaining timers fire once.
        timer = (self._cursor.slot, kind, time_us)
        self._set(timer, wanted)
        if wanted and self._firing is not None and kind == self._firing[0] and time_us <= self._firing[1]:
            heapq.heappush(self._due, (time_us, self._sets + len(self._changes), timer[0]))

    def _set(self, timer: Timer, wanted: bool) -> None:
        if self._undo_log.is_kept:
            self._undo_log.note(partial(self._set_back, timer, self._changes.get(timer)))
        self._sets += 1
        self._changes[timer] = wanted

    def _set_back(self, timer: Timer, before: bool | None) -> None:
        self._sets -= 1
        if before is None:
            del self._changes[timer]
        else:
            self._changes[timer] = before

    def _stored_due(self, kind: int, until_us: int, own_slots: Callable[[pa.RecordBatch], Slots]) -> dict[Timer, None]:
        """Return the timers in the table, in order of time, then key."""
        index = self._indexes[kind]
        due = concatenated(index.between(None, until_us + 1), self.table.key_schema)
        index.drop(until_us + 1)
        if not due.num_rows:
            return {}
        due = due.filter(pa.array(self.table.present[self.table.lookup(due)]))
        names = self._own.key_schema.names
        due = due.sort_by([(name, "ascending") for name in (TIME_KEY, *names)])
        slots, times = own_slots(due.select(names)), due.column(TIME_KEY)
        return {(slot, kind, time_us): None for slot, time_us in zip(slots.tolist(), times.to_pylist(), strict=True)}

    def _rows(self, keys: pa.RecordBatch, kinds: Any, times: Any) -> pa.RecordBatch:
        arrays = [*keys.columns, pa.array(kinds), times]
        return pa.RecordBatch.from_arrays(arrays, schema=self.table.key_schema)


def timer_index(table: StateTable, kind: int) -> FollowedIndex:
    """Make the index of a table's timers of a kind. A deleted timer may stay in it until its time has come."""

    def entries(table: StateTable) -> Iterator[pa.RecordBatch]:
        for keys in keys_of_table(table):
            yield keys.filter(pc.equal(keys.column(KIND_KEY), kind))

    def new_buckets() -> TimeBuckets:
        return TimeBuckets(table.key_schema, TIME_KEY, BUCKET_US)

    return FollowedIndex(table, new_buckets, entries, DELETED_LEAST)
