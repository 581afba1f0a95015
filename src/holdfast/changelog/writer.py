"""The log of one table: which changes are pending, on their way or stored, in order of their SQNs.

    append ──► pending ──persist(up to a batch)──► range: uploading ──► stored ──truncate──► gone
                  ▲                                        │
                  └────────── reset ◄── failed ◄───────────┘

Invariants: entries are in order, disjoint, and never uploaded twice unless the upload failed; a range holds
the changes of whole batches, merged per key when it is encoded; nothing at or past the truncation point is
let go. No lock is held during I/O or compression, nor while a future is completed.
It follows the StateChangelogWriter of FLIP-158. It does not decide when to materialize (`materialize/`).
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

from holdfast.changelog.blocks import Merge
from holdfast.changelog.format import ChangeSet, LogId
from holdfast.changelog.handles import LogPiece
from holdfast.changelog.packing import PersistRequest
from holdfast.changelog.uploader import Uploader
from holdfast.errors import CheckpointFailed


class DeferredChanges(Protocol):
    """Where net changes of committed batches wait until they are wanted (`state.table.StateTable`)."""

    def collect(self, up_to_batch: int) -> list[pa.RecordBatch]:
        """Takes out those of batches up to that one, in order of replay: one change set or more, maybe without rows."""
        ...


class LogSize(NamedTuple):
    """What a handle from some SQN on would name, and what is still pending there."""

    pieces: int
    stored_bytes: int
    pending_sets: int


@dataclass(eq=False)
class _Range:
    """Change sets that were asked to be stored together; `change_sets` are kept until they are."""

    sqn_start: int
    sqn_stop: int
    batch_start: int
    batch_stop: int
    change_sets: list["ChangeSet | _Deferred"]
    pieces: list[LogPiece] | None = None
    error: BaseException | None = None
    truncated: bool = False
    done: Future[list[LogPiece]] = field(default_factory=Future)

    def extend(self, change_set: "ChangeSet | _Deferred") -> None:
        self.sqn_stop, self.batch_stop = change_set.sqn_stop, change_set.batch_stop
        last = self.change_sets[-1]
        if isinstance(last, _Deferred) and isinstance(change_set, _Deferred):
            self.change_sets[-1] = last.to(change_set)
        else:
            self.change_sets.append(change_set)

    def collect(self, merge: Merge) -> list[ChangeSet]:
        """The change sets with their rows; deferred ones are read now."""
        collected = [each.collected(merge) if isinstance(each, _Deferred) else each for each in self.change_sets]
        self.change_sets = [*collected]
        return collected


@dataclass(frozen=True)
class _Deferred:
    """In a log's place of a change set: its rows are still to be collected."""

    sqn_start: int
    sqn_stop: int
    batch_start: int
    batch_stop: int
    source: DeferredChanges

    def to(self, last: "_Deferred") -> "_Deferred":
        """From this one up to `last`, of the same source."""
        return _Deferred(self.sqn_start, last.sqn_stop, self.batch_start, last.batch_stop, self.source)

    def collected(self, merge: Merge) -> ChangeSet:
        """With what the source still has of earlier batches too; those then come without rows."""
        found = self.source.collect(self.batch_stop - 1)
        rows = merge(found) if len(found) > 1 else found[0]
        return ChangeSet(self.sqn_start, self.sqn_stop, self.batch_start, self.batch_stop, rows)


_Entry = ChangeSet | _Deferred | _Range


