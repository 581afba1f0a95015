"""The log of a table: the changes that are pending, uploading or stored, in the order of their sequence numbers (SQNs).

    append ──► pending ──persist(up to a batch)──► range: uploading ──► stored ──truncate──► gone
                │ ▲ └──past the threshold: ahead of a cut──┘ │               ├─skip─► gap
                │ └──────────────── reset ◄── failed ◄───────┘               ├─merge─► a part of one stored range
                └──────────────────────── rewind ◄───────────────────────────┘

Invariants: entries are in order, disjoint, and never uploaded twice unless the upload failed. A range that a cut asked
for holds the changes of whole batches, merged per key when it is encoded. Changes that are uploaded ahead of a cut are
never merged across batches. No SQN is used twice, also after a rewind: it leaves a gap. Only `rewind` and `skip` drop
entries at or past the truncation point; `skip` leaves a gap, and no cut reads across it. No lock is held during I/O or
compression, nor while a future is completed. No lock that a batch needs is held while deferred changes are collected.
It follows the StateChangelogWriter of FLIP-158. It does not decide when to materialize (`materialize/`).
"""

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import pyarrow as pa

from holdfast.changelog.cut_pieces import pieces_of
from holdfast.changelog.merging import Replaced, merged_range, run_to_merge
from holdfast.changelog.ranges import (
    Deferred,
    DeferredChanges,
    Entry,
    LogSize,
    Range,
    RangePart,
    Skipped,
    divides,
    wanted,
)
from holdfast.changelog.waiting import UncollectedRows
from holdfast.errors import CheckpointFailed, HoldfastError
from holdfast.formats.blocks import Merge
from holdfast.formats.handles import LogPiece
from holdfast.formats.log_objects import ChangeSet, LogId
from holdfast.ids import NO_BATCH, BatchNumber
from holdfast.uploads.packing import PersistRequest
from holdfast.uploads.uploader import Uploader

__all__ = ["ChangelogWriter", "DeferredChanges", "LogSize", "NeededLog"]


class NeededLog(NamedTuple):
    """A checkpoint's part of a log: the changes from `sqn` on, up to and including the changes of `batch`."""

    sqn: int
    batch: BatchNumber

    def has(self, entry: Entry) -> bool:
        return entry.sqn_stop > self.sqn and entry.batch_start <= self.batch


