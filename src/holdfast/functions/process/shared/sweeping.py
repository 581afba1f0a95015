"""Removal of expired values, also of keys that do not occur again.

    each batch, after its rows: a few rows of each table with a time to live ──► expired values are deleted
    a round over a table takes a quarter of the time to live (`SweepPace`); the first round is made at once

A removal is a change of the batch like any other: logged, undone with it, rewound past a checkpoint with it. A value
that has expired by the batch's planned time is invisible already, so results never depend on the progress of a round,
and a round simply starts again after a restart. If no rows come, the planner learns from `Timers` when to start a batch
for the removal.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.operator import Timers
from holdfast.functions.process.shared.entries import TIME, EntryTable, ListEntries, MapEntries
from holdfast.functions.process.shared.states import ListState, MapState, State, size_column, start_column, time_column
from holdfast.functions.rows.columns import AnyArray, BoolArray, IntArray
from holdfast.functions.rows.grouping import spans
from holdfast.functions.timing.expiry import BatchClock, Expiry, expired_rows
from holdfast.state.physical import Slots
from holdfast.state.survey import START
from holdfast.state.table import StateTable

ROUNDS = 4
"""Rounds over a table within the life of its values. A higher value removes values sooner, and looks at more rows."""
ROWS_LEAST = 1024
"""Least number of rows to look at, unless the table has fewer, since each look has a fixed cost."""
ROWS_MAX = 65_536
"""Rows of a table that a batch looks at, at most. A higher value removes sooner, and makes batches longer."""
IDLE_US_LEAST = 1_000_000
"""Least microseconds between two batches that are started only for removal."""

StoredCells = Mapping[str, tuple[AnyArray, BoolArray]]


class SweepPace:
    """The number of rows of a table to look at: so many a second that a round takes a fixed time, however often
    batches come."""

    def __init__(self, ttl_us: int) -> None:
        self._round_us = max(1, ttl_us // ROUNDS)
        self._owed: float | None = None
        self._at_us = 0

    def rows(self, size: int, now_us: int) -> int:
        """Number of rows to look at now, of the `size` rows of the table."""
        passed = 1.0 if self._owed is None else max(0, now_us - self._at_us) / self._round_us
        self._owed = min(size, (self._owed or 0.0) + size * passed)
        self._at_us = now_us
        return 0 if self._owed < min(size, ROWS_LEAST) else min(ROWS_MAX, max(ROWS_LEAST, round(self._owed)))

    def seen(self, rows: int, over: bool) -> None:
        """Note the rows that were looked at. `over`: they ended a round, and the next round begins when its time
        comes."""
        assert self._owed is not None, "asked before"
        self._owed = 0.0 if over else max(0.0, self._owed - rows)

    def next_us(self, size: int) -> int | None:
        """Time at which the next look is due if no batch comes before; None if there is nothing to look at."""
        if not size:
            return None
        missing = max(0.0, min(size, ROWS_MAX) - (self._owed or 0.0))
        return self._at_us + max(IDLE_US_LEAST, math.ceil(self._round_us * missing / size))


class _Part(ABC):
    """The sweep of a table whose rows expire. Sizes and presence of keys are in the operator's `own` table."""

    def __init__(self, own: StateTable, table: StateTable, ttl_us: int, clock: BatchClock) -> None:
        self.table = table
        self.pace = SweepPace(ttl_us)
        self._own = own
        self._clock = clock
        self._place = START

    def look(self) -> tuple[int, list[Slots]]:
        """Continue the round; return the number of removed values, and the slots of own rows that lost a value."""
        rows_max = self.pace.rows(len(self.table), self._clock.now_us)
        removed, touched = 0, []
        while rows_max > 0:
            before, found = self._place, self.table.survey(self._place, rows_max, self._wanted)
            self._place = found.place
            if found.keys.num_rows:
                count, slots = self._remove(found.keys)
                removed += count
                touched.append(slots)
            rows_max -= found.seen
            self.pace.seen(found.seen, found.place == START)
            if found.place == START or before.key is not None:
                break
        return removed, touched

    @abstractmethod
    def _wanted(self, cells: StoredCells) -> BoolArray:
        """Mark the rows with an expired value, or with a value whose time has not begun."""

    @abstractmethod
    def _remove(self, keys: pa.RecordBatch) -> tuple[int, Slots]: ...


class _Values(_Part):
    """The values in the operator's own table."""

    def __init__(self, own: StateTable, expiries: Mapping[str, Expiry], clock: BatchClock) -> None:
        super().__init__(own, own, min(each.ttl_us for each in expiries.values()), clock)
        self._expiries = expiries

    def _wanted(self, cells: StoredCells) -> BoolArray:
        wanted = np.zeros(len(cells[next(iter(self._expiries))][1]), np.bool_)
        for name, expiry in self._expiries.items():
            times, known = cells[time_column(name)]
            wanted |= cells[name][1] & (~known | expired_rows(times, known, expiry, self._clock.now_us))
        return wanted

    def _remove(self, keys: pa.RecordBatch) -> tuple[int, Slots]:
        slots, removed = self.table.lookup(keys), 0
        for name, expiry in self._expiries.items():
            column, time = self.table.column(name), self.table.column(time_column(name))
            times, known = time.gather(slots)
            there = column.valid[slots]
            gone = slots[there & expired_rows(times, known, expiry, self._clock.now_us)]
            column.clear(gone)
            time.clear(gone)
            new = slots[there & ~known]
            time.scatter(new, np.full(len(new), self._clock.now_us), np.ones(len(new), np.bool_))
            removed += len(gone)
        return removed, slots


