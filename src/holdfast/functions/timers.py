"""Timers of a subtask: by key, kind and time, in a table of their own that is always in memory.

    process / on_timer ── register, delete ──► changes of the batch ──► table, at the end
    after the rows: due ones from the table, in order of time ──► on_timer, which may register more that are due

A timer is due once the watermark (event time) or the batch's planned time (processing time) has reached it. It is
removed before its `on_timer` is called, in the same transaction: it fires once, whatever fails in between.
"""

import heapq
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.functions.cells import Cursor
from holdfast.functions.columns import IntArray
from holdfast.functions.operator import TableSchema, Timers
from holdfast.state.keys import grouped_by
from holdfast.state.table import StateTable

KIND_KEY, TIME_KEY, KIND, TIME = "__timer_kind", "__timer_time", "__kind", "__time"
EVENT, PROCESSING = 0, 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def timers_schema(key_schema: pa.Schema) -> TableSchema:
    """Kind and time are also values: scanned as arrays for what is due."""
    keys = pa.schema([*key_schema, pa.field(KIND_KEY, pa.int8()), pa.field(TIME_KEY, pa.int64())])
    return TableSchema(grouped_by(keys, len(key_schema)), pa.schema([(KIND, pa.int8()), (TIME, pa.int64())]))


def to_datetime(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def to_micros(timestamp: Any) -> int:
    """Of a datetime (without a zone: UTC). Raises `TypeError`."""
    if not isinstance(timestamp, datetime):
        raise TypeError(f"a timer's timestamp is {timestamp!r}; expected a datetime")
    aware = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


class TimerService:
    """`ctx.timers`: timers of the current key. A timestamp is a datetime; without a zone it is UTC."""

    def __init__(self, set_timer: Callable[[int, int, bool], None]) -> None:
        self._set = set_timer

    def register_event_time(self, timestamp: datetime) -> None:
        """Call `on_timer` once the watermark has reached `timestamp`; once for a key, however often registered."""
        self._set(EVENT, to_micros(timestamp), True)

    def delete_event_time(self, timestamp: datetime) -> None:
        """Nothing where there is none."""
        self._set(EVENT, to_micros(timestamp), False)

    def register_processing_time(self, timestamp: datetime) -> None:
        """Call `on_timer` in the first batch whose `ctx.batch_time` has reached `timestamp`."""
        self._set(PROCESSING, to_micros(timestamp), True)

    def delete_processing_time(self, timestamp: datetime) -> None:
        """Nothing where there is none."""
        self._set(PROCESSING, to_micros(timestamp), False)


class NoTimers(TimerService):
    """Of functions without `on_timer`."""

    def __init__(self) -> None:
        super().__init__(self._refuse)

    def _refuse(self, kind: int, time_us: int, wanted: bool) -> None:
        raise UserFunctionError("ctx.timers needs a ProcessFunction that defines on_timer(self, timestamp, ctx)")


Timer = tuple[int, int, int]
"""Slot of the key in the operator's own table, kind, time."""


class TimerTable:
    """The timers of one subtask. `own` is the operator's own table, whose slots stand for keys."""

    def __init__(self, key_schema: pa.Schema, max_parallelism: int, own: StateTable, cursor: Cursor) -> None:
        schema = timers_schema(key_schema)
        self.table = StateTable(schema.keys, schema.values, max_parallelism)
        self.service = TimerService(self._set_current)
        self._own = own
        self._cursor = cursor
        self._changes: dict[Timer, bool] = {}
        self._undo: list[tuple[Timer, bool | None]] = []
        self._due: list[tuple[int, int, int]] = []
        self._firing: tuple[int, int] | None = None
        """While timers fire: their kind, and up to which time they are due."""
        self._fired = 0

    def save(self) -> int:
        """What `put_back` takes to undo all that happens from now on."""
        return len(self._undo)

    def put_back(self, saved: int) -> None:
        while len(self._undo) > saved:
            timer, before = self._undo.pop()
            if before is None:
                del self._changes[timer]
            else:
                self._changes[timer] = before

    def reset(self) -> None:
        """The batch is over."""
        self._changes.clear()
        self._undo.clear()
        self._due.clear()
        self._firing = None
        self._fired = 0

    def fire(self, kind: int, until_us: int | None, own_slots: Callable[[pa.RecordBatch], IntArray]) -> Iterator[int]:
        """Each due timer's time, in order; the cursor stands at its key. Those that become due meanwhile as well.

        `own_slots` looks keys up in the operator's own table and loads their states.
        """
        if until_us is None:
            return
        stored = self._stored_due(kind, until_us, own_slots)
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
        """Write all changes of the batch; returns what is left."""
        if self._changes:
            timers = np.array(list(self._changes), np.int64).reshape(-1, 3)
            keys = self._own.keys_of(timers[:, 0])
            kinds, times = timers[:, 1].astype(np.int8), timers[:, 2].copy()
            arrays = [*keys.columns, pa.array(kinds), pa.array(times)]
            slots = self.table.lookup(pa.RecordBatch.from_arrays(arrays, schema=self.table.key_schema))
            valid = np.ones(len(slots), np.bool_)
            self.table.column(KIND).scatter(slots, kinds, valid)
            self.table.column(TIME).scatter(slots, times, valid)
            self.table.present[slots] = np.fromiter(self._changes.values(), np.bool_, len(slots))
        return Timers(self._earliest(EVENT), self._earliest(PROCESSING), self._fired)

    def _set_current(self, kind: int, time_us: int, wanted: bool) -> None:
        timer = (self._cursor.slot, kind, time_us)
        self._set(timer, wanted)
        if wanted and self._firing is not None and kind == self._firing[0] and time_us <= self._firing[1]:
            heapq.heappush(self._due, (time_us, len(self._undo) + len(self._changes), timer[0]))

    def _set(self, timer: Timer, wanted: bool) -> None:
        self._undo.append((timer, self._changes.get(timer)))
        self._changes[timer] = wanted

    def _stored_due(
        self, kind: int, until_us: int, own_slots: Callable[[pa.RecordBatch], IntArray]
    ) -> dict[Timer, None]:
        """Those that are in the table, in order of time, then key."""
        if not len(self.table):
            return {}
        times = self.table.column(TIME).values
        found = np.flatnonzero(self.table.present & (self.table.column(KIND).values == kind) & (times <= until_us))
        names = self._own.key_schema.names
        keys = self.table.keys_of(found).sort_by([(name, "ascending") for name in (TIME_KEY, *names)])
        slots = own_slots(pa.RecordBatch.from_arrays(keys.select(names).columns, schema=self._own.key_schema))
        due = zip(slots.tolist(), keys[TIME_KEY].to_pylist(), strict=True)
        return {(slot, kind, time_us): None for slot, time_us in due}

    def _earliest(self, kind: int) -> int | None:
        if not len(self.table):
            return None
        mine = self.table.present & (self.table.column(KIND).values == kind)
        return int(self.table.column(TIME).values[mine].min()) if mine.any() else None
