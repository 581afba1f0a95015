"""Net changes that nobody has asked for yet: read from the table only when the changelog persists them.

    commit ──► segment: slots, and the old rows that undo needs anyway
    collect(up to batch N) ──► of the slots touched up to N, the rows as they were after N:
                               as they are now, or as a later batch (also one in flight) saved them before its touch

So a batch costs the changelog nothing, and a row touched by many batches is read once. Before slots lose their keys, or
memory gets short, what waits is read at once, batch by batch (`resolve`). Invariant: what waits names rows by slot.
Called under the table's lock. Does not own undo.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from holdfast.state import kernels
from holdfast.state.history import History, Segment
from holdfast.state.physical import Integers
from holdfast.state.rows import OldRows, Rows, concatenated

WAITING_BYTES_MAX = 256 * 1024 * 1024
"""What waits may take beyond what undo holds, which is mostly the same; past it, it is read."""


class Timeline:
    """Rows as they were, by going back over segments from the newest to the oldest."""

    def __init__(self, rows: Rows, segments: Sequence[OldRows]) -> None:
        self._rows = rows
        self._segments = segments
        self._saved = concatenated(segments) if segments else None
        self._ends = np.cumsum([len(each.slots) for each in segments])
        self._place = np.full(rows.capacity if segments else 0, -1, np.int64)

    def back_before(self, index: int) -> None:
        """From now on rows are as they were before segment `index`; after all later ones."""
        slots = self._segments[index].slots
        start = int(self._ends[index]) - len(slots)
        kernels.scatter(self._place, slots, np.arange(start, start + len(slots)))

    def copy(self, slots: Integers) -> OldRows:
        now = self._rows.copy(slots)
        if self._saved is None:
            return now
        places: Integers = kernels.gather(self._place, slots)
        saved = np.flatnonzero(places >= 0)
        now.overwrite(saved, self._saved, places[saved])
        return now


class Unlogged:
    """Segments of committed batches whose changes wait to be collected, and changes read before they were asked for."""

    def __init__(self, rows: Rows, history: History, stored: Callable[[OldRows], pa.RecordBatch]) -> None:
        self._rows = rows
        self._history = history
        self._stored = stored
        self._waiting: list[Segment] = []
        self._read: list[tuple[int, pa.RecordBatch]] = []
        self.memory_bytes = 0
        """What waits takes. Of the batches that are there, undo and this hold the newest, so the larger is the sum."""

    def add(self, segment: Segment) -> None:
        """The segment of the batch that is committed now, which the history has too."""
        self._waiting.append(segment)
        self.memory_bytes += segment.memory_bytes
        if self.memory_bytes > self._history.memory_bytes + WAITING_BYTES_MAX:
            self.resolve()

    def collect(self, up_to_batch: int, in_flight: OldRows | None) -> list[pa.RecordBatch]:
        """Takes out the changes of batches up to that one; `in_flight` was saved by the batch that is running."""
        changes = [rows for batch, rows in self._read if batch <= up_to_batch]
        self._read = [each for each in self._read if each[0] > up_to_batch]
        parts = [each.rows for each in self._waiting if each.batch <= up_to_batch]
        self._keep([each for each in self._waiting if each.batch > up_to_batch])
        if parts:
            later = [each.rows for each in self._by_slot(up_to_batch + 1)]
            timeline = Timeline(self._rows, later if in_flight is None else [*later, in_flight])
            for index in reversed(range(len(later) + (in_flight is not None))):
                timeline.back_before(index)
            changes.append(self._net(timeline, parts))
        return changes

    def resolve(self) -> None:
        """Read what waits, between batches: slots are about to be let go."""
        if not self._waiting:
            return
        segments = self._by_slot(self._waiting[0].batch)
        timeline = Timeline(self._rows, [each.rows for each in segments] if len(segments) > 1 else [])
        read = []
        for index in reversed(range(len(segments))):
            if segments[index] in self._waiting:
                read.append((segments[index].batch, self._changes(timeline, segments[index].rows)))
            if len(segments) > 1:
                timeline.back_before(index)
        self._read += reversed(read)
        self._keep([])

    def rewind(self, to_batch: int) -> None:
        """Later batches never were."""
        self._keep([each for each in self._waiting if each.batch <= to_batch])
        self._read = [each for each in self._read if each[0] <= to_batch]

    def _keep(self, waiting: list[Segment]) -> None:
        self._waiting = waiting
        self.memory_bytes = sum(each.memory_bytes for each in waiting)

    def _by_slot(self, from_batch: int) -> list[Segment]:
        """Segments of that batch and later ones, also such as undo had to give up."""
        found = {*self._waiting, *self._history.by_slot}
        return sorted((each for each in found if each.batch >= from_batch), key=lambda each: each.batch)

    def _net(self, timeline: Timeline, parts: Sequence[OldRows]) -> pa.RecordBatch:
        """The changes of neighbouring batches as one.

        Of several batches every row that they touched, whether it came back to what it was or not: what this is
        replayed upon may be a table as of a batch between them.
        """
        if len(parts) == 1:
            return self._changes(timeline, parts[0])
        touched = np.zeros(self._rows.capacity, np.bool_)
        for each in parts:
            kernels.fill(touched, each.slots, True)
        # In order of slots: the table is read from one end to the other.
        return self._stored(timeline.copy(np.flatnonzero(touched)))

    def _changes(self, timeline: Timeline, old: OldRows) -> pa.RecordBatch:
        now = timeline.copy(old.slots)
        return self._stored(now.only(self._rows.different(now, old)))
