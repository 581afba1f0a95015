"""Durability of a state table: its bases, and its handle in each checkpoint.

    restored ─► base 0 ── commit, commit, … ── boundary: snapshot, upload ─► provisional base
    checkpoint(cut) = a base, and the log from its boundary to the cut where there is a log
    completed       = the base that the checkpoint used becomes the current one, older bases are released

There are two kinds: `logged_table` logs each batch and materializes now and then, `snapshotted_table` has no log and
materializes at each cut. They share this module: pending checkpoints, bases, rewinds, and the end.

Invariants: a base never replaces another one before a completed checkpoint uses it. This module never deletes an object
that an acknowledgement names. It neither decides when to cut nor reads stored state: `recovery/` restores.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from holdfast.clock import Clock, SystemClock
from holdfast.errors import CheckpointFailed
from holdfast.formats.handles import LogPiece, MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.ids import NO_BATCH, BatchNumber, CheckpointId
from holdfast.materialize.base import Base, Bases
from holdfast.materialize.materializer import Materialization, Materializer
from holdfast.materialize.policy import Pace
from holdfast.materialize.sizes import Sizes
from holdfast.state.table import StateTable
from holdfast.uploads.uploader import Uploader

ROW_COUNTS_MAX = 1000
"""Most batches whose number of rows is remembered. The handle of a cut at an older batch lacks its number of rows."""


@dataclass(eq=False)
class PendingCut:
    """A checkpoint that has not completed yet. For a table without a log, `base` is None until it is stored."""

    checkpoint_id: CheckpointId
    batch: BatchNumber
    base: Base | None = None
    from_sqn: int = 0
    """The SQN at which its log starts."""
    last_sqn: int | None = None
    """The SQN of the last change set in its log; None until the log is stored."""
    merges: int = 0
    """The number of merges in the log before the cut (`ChangelogWriter.merges`)."""
    rows: int | None = None
    """The table's number of rows at the cut, if it is known."""
    handle: Future[TableHandle] = field(default_factory=Future)


