"""The spool: the chain of segments that are stored and not yet behind a checkpoint. Thread-safe; no I/O.

    reader ──append──► segment n, n+1, n+2 … ──plan──► reads of a batch
                          └── let go once a checkpoint is past it

A position is (number of a segment, sequence number within it). The place behind a segment's last row is the beginning
of the next segment, also before that is stored.
"""

import threading
from dataclasses import dataclass

import msgspec
import numpy as np

from holdfast.availability import SnapshotAvailability
from holdfast.sources.base import SplitRead
from holdfast.sources.postgres.segments import Segment, SegmentPart

SPLIT = "changes"
"""The only split: all tables of a slot share one position, so that a transaction over several tables stays whole."""
SEGMENT, SEQUENCE_IN, SYSTEM, SLOT, LSN_READ = "segment", "sequence", "system", "slot", "lsn"
"""Names of the entries in the offsets."""


class SegmentReadDetail(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a segment that a task needs."""

    name: str
    parts: dict[str, SegmentPart]


@dataclass(frozen=True)
class SpoolPosition:
    """A position in the chain."""

    segment: int
    sequence: int


class Spool:
    """The chain; `refusal` says why its beginning may not be a cut (empty: it may)."""

    def __init__(self, split_transactions: bool) -> None:
        self._split_transactions = split_transactions
        self._lock = threading.Condition()
        self._segments: list[Segment] = []
        self._first = 0
        self._planned = SpoolPosition(0, 0)
        """End of the last batch that was planned."""

    def reset(self, first: int, segments: list[Segment]) -> None:
        """Begin anew with these segments, of which the first has that number."""
        with self._lock:
            self._first, self._segments = first, list(segments)

    def append(self, segment: Segment) -> None:
        with self._lock:
            self._segments.append(segment)
            self._lock.notify_all()

    @property
    def end(self) -> SpoolPosition:
        with self._lock:
            return SpoolPosition(self._first + len(self._segments), 0)

    @property
    def last(self) -> Segment | None:
        with self._lock:
            return self._segments[-1] if self._segments else None

    @property
    def size(self) -> int:
        """Return the bytes of all segments in the spool."""
        with self._lock:
            return sum(each.size for each in self._segments)

    def names(self, place: SpoolPosition) -> list[str]:
        """Return the names of the segments from a place on."""
        with self._lock:
            return [each.name for each in self._segments[max(0, place.segment - self._first) :]]

    def let_go(self, place: SpoolPosition) -> list[Segment]:
        """Remove and return the segments before a place, but for the one right before it, which tells of its end."""
        with self._lock:
            count = max(0, min(place.segment - 1 - self._first, len(self._segments)))
            gone, self._segments = self._segments[:count], self._segments[count:]
            self._first += count
            return gone

    @property
    def last_cut(self) -> SpoolPosition:
        """Return the last place at which a checkpoint may be cut; the beginning of the spool if there is none."""
        with self._lock:
            cuts = [_normal(each, int(each.ends[-1])) for each in self._segments if len(each.ends)]
            return cuts[-1] if cuts else SpoolPosition(self._first, 0)

    def has_cut_after(self, place: SpoolPosition) -> bool:
        """Return whether a checkpoint further on is possible with what is stored, and from where batches are now."""
        cut, planned = self.last_cut, self._planned
        return (cut.segment, cut.sequence) > (place.segment, place.sequence) and (cut.segment, cut.sequence) >= (
            planned.segment,
            planned.sequence,
        )

    def waiting(self, place: SpoolPosition) -> int:
        """Return the number of changes from a place on."""
        with self._lock:
            after = self._segments[max(0, place.segment - self._first) :]
            return sum(each.head.sequences for each in after) - (place.sequence if after else 0)

    def lsn_at(self, place: SpoolPosition) -> int:
        with self._lock:
            index = place.segment - self._first - 1
            return self._segments[index].head.end_lsn if 0 <= index < len(self._segments) else 0

    def refusal(self, place: SpoolPosition) -> str:
        """Return the reason why a checkpoint may not be cut at a place; empty if it may."""
        if self._split_transactions:
            with self._lock:
                found = self._at(place)
            return found.head.snapshot and self._refusal(place) if found is not None else ""
        return self._refusal(place)

    def _refusal(self, place: SpoolPosition) -> str:
        with self._lock:
            index = place.segment - self._first
            if place.sequence and 0 <= index < len(self._segments):
                return self._segments[index].refusal_at(place.sequence)
            before = index - 1
            return self._segments[before].refusal if 0 <= before < len(self._segments) else ""

    def _at(self, place: SpoolPosition) -> Segment | None:
        index = place.segment - self._first - (0 if place.sequence else 1)
        return self._segments[index] if 0 <= index < len(self._segments) else None

    def plan(
        self, start: SpoolPosition, until: SpoolPosition, rows_max: int, bytes_max: int
    ) -> tuple[SpoolPosition, list[SplitRead]]:
        """Return the end and the reads of a batch: up to the last cut within the limits, or else up to the limits.

        A transaction whose end is not stored yet is waited for, unless it is larger than the limits.
        """
        with self._lock:
            segments = self._segments[max(0, start.segment - self._first) :]
        reach, cut = start, None
        rows = size = 0
        is_full = False
        for segment in segments:
            if segment.head.number > until.segment or (segment.head.number == until.segment and not until.sequence):
                break
            first = start.sequence if segment.head.number == start.segment else 0
            bound = until.sequence if segment.head.number == until.segment else segment.head.sequences
            left = bound - first
            per_row = segment.size / max(1, segment.head.sequences)
            taken = min(left, rows_max - rows, max(1, int((bytes_max - size) / max(per_row, 1e-9))))
            if left > 0 and taken <= 0:
                is_full = True
                break
            stop = first + taken
            reach = _normal(segment, stop)
            at = int(np.searchsorted(segment.ends, stop, "right"))
            if at and (segment.ends[at - 1] > first or not left):
                cut = _normal(segment, int(segment.ends[at - 1]))
            rows, size = rows + taken, size + int(taken * per_row)
            is_full = is_full or bool(segment.head.snapshot) or taken < left or rows >= rows_max or size >= bytes_max
            if stop < segment.head.sequences or rows >= rows_max or size >= bytes_max:
                break
        inside = reach if is_full or self._split_transactions else start
        end = inside if cut is None or self._split_transactions else cut
        self._planned = end
        return end, self._reads(segments, start, end)

    def _reads(self, segments: list[Segment], start: SpoolPosition, end: SpoolPosition) -> list[SplitRead]:
        reads = []
        for segment in segments:
            number, head = segment.head.number, segment.head
            if number > end.segment or (number == end.segment and not end.sequence):
                break
            first = start.sequence if number == start.segment else 0
            stop = end.sequence if number == end.segment else head.sequences
            if stop > first and head.parts:
                detail = msgspec.msgpack.encode(SegmentReadDetail(segment.name, head.parts))
                share = (stop - first) / head.sequences
                rows = max(1, round(share * sum(part.rows for part in head.parts.values())))
                reads.append(SplitRead(SPLIT, first, stop, rows, detail))
        return reads

    def availability(self, place: SpoolPosition) -> SnapshotAvailability:
        reason = self.refusal(place)
        if reason:
            return SnapshotAvailability.SOFT_FAILURE.because(reason)
        return SnapshotAvailability.AVAILABLE


def _normal(segment: Segment, sequence: int) -> SpoolPosition:
    if sequence == segment.head.sequences:
        return SpoolPosition(segment.head.number + 1, 0)
    return SpoolPosition(segment.head.number, sequence)
