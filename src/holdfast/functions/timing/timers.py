"""Timers of a subtask: by key, kind and time, rows of a table of their own, in the job's state backend.

    process / on_timer ── register, delete ──► changes of the batch ──► table, at the end
    after the rows: due ones by the index, in order of time ──► on_timer, which may register more that are due

A timer is due once the watermark (event time) or the batch's planned time (processing time) has reached it. It is
removed before its `on_timer` is called, in the same transaction: it fires once, whatever fails in between.

The index (`timer_index`) is in memory and stored nowhere. It follows the table: the timers of a batch are brought into
it when the next batch begins and finds that batch committed, and it is made anew from the table after a restore or a
rewind.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import UserFunctionError
from holdfast.functions.operator import NewTable, TableSchema, Timers
from holdfast.functions.rows.calls import Cursor
from holdfast.functions.rows.times import to_micros
from holdfast.functions.timing.timer_index import TIME_KEY, TimerRuns
from holdfast.functions.undo_log import UndoLog
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Slots
from holdfast.state.survey import START
from holdfast.state.table import StateTable
from holdfast.watermarks import END_US

TIMERS = "timers"
"""The name of the timers' table."""
KIND_KEY = "__timer_kind"
EVENT, PROCESSING = 0, 1
KINDS = (EVENT, PROCESSING)
DELETED_LEAST = 65_536
"""Number of deleted timers up to which the index is never built anew, however few timers are left. A higher value takes
more memory and builds the index anew less often."""
REBUILD_ROWS = 65_536


def timers_schema(key_schema: pa.Schema) -> TableSchema:
    """A timer is a key without values."""
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


@dataclass
class _Batch:
    """Changes of the batch in flight that the index does not know yet."""

    commits: int | None
    """The commits of the table when the batch began."""
    until: dict[int, int] = field(default_factory=dict)
    """The time up to which timers have fired, by kind."""
    added: list[pa.RecordBatch] = field(default_factory=list)


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
        self._index = self._new_index()
        self._batch: _Batch | None = None

    @property
    def index_bytes(self) -> int:
        return sum(runs.memory_bytes for runs in self._index.values())

    def begin(self) -> None:
        """A batch begins: the index is brought to where the table is."""
        before, commits = self._batch, self.table.commits
        if before is None or commits is None or commits not in (before.commits, (before.commits or 0) + 1):
            self._rebuild()
        elif commits != before.commits:
            self._apply(before)
        self._batch = _Batch(commits)

    def reset(self) -> None:
        """Forget the changes of the batch."""
        self._changes.clear()
        self._sets = 0
        self._due.clear()
        self._stored.clear()
        self._firing = None
        self._fired = 0

    def fire(self, kind: int, until_us: int | None, own_slots: Callable[[pa.RecordBatch], Slots]) -> Iterator[int]:
        """Each due timer's time, in order; the cursor stands at its key. Those that become due meanwhile as well.

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
        assert self._batch is not None, "begun"
        if self._changes:
            timers = np.array(list(self._changes), np.int64).reshape(-1, 3)
            keys = self._own.keys_of(timers[:, 0].astype(np.int32))
            rows = self._rows(keys, timers[:, 1].astype(np.int8), pa.array(timers[:, 2]))
            slots = self.table.lookup(rows)
            before = self.table.present[slots]
            wanted = np.fromiter(self._changes.values(), np.bool_, len(slots))
            self.table.present[slots] = wanted
            self._batch.added.append(rows.filter(pa.array(wanted & ~before)))
        return Timers(self._earliest(EVENT), self._earliest(PROCESSING), self._fired)

    def _set_current(self, kind: int, time_us: int, wanted: bool) -> None:
        if kind == EVENT and wanted:
            if not self._watermarked:
                raise UserFunctionError(
                    "ctx.timers.register_event_time() needs a watermark, without which the timer would never fire: "
                    "add .with_watermark(column, delay) right after read(), or use register_processing_time()"
                )
            if self._firing == (EVENT, END_US):
                return  # The input is complete and no event time comes any more: those that are left fire once.
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
        assert self._batch is not None, "begun"
        self._batch.until[kind] = until_us
        due = self._index[kind].due(until_us)
        if not due.num_rows:
            return {}
        keys = pa.RecordBatch.from_arrays(due.columns[:-1], schema=self._own.key_schema)
        rows = self._rows(keys, np.full(due.num_rows, kind, np.int8), due.column(TIME_KEY))
        there = pa.array(self.table.present[self.table.lookup(rows)])
        slots, times = own_slots(keys.filter(there)), due.column(TIME_KEY).filter(there)
        return {(slot, kind, time_us): None for slot, time_us in zip(slots.tolist(), times.to_pylist(), strict=True)}

    def _rows(self, keys: pa.RecordBatch, kinds: Any, times: Any) -> pa.RecordBatch:
        arrays = [*keys.columns, pa.array(kinds), times]
        return pa.RecordBatch.from_arrays(arrays, schema=self.table.key_schema)

    def _earliest(self, kind: int) -> int | None:
        """Return the time of the earliest timer left; a deleted timer may be among them, and a batch is then started
        in vain."""
        assert self._batch is not None, "begun"
        runs = self._index[kind]
        times = [runs.earliest(self._batch.until.get(kind))]
        times += [pc.min(_of_kind(rows, kind, runs.schema).column(TIME_KEY)).as_py() for rows in self._batch.added]
        return min((time_us for time_us in times if time_us is not None), default=None)

    # The index.

    def _new_index(self) -> dict[int, TimerRuns]:
        schema = pa.schema([*self._own.key_schema, pa.field(TIME_KEY, pa.int64())])
        return {kind: TimerRuns(schema) for kind in KINDS}

    def _add(self, rows: pa.RecordBatch) -> None:
        for kind, runs in self._index.items():
            runs.add(_of_kind(rows, kind, runs.schema))

    def _apply(self, batch: _Batch) -> None:
        """Move the timers of a committed batch into the index."""
        for kind, until_us in batch.until.items():
            self._index[kind].drop(until_us)
        for rows in batch.added:
            self._add(rows)
        deleted = sum(map(len, self._index.values())) - len(self.table)
        if deleted > max(DELETED_LEAST, len(self.table)):
            self._rebuild()

    def _rebuild(self) -> None:
        """Build the index anew from the table, as the table is before a batch changes it."""
        self._index, place = self._new_index(), START
        while len(self.table):
            found = self.table.survey(place, REBUILD_ROWS, None)
            self._add(found.keys)
            place = found.place
            if place == START:
                break


def _of_kind(rows: pa.RecordBatch, kind: int, schema: pa.Schema) -> pa.RecordBatch:
    """Key columns and time of the timers of that kind."""
    chosen = rows.filter(pc.equal(rows.column(KIND_KEY), kind))
    return pa.RecordBatch.from_arrays([*chosen.columns[:-2], chosen.columns[-1]], schema=schema)