class KeyedState(ABC):
    """Makes a table of a subtask durable.

    Call `commit` and `rewind` on the subtask's thread, `restored` before the first batch, and the rest on any thread.

    Parameters
    ----------
    uploader
        The TaskManager's uploader, which all its tables share.
    """

    def __init__(self, log: LogId, table: StateTable, uploader: Uploader, clock: Clock | None = None) -> None:
        self._id = log
        self._table = table
        self._uploader = uploader
        self._clock = clock or SystemClock()
        self._schema = table.stored_schema().serialize().to_pybytes()
        self._materializer = Materializer(log, table, self._schema, uploader, self._known)
        self._lock = threading.Lock()
        self._bases = Bases()
        self._pending: dict[int, PendingCut] = {}
        self._running: Materialization | None = None
        """The newest materialization that did not fail."""
        self._changed = False
        """True if the table has changed since the newest materialization began."""
        self._last_batch = NO_BATCH
        self._undone: tuple[int, int] = (0, 0)
        self._rows_after: deque[tuple[int, int]] = deque(maxlen=ROW_COUNTS_MAX)
        """The last batches, each with the table's number of rows after it."""
        self._closed = False
        self.sizes = Sizes()

    def restored(self, handles: Sequence[TableHandle], files: Mapping[str, MaterializedPart] | None = None) -> None:
        """Start from the handles from which the table was restored. Call this only before the first batch.

        They stay in every checkpoint until the first materialization of this start. SQNs continue above theirs.
        `files`: the files of the handles that the base store still uses, by name. The next materialization need not
        store them again.
        """
        own = [handle.narrow(self._id.key_group_start, self._id.key_group_stop) for handle in handles]
        log = tuple(piece for handle in own for piece in handle.log)
        sqn = max((piece.sqn_stop for piece in log), default=0)
        parts = tuple(part for handle in own for part in handle.materialized)
        self._bases.current = Base(sqn, NO_BATCH, parts, log, dict(files or {}))
        self.sizes.restored(parts)

    @abstractmethod
    def commit(self, batch: BatchNumber) -> None:
        """Commit the table's batch in flight, if there is any, and keep its net changes for the next checkpoint.

        Raises
        ------
        UserFunctionError
            A value does not fit its type. Nothing was committed.
        HoldfastError
            Materializations failed too often in a row, or in a way that retries cannot help: the subtask fails.
        """

    def checkpoint(self, checkpoint_id: CheckpointId, batch: BatchNumber) -> Future[TableHandle]:
        """Store the state at the cut after `batch`. A repeated call returns the same future. The call may take a while.

        This TaskManager may delete the objects until an acknowledgement names them: if another table fails, there is no
        acknowledgement. The future fails with the I/O error, or with `CheckpointFailed` if the checkpoint was aborted,
        subsumed or undone meanwhile.

        Raises
        ------
        ValueError
            The batch was not committed, the cut went back, or (without a log) a later batch was committed.
        CheckpointFailed
            The batch was undone, or the cut was requested too late.
        """
        with self._lock:
            if checkpoint_id in self._pending:
                return self._pending[checkpoint_id].handle
            if self._undone[0] < batch <= self._undone[1]:
                raise CheckpointFailed(f"checkpoint {checkpoint_id}: batch {batch} of {self._id} was undone")
            rows = next((rows for after, rows in reversed(self._rows_after) if after == batch), None)
            pending = PendingCut(checkpoint_id, batch, rows=rows)
            store = self._cut(pending)
            self._pending[checkpoint_id] = pending
        try:
            store()
        except BaseException:
            self.aborted(checkpoint_id)
            raise
        return pending.handle

    def completed(self, checkpoint_id: CheckpointId) -> None:
        """Note that a checkpoint was recorded. It subsumes earlier ones, and its base becomes the current one."""
        with self._lock:
            pending = self._pending.pop(checkpoint_id, None)
            if pending is None or pending.base is None:
                return
            for earlier in [each for each in self._pending if each < checkpoint_id]:
                del self._pending[earlier]
            unused = self._bases.adopt(pending.base) + self._drop_superseded()
            self._adopted(pending, pending.base)
        self._table.release(pending.batch)
        self._release(unused)

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """Note that a checkpoint will not complete. The next checkpoint reuses its stored objects if it can."""
        with self._lock:
            self._pending.pop(checkpoint_id, None)
            unused = self._drop_superseded()
            self._gave_up()
        self._release(unused)

    def rewind(self, to_batch: BatchNumber) -> None:
        """Undo all batches after `to_batch`, which is in a completed checkpoint. Call this only between batches.

        Later checkpoints and materializations are abandoned. Those that are running end on their own.

        Raises
        ------
        HoldfastError
            The table's undo does not reach back so far; nothing was changed.
        """
        self._table.rewind(to_batch)
        with self._lock:
            self._rewound(to_batch)
            if to_batch < self._last_batch:
                self._undone = to_batch, self._last_batch
            self._last_batch = to_batch
            self._changed = True
            for undone in [each for each in self._pending.values() if each.batch > to_batch]:
                del self._pending[undone.checkpoint_id]
            dropped = self._bases.drop_after(to_batch)
            if self._running is not None and self._running.batch > to_batch:
                self._running = None
            self._materializer.cancel(to_batch)
        self._release(dropped)

    def held(self) -> list[str]:
        """Return the names of all stored objects that the materializations and the log still use."""
        with self._lock:
            return list(dict.fromkeys(self._bases.objects()))

    def close(self) -> None:
        """End, and delete objects that no acknowledgement named; uploads that end later are deleted when they
        arrive."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._pending.clear()
            bases = self._bases.drop_all()
            self._materializer.cancel(NO_BATCH)
        self._ended()
        self._release(bases)

    # --- the differences between the two kinds; all except `_ended` are called with the lock held ---------------------

    @abstractmethod
    def _cut(self, pending: PendingCut) -> Callable[[], None]:
        """Determine the content of the checkpoint. Returns the call that stores it, to be made without the lock."""

    @abstractmethod
    def _materialization_ended(self, made: Materialization, began_s: float, error: BaseException | None) -> None:
        """Handle the end of a materialization: it was stored, failed with an error, or was cancelled
        (`CheckpointFailed`)."""

    @abstractmethod
    def _adopted(self, cut: PendingCut, base: Base) -> None:
        """Handle the completion of a checkpoint, whose base is `base`."""

    @abstractmethod
    def _gave_up(self) -> None:
        """Release everything that only the aborted checkpoint needed."""

    @abstractmethod
    def _rewound(self, to_batch: BatchNumber) -> None:
        """Handle a rewind of the table to this batch."""

    def _used_bases(self) -> Collection[Base | None]:
        """Return the bases that a checkpoint may still name, besides the current and the newest one."""
        return [pending.base for pending in self._pending.values()]

    @abstractmethod
    def _ended(self) -> None:
        """Close the table's log, if it has a log."""

    # --- commits ------------------------------------------------------------------------------------------------------

    def _committed(self, batch: BatchNumber, changed: bool) -> None:
        """Note that the table committed this batch. Call this with the lock held."""
        self._last_batch = batch
        self._rows_after.append((batch, len(self._table)))
        self._changed = self._changed or changed

    # --- materialization ----------------------------------------------------------------------------------------------

    def _known(self) -> Mapping[str, MaterializedPart]:
        with self._lock:
            known = self._bases.newest.files
            self._uploader.retain(part.object for part in known.values())
        return known

    def _materialize(self, sqn: int, batch: BatchNumber, pace: Pace, began_s: float) -> Materialization:
        with self._lock:
            self._changed = False
        try:
            made = self._materializer.start(sqn, batch, pace, partial(self._materialized, began_s))
        except BaseException:
            self._changed = True
            raise
        with self._lock:
            self._running = made
        return made

    def _materialized(self, began_s: float, made: Materialization) -> None:
        """Note the end of a materialization, before the table's next one begins."""
        error = made.base.exception()
        if error is not None:
            self._not_materialized(began_s, made, error)
            return
        base = made.base.result()
        self.sizes.materialized((self._clock.monotonic() - began_s) * 1000.0)
        with self._lock:
            self._materialization_ended(made, began_s, None)
            unwanted = self._closed or made.cancelled.is_set() or base.batch < self._bases.newest.batch
            if not unwanted:
                self._bases.add(base)
            unused = [base] if unwanted else self._drop_superseded()
        self._release(unused)
        self._uploader.count(completedMaterialization=1)

    def _not_materialized(self, began_s: float, made: Materialization, error: BaseException) -> None:
        with self._lock:
            self._changed = True
            if self._running is made:
                self._running = None
            self._materialization_ended(made, began_s, error)
        if not isinstance(error, CheckpointFailed):
            self._uploader.count(failedMaterialization=1)

    def _drop_superseded(self) -> list[Base]:
        return self._bases.drop_superseded(self._used_bases())

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _answer(self, pending: PendingCut, error: BaseException | None, pieces: Sequence[LogPiece] = ()) -> None:
        """Complete the checkpoint's future: everything that it names of this table is stored, or an error prevents
        it."""
        with self._lock:
            wanted = self._pending.get(pending.checkpoint_id) is pending
            if wanted and error is not None:
                del self._pending[pending.checkpoint_id]
        if wanted and error is None and pending.base is not None:
            self.sizes.stored(list(pending.base.materialized), pieces)
            pending.handle.set_result(self._handle(pending.base, pieces, pending.rows))
        else:
            ended = f"checkpoint {pending.checkpoint_id}: ended before the state of {self._id} was stored"
            pending.handle.set_exception(error or CheckpointFailed(ended))

    def _handle(self, base: Base, pieces: Sequence[LogPiece], rows: int | None) -> TableHandle:
        return TableHandle(
            self._id.operator,
            self._id.table,
            self._id.key_group_start,
            self._id.key_group_stop,
            self._schema,
            list(base.materialized),
            [*base.restored_log, *pieces],
            rows,
        )

    def _release(self, bases: Sequence[Base]) -> None:
        for base in bases:
            self._uploader.release(base.objects)
