"""The spool: the chain of stored segments that no checkpoint has passed yet. Thread-safe; no I/O.

    reader ──append──► segment n, n+1, n+2 … ──plan──► reads of a batch
                          └── let go once a checkpoint is past it

A position is (number of a segment, sequence number within it). The place after a segment's last row is the beginning of
the next segment, even before that segment is stored.
"""

import threading
from dataclasses import dataclass
from typing import Generic

import msgspec
import numpy as np

from holdfast.availability import SnapshotAvailability
from holdfast.errors import JobRefused
from holdfast.sources.base import Offsets, SplitRead
from holdfast.sources.spooled.segments import H, Segment, SegmentPart

SEGMENT, SEQUENCE_IN = "segment", "sequence"
"""Names of the entries in the offsets that make a position."""


class SegmentReadDetail(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a segment that a task needs."""

    name: str
    parts: dict[str, SegmentPart]


@dataclass(frozen=True)
class SpoolPosition:
    """A position in the chain."""

    segment: int
    sequence: int

    @classmethod
    def from_offsets(cls, offsets: Offsets, source: str, kind: str) -> "SpoolPosition":
        """Return the position that a checkpoint holds for a source; `kind` names the sources that have a position.

        Raises `JobRefused` if the offsets hold none.
        """
        try:
            return cls(msgspec.convert(offsets[SEGMENT], int), msgspec.convert(offsets[SEQUENCE_IN], int))
        except (KeyError, msgspec.ValidationError) as error:
            raise JobRefused(
                f"source {source!r}: the checkpoint's position {offsets!r} is not one of {kind}: "
                "give the source a new name"
            ) from error


class Spool(Generic[H]):
    """The chain of segments, whose rows belong to a single split. `split_transactions`: a batch may end anywhere."""

    def __init__(self, split: str, split_transactions: bool) -> None:
        self._split = split
        self._split_transactions = split_transactions
        self._lock = threading.Condition()
        self._segments: list[Segment[H]] = []
        self._first = 0
        self._planned = SpoolPosition(0, 0)
        """End of the last batch that was planned."""

    def reset(self, first: int, segments: list[Segment[H]]) -> None:
        """Start again with these segments, the first of which has that number."""
        with self._lock:
            self._first, self._segments = first, list(segments)

    def append(self, segment: Segment[H]) -> None:
        with self._lock:
            self._segments.append(segment)
            self._lock.notify_all()

    @property
    def end(self) -> SpoolPosition:
        with self._lock:
            return SpoolPosition(self._first + len(self._segments), 0)

    @property
    def last(self) -> Segment[H] | None:
        with self._lock:
            return self._segments[-1] if self._segments else None

    @property
    def size(self) -> int:
        """Return the bytes of all segments in the spool."""
        with self._lock:
            return sum(each.size for each in self._segments)

    def names(self, place: SpoolPosition) -> list[str]:
        """Return the names of the objects of the segments from a place on."""
        with self._lock:
            chosen = self._segments[max(0, place.segment - self._first) :]
            return [name for each in chosen for name in each.objects]

    def let_go(self, place: SpoolPosition) -> list[Segment[H]]:
        """Remove and return the segments before a place."""
        with self._lock:
            count = max(0, min(place.segment - self._first, len(self._segments)))
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
        """Return whether a cut after `place` is possible with stored changes, not before the last planned batch."""
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

    def before(self, place: SpoolPosition) -> Segment[H] | None:
        """Return the segment before the segment of a place."""
        with self._lock:
            index = place.segment - self._first - 1
            return self._segments[index] if 0 <= index < len(self._segments) else None

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

    def _at(self, place: SpoolPosition) -> Segment[H] | None:
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

    def _reads(self, segments: list[Segment[H]], start: SpoolPosition, end: SpoolPosition) -> list[SplitRead]:
        reads = []
        for segment in segments:
            number, head = segment.head.number, segment.head
            if number > end.segment or (number == end.segment and not end.sequence):
                break
            first = start.sequence if number == start.segment else 0
            stop = end.sequence if number == end.segment else head.sequences
            if stop <= first or not head.parts:
                continue
            per_sequence = sum(part.rows for part in head.parts.values()) / head.sequences
            for low, high, parts in head.divided(first, stop):
                detail = msgspec.msgpack.encode(SegmentReadDetail(segment.name, parts))
                reads.append(SplitRead(self._split, low, high, max(1, round((high - low) * per_sequence)), detail))
        return reads

    def availability(self, place: SpoolPosition) -> SnapshotAvailability:
        reason = self.refusal(place)
        if reason:
            return SnapshotAvailability.SOFT_FAILURE.because(reason)
        return SnapshotAvailability.AVAILABLE


def _normal(segment: Segment[H], sequence: int) -> SpoolPosition:
    if sequence == segment.head.sequences:
        return SpoolPosition(segment.head.number + 1, 0)
    return SpoolPosition(segment.head.number, sequence)
