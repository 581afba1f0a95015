"""The entries of a log: pending change sets, ranges of change sets that are stored or uploading, and gaps.

    merged range   a cut asked for it: its change sets become a single one, which cannot be divided
    other range    uploaded ahead of a cut: its change sets stay separate, so that a cut or a rewind may divide it
    gap            change sets that were dropped, because no checkpoint can need them any more

This module has only data and its arithmetic. `writer` owns the order of entries, the locks and the uploads.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

from holdfast.formats.blocks import Merge, SortedRows
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import ChangeSet
from holdfast.ids import BatchNumber


class DeferredChanges(Protocol):
    """An object that keeps the net changes of committed batches until the log collects them
    (`state.table.StateTable`)."""

    @property
    def added(self) -> tuple[int, int, int]:
        """The numbers of the rows that the last committed batch left to wait (`waiting.WaitingChanges`)."""
        ...

    def collect(self, up_to_batch: BatchNumber) -> Sequence[pa.RecordBatch | SortedRows]:
        """Take out the changes of all batches up to `up_to_batch`, in replay order: at least one change set, maybe
        empty.

        Raises
        ------
        CheckpointFailed
            The changes can no longer be separated from those of later batches. Nothing was taken out.
        """
        ...


@dataclass(frozen=True)
class Deferred:
    """A change set in a log whose rows have not been collected yet."""

    sqn_start: int
    sqn_stop: int
    batch_start: int
    batch_stop: int
    source: DeferredChanges

    def to(self, last: "Deferred") -> "Deferred":
        """Join the change sets from this entry to `last`, which have the same source, into a single entry."""
        return Deferred(self.sqn_start, last.sqn_stop, self.batch_start, last.batch_stop, self.source)

    def collected(self, merge: Merge) -> ChangeSet:
        """Collect the rows, together with rows of earlier batches that the source still has. The entries of those
        batches will then find nothing to collect."""
        found = self.source.collect(BatchNumber(self.batch_stop - 1))
        rows = merge([each.slice() for each in found]) if len(found) > 1 else found[0]
        return ChangeSet(self.sqn_start, self.sqn_stop, self.batch_start, self.batch_stop, rows)


Pending = ChangeSet | Deferred


class Extent(NamedTuple):
    """The smallest part of a range that can be stored or dropped without the others."""

    sqn_start: int
    sqn_stop: int
    batch_start: int
    batch_stop: int

    @classmethod
    def of(cls, first: Pending, last: Pending) -> "Extent":
        return cls(first.sqn_start, last.sqn_stop, first.batch_start, last.batch_stop)


@dataclass(eq=False)
class Range:
    """Change sets that are stored together. `change_sets` are kept until the range is stored."""

    merged: bool
    change_sets: list[Pending]
    extents: list[Extent]
    pieces: list[LogPiece] | None = None
    """The stored pieces. They may reach beyond the range if it was narrowed."""
    rows_bytes: int = 0
    """The bytes of collected rows before they are encoded; 0 if the change sets had their rows from the beginning."""
    asked: bool = False
    """True if a cut needs the range."""
    error: BaseException | None = None
    dropped: bool = False
    """True if the log no longer needs the range: its objects are released as soon as they are stored."""
    undone: bool = False
    """True if the range was dropped because a rewind undid its batches."""
    level: int = 0
    """The number of times that its changes were stored again at the most (`merging`)."""
    done: Future[list[LogPiece]] = field(default_factory=Future)

    @classmethod
    def of(cls, first: Pending, merged: bool) -> "Range":
        return cls(merged, [first], [Extent.of(first, first)])

    @property
    def sqn_start(self) -> int:
        return self.extents[0].sqn_start

    @property
    def batch_start(self) -> int:
        return self.extents[0].batch_start

    @property
    def sqn_stop(self) -> int:
        return self.extents[-1].sqn_stop

    @property
    def batch_stop(self) -> int:
        return self.extents[-1].batch_stop

    @property
    def stored_bytes(self) -> int:
        """The size of the stored pieces."""
        return sum(piece.length for piece in self.pieces or ())

    def extend(self, change_set: Pending) -> None:
        """Append the following neighbour."""
        if self.merged:
            self.extents = [Extent.of(self.change_sets[0], change_set)]
        else:
            self.extents.append(Extent.of(change_set, change_set))
        last = self.change_sets[-1]
        if isinstance(last, Deferred) and isinstance(change_set, Deferred):
            self.change_sets[-1] = last.to(change_set)
        else:
            self.change_sets.append(change_set)

    def collect(self, merge: Merge) -> list[ChangeSet]:
        """Return the change sets with their rows. Deferred ones are collected now."""
        collected = [each.collected(merge) if isinstance(each, Deferred) else each for each in self.change_sets]
        self.change_sets = [*collected]
        return collected

    def sqn_stop_at(self, batch: BatchNumber) -> int:
        """Return the sequence number after the last change up to `batch`; the range's first number if there is none."""
        if self.batch_stop <= batch + 1:
            return self.sqn_stop
        return max((each.sqn_stop for each in self.extents if each.batch_stop <= batch + 1), default=self.sqn_start)

    def narrow(self, to_batch: BatchNumber) -> None:
        """Drop the batches after `to_batch`. The range must contain at least one batch up to `to_batch`."""
        self.extents = [each for each in self.extents if each.batch_stop <= to_batch + 1]
        self.change_sets = [each for each in self.change_sets if each.batch_stop <= to_batch + 1]