class _Entries(_Part):
    """A list's elements or a map's entries: rows of a table of their own."""

    def __init__(self, own: StateTable, name: str, rows: EntryTable, expiry: Expiry, clock: BatchClock) -> None:
        super().__init__(own, rows.table, expiry.ttl_us, clock)
        self._name = name
        self._rows = rows
        self._expiry = expiry

    def _wanted(self, cells: StoredCells) -> BoolArray:
        times, known = cells[TIME]
        return ~known | expired_rows(times, known, self._expiry, self._clock.now_us)

    def _remove(self, keys: pa.RecordBatch) -> tuple[int, Slots]:
        self._rows.undo_log = None
        slots = self.table.lookup(keys)
        self._rows.begin_time(slots)
        expired = self.table.present[slots] & ~self._rows.alive(slots)
        keys = keys.filter(pa.array(expired))
        if not keys.num_rows:
            return 0, slots[:0]
        own_schema = self._own.key_schema
        own_keys = pa.RecordBatch.from_arrays(keys.columns[: len(own_schema)], schema=own_schema)
        own_slots, first, groups = np.unique(self._own.lookup(own_keys), return_index=True, return_inverse=True)
        distinct = own_keys.take(pa.array(first))
        return self._take_out(distinct, own_slots, groups.astype(np.int64), keys.columns[-1]), own_slots

    @abstractmethod
    def _take_out(self, keys: pa.RecordBatch, slots: Slots, groups: IntArray, last: Any) -> int:
        """Remove entries, by the index of their key among the distinct `keys` and their `last` key column."""

    def _get(self, column: str, slots: Slots) -> IntArray:
        values, valid = self._own.column(column).gather(slots)
        return np.where(valid, values, 0)

    def _put(self, column: str, slots: Slots, values: IntArray) -> None:
        self._own.column(column).scatter(slots, values, values > 0)


class _Elements(_Entries):
    """Elements expire from the front, since they were appended in order of time. A live element keeps the expired
    elements behind it."""

    def _take_out(self, keys: pa.RecordBatch, slots: Slots, groups: IntArray, last: Any) -> int:
        size, start = size_column(self._name), start_column(self._name)
        sizes, starts = self._get(size, slots), self._get(start, slots)
        stops = starts.copy()
        np.maximum.at(stops, groups, last.to_numpy() + 1)
        lengths = np.minimum(np.minimum(stops - starts, sizes), ROWS_MAX)
        of, positions = spans(lengths, starts)
        elements = self._rows.slots(keys, of, pa.array(positions))
        alive = self._rows.alive(elements)
        gone = lengths.copy()
        np.minimum.at(gone, of[alive], positions[alive] - starts[of[alive]])
        self._rows.delete(elements[positions < (starts + gone)[of]])
        self._put(size, slots, sizes - gone)
        self._put(start, slots, np.where(gone < sizes, starts + gone, 0))
        return int(gone.sum())


class _MapEntries(_Entries):
    def __init__(self, own: StateTable, name: str, entries: MapEntries, expiry: Expiry, clock: BatchClock) -> None:
        super().__init__(own, name, entries.rows, expiry, clock)
        self._map = entries

    def _take_out(self, keys: pa.RecordBatch, slots: Slots, groups: IntArray, last: Any) -> int:
        self._map.order.rows.undo_log = None
        size = size_column(self._name)
        nothing = pa.nulls(len(groups), self.table.value_schema.field(0).type)
        before = self._get(size, slots)
        after = self._map.put(keys, before, groups, last, nothing, np.zeros(len(groups), np.bool_))
        self._put(size, slots, after)
        return int((before - after).sum())


@dataclass(frozen=True)
class Swept:
    """Number of values that were removed, and the `batch_time` in microseconds of the next look even without rows."""

    removed: int
    next_us: int | None


class ExpirySweeper:
    """The sweeper of an operator's subtask. `entries` holds the entries of its lists and maps."""

    def __init__(
        self,
        own: StateTable,
        states: Mapping[str, State],
        entries: Mapping[str, ListEntries | MapEntries],
        clock: BatchClock,
    ) -> None:
        self._own = own
        self._holders = [
            size_column(name) if isinstance(state, ListState | MapState) else name for name, state in states.items()
        ]
        expiries = {name: state.expiry for name, state in states.items() if state.expiry is not None}
        self._parts: list[_Part] = []
        for name, expiry in expiries.items():
            held = entries.get(name)
            if isinstance(held, ListEntries):
                self._parts.append(_Elements(own, name, held.rows, expiry, clock))
            elif isinstance(held, MapEntries):
                self._parts.append(_MapEntries(own, name, held, expiry, clock))
        values = {name: expiry for name, expiry in expiries.items() if name not in entries}
        if values:
            self._parts.append(_Values(own, values, clock))

    def sweep(self) -> Swept:
        """Remove some of the expired values, after the rows of a batch, when everything is written."""
        removed = 0
        for part in self._parts:
            count, touched = part.look()
            removed += count
            for slots in touched:
                self._own.present[slots] = self._hold_something(slots)
        due = [time_us for part in self._parts if (time_us := part.pace.next_us(len(part.table))) is not None]
        return Swept(removed, min(due, default=None))

    def _hold_something(self, slots: Slots) -> BoolArray:
        """Return a mask of the rows in the operator's own table with any value, element or entry."""
        some = np.zeros(len(slots), np.bool_)
        for name in self._holders:
            some |= self._own.column(name).valid[slots]
        return some


def with_sweep(timers: Timers | None, swept: Swept) -> Timers | None:
    """Join timers and sweep to the work that a batch left to do by time; None if there is no work by time."""
    if timers is None and swept.next_us is None and not swept.removed:
        return None
    timers = timers or Timers(None, None, 0)
    due = [time_us for time_us in (timers.processing_us, swept.next_us) if time_us is not None]
    return Timers(timers.event_us, min(due, default=None), timers.fired, swept.removed)