class ChangelogWriter:
    """The writer of a log. Call `append` and `rewind` on the subtask's thread, and the other methods on any thread.

    Parameters
    ----------
    merge
        Keeps the last row of each key (`state.table.merge_changes`).
    """

    def __init__(self, log: LogId, uploader: Uploader, merge: Merge) -> None:
        self._log = log
        self._uploader = uploader
        self._merge = merge
        self._lock = threading.Lock()
        self._collecting = threading.Lock()
        """Held while changes are collected, taken before `_lock`."""
        self._entries: list[Entry] = []
        self._opened: list[Range] = []
        """Ranges whose rows are not collected yet, in order."""
        self._pending_bytes = 0
        self._waiting = UncollectedRows()
        self._told_bytes = 0
        """Waiting bytes of which the uploader knows."""
        self._asked_to = NO_BATCH
        """The batch of the latest cut."""
        self._measured: tuple[int, LogSize] | None = None
        """The SQN and the result of the last call of `size`; None after a change of the entries."""
        self._replaced = Replaced()
        self._next_sqn = 0
        self._truncated_to = 0
        self._last_batch: int | None = None
        self._closed = False
        self._broken: Exception | None = None
        uploader.register(log)

    def resume(self, sqn: int) -> None:
        """Let a restored log continue at `sqn`. Call this only before the first `append`."""
        with self._lock:
            if self._entries or self._last_batch is not None:
                raise ValueError(f"log {self._log}: cannot resume at SQN {sqn}, it has been appended to")
            self._next_sqn = self._truncated_to = sqn

    def next_sqn(self) -> int:
        """Return the SQN of the next change set. Everything below it has been appended."""
        with self._lock:
            return self._next_sqn

    def sqn_after(self, batch: BatchNumber) -> int:
        """Return the SQN after the last change up to `batch`, which has been cut."""
        with self._lock:
            for entry in self._entries:
                if isinstance(entry, Range) and entry.batch_start <= batch < entry.batch_stop - 1:
                    return entry.sqn_stop_at(batch)
                if entry.batch_start > batch:
                    return entry.sqn_start
            return self._next_sqn

    def append(self, batch: BatchNumber, changes: pa.RecordBatch | DeferredChanges | None) -> None:
        """Append the net changes of a committed batch, or None if it has none. Called once for each batch, in order.
        This does no I/O. When more than the uploader's `preempt_bytes_max` is pending, the uploader gets the pending
        changes, to store them ahead of a cut. Deferred changes are collected by `persist`, or ahead of a cut once there
        are too many of them for a cut (`waiting`).
        """
        with self._lock:
            self._check_open()
            if self._last_batch is not None and batch <= self._last_batch:
                raise ValueError(f"log {self._log}: batch {batch} appended after batch {self._last_batch}")
            self._last_batch = batch
            if changes is None:
                return
            place = self._next_sqn, self._next_sqn + 1, batch, batch + 1
            if not isinstance(changes, pa.RecordBatch):
                self._entries.append(Deferred(*place, changes))
                self._waiting.add(batch, changes.added)
            elif changes.num_rows:
                self._entries.append(ChangeSet(*place, changes))
                self._pending_bytes += changes.nbytes
            else:
                return
            self._next_sqn += 1
            if self._measured is not None:
                since, size = self._measured
                self._measured = since, size._replace(pending_sets=size.pending_sets + (self._next_sqn > since))
            ahead = []
            if self._pending_bytes > self._uploader.preempt_bytes_max:
                ahead = self._open(lambda entry: isinstance(entry, ChangeSet), merged=False)
            collects = self._opens_ahead()
        for each in ahead:
            self._upload(each)
        if collects:
            self._uploader.before_encoding(self._collect_ahead)

    def persist(self, up_to_batch: BatchNumber, from_sqn: int | None = None) -> Future[list[LogPiece]]:
        """Store all changes of batches up to and including `up_to_batch` that are not stored yet.

        The future's result is the pieces from `from_sqn` (the truncation point if it is None) up to that batch, in
        replay order: the pieces of earlier ranges, including those still uploading, and of the new range. The future
        fails with the error of an upload. If a needed range failed before, the future fails at once, until `reset`. It
        fails with `CheckpointFailed` if a rewind undid some of the changes meanwhile.

        Raises
        ------
        CheckpointFailed
            Some of the changes were skipped.
        ValueError
            `from_sqn` is below the truncation point or past the end, the batch is not appended yet, or it
            lies inside a range that was asked for as a whole.
        """
        return self.store(self.cut(up_to_batch, from_sqn))

    def cut(self, up_to_batch: BatchNumber, from_sqn: int | None = None) -> Sequence[RangePart]:
        """Do the first half of `persist`, without delay: determine the ranges of the cut, so that later changes stay
        out."""
        with self._lock:
            start = self._check(up_to_batch, from_sqn)
            if not any(each.range.error for each in wanted(self._ranges(), start, up_to_batch)):
                # Changes that were merged before their upload failed may begin before the base of the cut.
                self._opened += self._open(lambda entry: entry.sqn_stop > start, up_to_batch, merged=True)
            self._waiting.taken(up_to_batch)
            self._tell_waiting()
            self._asked_to = max(self._asked_to, up_to_batch)
            needed = wanted(self._ranges(), start, up_to_batch)
            for each in needed:
                each.range.asked = True
            return needed

    def store(self, cut: Sequence[RangePart]) -> Future[list[LogPiece]]:
        """Do the second half of `persist`: collect deferred changes, while batches are appended, and upload
        everything."""
        collected = self._collect()
        for each in collected:
            self._upload(each)
        if not collected:
            self._uploader.persist(self._log, None)
        return pieces_of(self._log, cut)

    def reset(self) -> None:
        """Make change sets whose upload failed pending again, after a checkpoint failed. Stored ones stay stored."""
        with self._lock:
            self._reset(lambda each: each.error is not None)

    def rewind(self, to_batch: BatchNumber) -> None:
        """Drop the changes of the batches after `to_batch`, in whatever state they are.

        Pending changes are dropped. Ranges are dropped, or narrowed if they contain earlier batches too; for a range
        that is still uploading, this happens when it is stored. Objects that are no longer used are deleted, unless an
        acknowledgement named them.

        Raises
        ------
        ValueError
            The batch is inside a range that was requested as a single range. Nothing was changed.
        """
        with self._lock:
            self._check_not_inside(to_batch)
            self._reset(lambda each: each.error is not None)
            undone = [entry for entry in self._entries if entry.batch_start > to_batch]
            dropped = self._drop(undone, undone=True)
            for entry in self._entries:
                if isinstance(entry, Range) and entry.batch_stop > to_batch + 1:
                    entry.narrow(to_batch)
            self._count_pending()
            self._waiting.rewind(to_batch)
            self._tell_waiting()
        self._release(dropped)

    def truncate(self, to_sqn: int) -> None:
        """Drop the changes below `to_sqn`: no checkpoint will need them again. A range across `to_sqn` is kept in full.

        Objects that only dropped ranges use are deleted, unless an acknowledgement named them.
        """
        with self._lock:
            if to_sqn > self._next_sqn:
                raise ValueError(f"log {self._log}: cannot truncate to SQN {to_sqn}, the next SQN is {self._next_sqn}")
            self._truncated_to = max(self._truncated_to, to_sqn)
            dropped = self._drop([entry for entry in self._entries if entry.sqn_stop <= to_sqn])
        self._release(dropped)

    def skip(self, needed: Collection[NeededLog], from_sqn: int) -> None:
        """Drop the changes below `from_sqn` that are not `needed`. A range across `from_sqn` is kept in full.

        The caller promises that every later cut starts at `from_sqn` or above, unless a rewind to the end of a
        `needed` part comes first. Objects that only dropped ranges use are deleted, unless an acknowledgement named
        them.
        """
        with self._lock:
            unneeded = [
                entry
                for entry in self._entries
                if entry.sqn_stop <= from_sqn and not any(part.has(entry) for part in needed)
            ]
            before = self._entries
            dropped = self._drop([entry for entry in unneeded if not isinstance(entry, Skipped)])
            self._measured = None
            self._entries = _with_gaps(before, {id(entry) for entry in unneeded}, {part.batch for part in needed})
        self._release(dropped)

    def size(self, from_sqn: int) -> LogSize:
        """Return the size of the log that a checkpoint starting at `from_sqn` would name."""
        with self._lock:
            if self._measured is None or self._measured[0] != from_sqn:
                self._measured = from_sqn, LogSize.of(self._entries, from_sqn)
            return self._measured[1]

    @property
    def merges(self) -> int:
        """The number of runs of ranges that were replaced by one range so far."""
        return self._replaced.times

    def run_to_merge(self, from_sqn: int, to_sqn: int, frees_min: int) -> Sequence[Range]:
        """Return neighbouring stored ranges that should become one; empty if none would free `frees_min` pieces.

        The caller promises that no cut and no rewind will go to a batch before the one of `to_sqn`.
        """
        with self._lock:
            return run_to_merge(self._entries, from_sqn, to_sqn, frees_min)

    def merged(self, run: Sequence[Range], pieces: list[LogPiece]) -> bool:
        """Replace a run by one range with these stored pieces. Returns False if the log no longer has all of the run:
        then the pieces are not used. The objects of the run are kept until `forget_replaced`."""
        with self._lock:
            places = [place for place, entry in enumerate(self._entries) if entry is run[0]]
            if not places or self._entries[places[0] : places[0] + len(run)] != list(run):
                return False
            self._entries[places[0] : places[0] + len(run)] = [merged_range(run, pieces)]
            self._measured = None
            self._replaced.add(run)
            return True

    def forget_replaced(self, merges: int) -> None:
        """Release the ranges that were replaced up to the time when `merges` had that value: a checkpoint that was cut
        after it has completed."""
        with self._lock:
            unused = self._replaced.take(merges)
        self._release(unused)

    def held(self) -> list[str]:
        """Return the names of all objects that stored ranges of this log use, and of those that a checkpoint may
        name."""
        with self._lock:
            ranges = [*self._ranges(), *self._replaced.ranges()]
            return list(dict.fromkeys(p.object for each in ranges for p in each.pieces or ()))

    def close(self) -> None:
        """End the log. Pending changes are lost; objects that were uploaded and never acknowledged are deleted."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            dropped = self._drop(self._entries) + self._replaced.take(self._replaced.times)
            self._waiting.clear()
            self._tell_waiting()
        self._uploader.unregister(self._log)
        self._release(dropped)

    def _check(self, up_to_batch: BatchNumber, from_sqn: int | None) -> int:
        self._check_open()
        start = self._truncated_to if from_sqn is None else from_sqn
        if not self._truncated_to <= start <= self._next_sqn:
            raise ValueError(
                f"log {self._log}: cannot persist from SQN {start}: it is truncated to {self._truncated_to} and "
                f"its next SQN is {self._next_sqn}"
            )
        if self._last_batch is not None and up_to_batch > self._last_batch:
            raise ValueError(
                f"log {self._log}: cannot persist batch {up_to_batch}: the last appended batch is {self._last_batch}"
            )
        if any(isinstance(entry, Skipped) and NeededLog(start, up_to_batch).has(entry) for entry in self._entries):
            raise CheckpointFailed(
                f"log {self._log}: a cut at batch {up_to_batch} came too late: a later cut was asked for before, and "
                "the changes between were dropped. The next checkpoint goes on",
                soft=True,
            )
        self._check_not_inside(up_to_batch, start, self._asked_to)
        return start

    def _check_not_inside(self, batch: BatchNumber, from_sqn: int = 0, asked_to: int = sys.maxsize) -> None:
        """Check that a cut or a rewind divides nothing that was stored as a whole.

        Past `asked_to`, the batch of the latest cut, changes are whole only because they were collected ahead of a cut.
        """
        for entry in self._entries:
            if entry.sqn_stop > from_sqn and divides(batch, entry):
                if batch > asked_to:
                    raise CheckpointFailed(
                        f"log {self._log}: a cut at batch {batch} came too late: changes up to batch "
                        f"{entry.batch_stop - 1} were stored ahead of it together. The next checkpoint has them",
                        soft=True,
                    )
                raise ValueError(
                    f"log {self._log}: batch {batch} lies inside a range that was persisted as a whole, "
                    f"up to batch {entry.batch_stop - 1}: cuts go forward, and rewinds go to a cut"
                )

    def _check_open(self) -> None:
        if self._closed:
            raise CheckpointFailed(f"log {self._log} is closed")
        if self._broken is not None:
            raise HoldfastError(f"log {self._log}: changes of its table could not be read: {self._broken}")

    def _ranges(self) -> list[Range]:
        return [entry for entry in self._entries if isinstance(entry, Range)]

    def _open(
        self, which: Callable[[ChangeSet | Deferred], bool], up_to_batch: int = sys.maxsize, *, merged: bool
    ) -> list[Range]:
        """Make ranges from the pending entries that `which` selects: one range for each run of neighbours. Entries past
        `up_to_batch` stay pending."""
        opened: list[Range] = []
        entries: list[Entry] = []
        for entry in self._entries:
            if isinstance(entry, Range | Skipped) or entry.batch_stop > up_to_batch + 1 or not which(entry):
                entries.append(entry)
            elif opened and entries[-1] is opened[-1]:
                opened[-1].extend(entry)
            else:
                opened.append(Range.of(entry, merged))
                entries.append(opened[-1])
        self._entries = entries
        self._count_pending()
        return opened

    def _opens_ahead(self) -> bool:
        """Open ranges of changes that wait elsewhere, if there are too many for a cut."""
        self._tell_waiting()
        stops = self._waiting.due(self._uploader.preempt_bytes_max, self._uploader.collect_bytes_max)
        for up_to_batch in stops:
            self._opened += self._open(lambda entry: isinstance(entry, Deferred), up_to_batch, merged=True)
        self._tell_waiting()
        return bool(stops)

    def _tell_waiting(self) -> None:
        size_bytes = self._waiting.size_bytes
        self._uploader.wait_in_tables(size_bytes - self._told_bytes)
        self._told_bytes = size_bytes

    def _collect_ahead(self) -> None:
        if not self._closed:
            for each in self._collect():
                self._upload(each)

    def _collect(self) -> list[Range]:
        """Collect the rows of the ranges that were opened, in order: otherwise a later range would take an earlier
        one's rows.

        Changes that the source refused to give come with the next cut, and so do all later ones. After any other error
        changes may be lost: the log is broken.
        """
        collected: list[Range] = []
        failed: dict[Range, Exception] = {}
        with self._collecting:
            with self._lock:
                opened, self._opened = self._opened, []
            for each in opened:
                try:
                    if failed:
                        raise next(iter(failed.values()))
                    rows = [change_set.rows for change_set in each.collect(self._merge)]
                    each.rows_bytes = sum(part.nbytes for part in rows)
                    with self._lock:
                        self._waiting.collected(sum(part.num_rows for part in rows), each.rows_bytes)
                    collected.append(each)
                except CheckpointFailed as error:
                    failed[each] = error
                except Exception as error:
                    failed[each] = self._broken = error
        for each, reason in failed.items():
            self._failed(each, reason)
        return collected

    def _upload(self, each: Range) -> None:
        merge = self._merge if each.merged else None
        request = PersistRequest(self._log, each.collect(self._merge), merge, is_of_cut=each.asked)
        request.future.add_done_callback(lambda future: self._uploaded(each, future))
        self._uploader.persist(self._log, request)

    def _uploaded(self, each: Range, future: Future[list[LogPiece]]) -> None:
        error = future.exception()
        if error is not None:
            self._failed(each, error)
            return
        with self._lock:
            each.pieces = future.result()
            each.change_sets = []
            self._measured = None
            unwanted = [each] if each.dropped else []
        self._release(unwanted)
        each.done.set_result(each.pieces)

    def _failed(self, each: Range, error: BaseException) -> None:
        with self._lock:
            each.error = error
            self._reset(lambda other: other is each and not each.asked)
        each.done.set_exception(error)

    def _reset(self, which: Callable[[Range], bool]) -> None:
        """Make the change sets of these ranges pending again."""
        entries: list[Entry] = []
        for entry in self._entries:
            entries.extend(entry.change_sets if isinstance(entry, Range) and which(entry) else [entry])
        self._entries = entries
        self._count_pending()

    def _count_pending(self) -> None:
        """Count again after a change of the entries that was not an append."""
        self._measured = None
        self._pending_bytes = sum(entry.rows.nbytes for entry in self._entries if isinstance(entry, ChangeSet))

    def _drop(self, which: Sequence[Entry], *, undone: bool = False) -> list[Range]:
        """Remove entries. Returns the ranges among them that have stored objects; other ranges release their objects as
        soon as they are stored."""
        gone = {id(entry) for entry in which}
        self._entries = [entry for entry in self._entries if id(entry) not in gone]
        self._count_pending()
        dropped = [entry for entry in which if isinstance(entry, Range)]
        for each in dropped:
            each.dropped = True
            each.undone = undone
        return [each for each in dropped if each.pieces is not None]

    def _release(self, ranges: Sequence[Range]) -> None:
        for each in ranges:
            self._uploader.release(dict.fromkeys(piece.object for piece in each.pieces or ()))


def _with_gaps(entries: Sequence[Entry], skipped: Collection[int], cuts: Collection[int]) -> list[Entry]:
    """Return the entries, with a gap for each run of neighbours whose `id` is in `skipped`.

    A gap ends at each of the `cuts`, the last batches of needed parts, since a rewind may go there.
    """
    kept: list[Entry] = []
    for entry in entries:
        if id(entry) not in skipped:
            kept.append(entry)
            continue
        gap = Skipped(entry.sqn_start, entry.sqn_stop, entry.batch_start, entry.batch_stop)
        last = kept[-1] if kept else None
        if isinstance(last, Skipped) and not any(last.batch_stop - 1 <= cut < gap.batch_start for cut in cuts):
            kept[-1] = last.to(gap)
        else:
            kept.append(gap)
    return kept