@dataclass(frozen=True)
class Skipped:
    """A gap in the log: change sets that no checkpoint will name again, between change sets that one may still name."""

    sqn_start: int
    sqn_stop: int
    batch_start: int
    batch_stop: int

    def to(self, later: "Skipped") -> "Skipped":
        """Return the gap from the start of this gap to the end of the following gap."""
        return Skipped(self.sqn_start, later.sqn_stop, self.batch_start, later.batch_stop)


Entry = Pending | Range | Skipped


class LogSize(NamedTuple):
    """The size of a log from an SQN on: the pieces that a handle would name, and the pending change sets.

    `shrinks_to`: the stored bytes for each byte of rows, measured on the rows of the log that this start stored; 0:
    unknown.
    """

    pieces: int
    stored_bytes: int
    pending_sets: int
    shrinks_to: float = 0.0

    @classmethod
    def of(cls, entries: Sequence[Entry], from_sqn: int) -> "LogSize":
        """Return the size of the log with these entries from an SQN on."""
        later = [each for each in entries if each.sqn_stop > from_sqn]
        stored = [each for each in later if isinstance(each, Range) and each.pieces]
        measured = [each for each in stored if each.rows_bytes]
        rows_bytes = sum(each.rows_bytes for each in measured)
        return cls(
            sum(len(each.pieces or ()) for each in stored),
            sum(each.stored_bytes for each in stored),
            sum(isinstance(each, ChangeSet | Deferred) for each in later),
            sum(each.stored_bytes for each in measured) / rows_bytes if rows_bytes else 0.0,
        )


def divides(batch: BatchNumber, entry: Entry) -> bool:
    """Return whether a cut at `batch` would have to divide an indivisible entry."""
    if not entry.batch_start <= batch < entry.batch_stop - 1:
        return False
    if not isinstance(entry, Range):
        return True
    parts: Sequence[Pending | Extent] = entry.extents if entry.error is None else entry.change_sets
    return any(each.batch_start <= batch < each.batch_stop - 1 for each in parts)


class RangePart(NamedTuple):
    """The part of a range that a cut needs."""

    range: Range
    sqn_start: int
    sqn_stop: int

    @property
    def stored(self) -> bool:
        """True if the range is stored, so that the cut need not wait for it."""
        return self.range.done.done() and self.range.done.exception() is None

    @property
    def undone(self) -> bool:
        """True if a rewind undid some of the part."""
        return self.range.undone or self.sqn_stop > self.range.sqn_stop

    def pieces(self) -> Iterator[LogPiece]:
        """Yield the stored pieces of the range, narrowed to the part that the cut needs."""
        for piece in self.range.done.result():
            start, stop = max(piece.sqn_start, self.sqn_start), min(piece.sqn_stop, self.sqn_stop)
            as_it_is = (start, stop) == (piece.sqn_start, piece.sqn_stop)
            yield piece if as_it_is else msgspec.structs.replace(piece, sqn_start=start, sqn_stop=stop)


def wanted(ranges: Sequence[Range], from_sqn: int, up_to_batch: BatchNumber) -> list[RangePart]:
    """List the parts of these ranges that a cut at `up_to_batch` needs, starting with the SQN `from_sqn`."""
    found = [RangePart(each, max(each.sqn_start, from_sqn), each.sqn_stop_at(up_to_batch)) for each in ranges]
    return [each for each in found if each.sqn_start < each.sqn_stop]