class ChangelogWriter:
    """The writer of one log; `append` on the subtask's thread, the rest on any.

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
        self._entries: list[_Entry] = []
        self._next_sqn = 0
        self._truncated_to = 0
        self._last_batch: int | None = None
        self._closed = False
        uploader.register(log)

    def resume(self, sqn: int) -> None:
        """A restored log continues at `sqn`. Only before the first `append`."""
        with self._lock:
            if self._entries or self._last_batch is not None:
                raise ValueError(f"log {self._log}: cannot resume at SQN {sqn}, it has been appended to")
            self._next_sqn = self._truncated_to = sqn

    def next_sqn(self) -> int:
        """The SQN of the change set that is appended next: everything below it has been appended."""
        with self._lock:
            return self._next_sqn

    def append(self, batch: int, changes: pa.RecordBatch | DeferredChanges | None) -> None:
        """The net changes of a committed batch, None where there are none. Once each, in order. Uploads nothing.

        Those that wait elsewhere are collected by `persist`, where no one else can append or persist.
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
                self._entries.append(_Deferred(*place, changes))
            elif changes.num_rows:
                self._entries.append(ChangeSet(*place, changes))
            else:
                return
            self._next_sqn += 1

    def persist(self, up_to_batch: int, from_sqn: int | None = None) -> Future[list[LogPiece]]:
        """Store all changes of batches up to and including `up_to_batch` that are not stored yet.

        Returns the pieces from `from_sqn` (the truncation point where it is None) up to that batch, in replay
        order: those of earlier ranges, also such as are still uploading, and the new one.
        The future fails with the error of the upload; over a range that failed before, it fails at once,
        until `reset`.

        Raises
        ------
        ValueError
            `from_sqn` is below the truncation point or past the end, the batch is not appended yet, or it
            lies inside a range that was asked for as a whole.
        """
        with self._lock:
            start = self._check(up_to_batch, from_sqn)
            new = [] if any(each.error for each in self._ranges(start, up_to_batch)) else self._open(start, up_to_batch)
            ranges = self._ranges(start, up_to_batch)
            for each in new:
                each.collect(self._merge)
        for each in new:
            self._upload(each)
        if not new:
            self._uploader.persist(self._log, None)
        return _combined(ranges, start)

    def reset(self) -> None:
        """A checkpoint ended otherwise: what failed to be stored is pending again. What is stored stays."""
        with self._lock:
            entries: list[_Entry] = []
            for entry in self._entries:
                entries.extend(entry.change_sets if isinstance(entry, _Range) and entry.error else [entry])
            self._entries = entries

    def truncate(self, to_sqn: int) -> None:
        """No checkpoint will ask for changes below `to_sqn` again. A range across it stays whole.

        Objects that only dropped ranges use are deleted, unless an acknowledgement named them.
        """
        with self._lock:
            if to_sqn > self._next_sqn:
                raise ValueError(f"log {self._log}: cannot truncate to SQN {to_sqn}, the next one is {self._next_sqn}")
            self._truncated_to = max(self._truncated_to, to_sqn)
            dropped = self._drop(lambda entry: entry.sqn_stop <= to_sqn)
        self._release(dropped)

    def size(self, from_sqn: int) -> LogSize:
        """What a checkpoint that starts at `from_sqn` would name."""
        with self._lock:
            pieces = [p for each in self._ranges() if each.sqn_stop > from_sqn for p in each.pieces or ()]
            pending = sum(not isinstance(entry, _Range) and entry.sqn_start >= from_sqn for entry in self._entries)
            return LogSize(len(pieces), sum(piece.length for piece in pieces), pending)

    def held(self) -> list[str]:
        """Names of all objects that stored ranges of this log use."""
        with self._lock:
            return list(dict.fromkeys(p.object for each in self._ranges() for p in each.pieces or ()))

    def close(self) -> None:
        """No more appends. What is pending is lost; what was uploaded and never acknowledged is deleted."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            dropped = self._drop(lambda entry: True)
        self._uploader.unregister(self._log)
        self._release(dropped)

    def _check(self, up_to_batch: int, from_sqn: int | None) -> int:
        self._check_open()
        start = self._truncated_to if from_sqn is None else from_sqn
        if not self._truncated_to <= start <= self._next_sqn:
            raise ValueError(
                f"log {self._log}: cannot persist from SQN {start}: it is truncated to {self._truncated_to} and "
                f"its next SQN is {self._next_sqn}"
            )
        if self._last_batch is not None and up_to_batch > self._last_batch:
            raise ValueError(
                f"log {self._log}: cannot persist batch {up_to_batch}: the last one appended is {self._last_batch}"
            )
        for each in self._ranges(start):
            if each.batch_start <= up_to_batch < each.batch_stop - 1:
                raise ValueError(
                    f"log {self._log}: batch {up_to_batch} lies inside a range that was persisted as a whole, "
                    f"up to batch {each.batch_stop - 1}: cuts go forward"
                )
        return start

    def _check_open(self) -> None:
        if self._closed:
            raise CheckpointFailed(f"log {self._log} is closed")

    def _ranges(self, from_sqn: int = 0, up_to_batch: int | None = None) -> list[_Range]:
        return [
            entry
            for entry in self._entries
            if isinstance(entry, _Range)
            and entry.sqn_stop > from_sqn
            and (up_to_batch is None or entry.batch_stop <= up_to_batch + 1)
        ]

    def _open(self, from_sqn: int, up_to_batch: int) -> list[_Range]:
        """Make ranges of what is pending there, one for each run of neighbours."""
        opened: list[_Range] = []
        entries: list[_Entry] = []
        for entry in self._entries:
            if isinstance(entry, _Range) or entry.sqn_start < from_sqn or entry.batch_stop > up_to_batch + 1:
                entries.append(entry)
            elif opened and entries[-1] is opened[-1]:
                opened[-1].extend(entry)
            else:
                opened.append(_Range(entry.sqn_start, entry.sqn_stop, entry.batch_start, entry.batch_stop, [entry]))
                entries.append(opened[-1])
        self._entries = entries
        return opened

    def _upload(self, each: _Range) -> None:
        request = PersistRequest(self._log, each.collect(self._merge), self._merge)
        request.future.add_done_callback(lambda future: self._uploaded(each, future))
        self._uploader.persist(self._log, request)

    def _uploaded(self, each: _Range, future: Future[list[LogPiece]]) -> None:
        error = future.exception()
        if error is not None:
            with self._lock:
                each.error = error
            each.done.set_exception(error)
            return
        pieces = future.result()
        with self._lock:
            each.pieces = pieces
            each.change_sets = []
            unwanted = [each] if each.truncated else []
        self._release(unwanted)
        each.done.set_result(pieces)

    def _drop(self, which: Callable[[_Entry], bool]) -> list[_Range]:
        """Takes entries out; returns those ranges that have objects. Others release theirs when they are stored."""
        dropped = [entry for entry in self._entries if isinstance(entry, _Range) and which(entry)]
        self._entries = [entry for entry in self._entries if not which(entry)]
        for each in dropped:
            each.truncated = True
        return [each for each in dropped if each.pieces is not None]

    def _release(self, ranges: Sequence[_Range]) -> None:
        for each in ranges:
            self._uploader.release(dict.fromkeys(piece.object for piece in each.pieces or ()))


def _combined(ranges: Sequence[_Range], from_sqn: int) -> Future[list[LogPiece]]:
    """The pieces of all ranges in order, from that SQN on, once all are stored; or the first error."""
    combined: Future[list[LogPiece]] = Future()
    lock = threading.Lock()
    unstored = [each for each in ranges if each.pieces is None or not each.done.done()]
    missing = len(unstored)

    def one_done(future: Future[list[LogPiece]]) -> None:
        nonlocal missing
        with lock:
            error = future.exception()
            answered = missing <= 0
            missing = 0 if error or answered else missing - 1
            last = not answered and missing == 0
        if last and error:
            combined.set_exception(error)
        elif last:
            combined.set_result(_narrowed(ranges, from_sqn))

    for each in unstored:
        each.done.add_done_callback(one_done)
    if not unstored:
        combined.set_result(_narrowed(ranges, from_sqn))
    return combined


def _narrowed(ranges: Sequence[_Range], from_sqn: int) -> list[LogPiece]:
    pieces = [piece for each in ranges for piece in each.done.result()]
    return [msgspec.structs.replace(piece, sqn_start=max(piece.sqn_start, from_sqn)) for piece in pieces]
