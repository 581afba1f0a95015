"""The durable side of one state table: its log, its materializations, and the handle of each checkpoint.

    restored ─► base 0 ──────────────┬─────────────────────── log ───────────────────────►
                                     └ boundary: snapshot, upload ─► provisional base
    checkpoint(cut) = newest base with boundary ≤ cut, and the log from that boundary to the cut
    completed       = the base it used becomes the current one, and the log is truncated to its boundary
    aborted         = the log between the completed cut and the base that the next cut starts from is skipped
    without a log   = each cut is a boundary: checkpoint(cut) is the base that is made there

Invariants: a base that no completed checkpoint used replaces nothing: the current one is kept, with the log from it to
the completed cut, where a rewind goes. Cuts go forward, so a cut after the last one that was asked for starts from the
newest base at or before that one, or from a newer one: the log between the completed cut and this base is needed by
pending checkpoints only. By policy at most one materialization runs. An object that an acknowledgement names is never
deleted from here.
It does not decide what a checkpoint is, and reads nothing: restoring is `recovery/`.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from holdfast.changelog.ranges import Wanted
from holdfast.changelog.writer import ChangelogWriter, DeferredChanges, NeededLog
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CheckpointFailed, StorageError
from holdfast.formats.handles import LogPiece, MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.materialize.base import BEFORE_ALL_BATCHES, Base
from holdfast.materialize.materializer import Materialization, Materializer
from holdfast.materialize.policy import AWAITED, MaterializationPolicy, Pace
from holdfast.materialize.sizes import Sizes
from holdfast.state.table import StateTable, merge_changes
from holdfast.uploads.uploader import Uploader

ROW_COUNTS_MAX = 1000
"""Batches that cuts may lag behind: handles of older ones do not say how many rows the table has."""

Changes: TypeAlias = pa.RecordBatch | DeferredChanges


@dataclass(eq=False)
class _Pending:
    """`base` is None until a checkpoint without a log has one."""

    checkpoint_id: int
    batch: int
    base: Base | None = None
    rows: int | None = None
    """Of the table, where it is known."""
    handle: Future[TableHandle] = field(default_factory=Future)


class KeyedState:
    """Makes one table of one subtask durable.

    `changes`, `committed` and `rewind` are called on the subtask's thread, `restored` before that, the rest on any.

    Parameters
    ----------
    uploader
        The TaskManager's; shared by all its tables.
    policy
        When to materialize.
    changelog
        False: nothing is logged, a checkpoint is the table as it is at the cut, which must be the last batch committed.
    """

    def __init__(
        self,
        operator: str,
        table_name: str,
        table: StateTable,
        key_group_start: int,
        key_group_stop: int,
        uploader: Uploader,
        policy: MaterializationPolicy | None = None,
        clock: Clock | None = None,
        *,
        changelog: bool = True,
    ) -> None:
        self._id = LogId(operator, table_name, key_group_start, key_group_stop)
        self._table = table
        self._uploader = uploader
        self._policy = policy or MaterializationPolicy()
        self._clock = clock or SystemClock()
        self._changelog = changelog
        self._schema = table.stored_schema().serialize().to_pybytes()
        self._log = ChangelogWriter(self._id, uploader, merge_changes)
        self._materializer = Materializer(self._id, table, self._schema, uploader, self._known)
        self._lock = threading.Lock()
        self._current = Base(0, BEFORE_ALL_BATCHES)
        self._provisional: list[Base] = []
        self._pending: dict[int, _Pending] = {}
        self._running: Materialization | None = None
        """The newest one that did not fail."""
        self._completed_cut = self._last_cut = BEFORE_ALL_BATCHES
        """The batches of the last checkpoint that completed, and of the last one that was asked for."""
        self._changed = False
        """Since the newest materialization began."""
        self._last_batch = BEFORE_ALL_BATCHES
        self._undone: tuple[int, int] = (0, 0)
        self._rows_after: deque[tuple[int, int]] = deque(maxlen=ROW_COUNTS_MAX)
        """Batch, and how many rows the table had after it; the last ones."""
        self.sizes = Sizes()
        self._next_s = self._policy.first_s(self._id, self._clock.monotonic())
        self._pause_ends_s = self._clock.monotonic()
        self._captured_s = self._clock.monotonic()
        """When the newest materialization began."""
        self._took_s = 0.0
        self._pace: Pace | None = None
        """Of the last materialization that was stored; None: of the first one nothing is known."""
        self._failures = 0
        self._failed: BaseException | None = None
        self._closed = False

    def restored(self, handles: Sequence[TableHandle], files: Mapping[str, MaterializedPart] | None = None) -> None:
        """The table was restored from these. They stay in every checkpoint until the first own materialization.

        Before the first batch. SQNs continue above theirs. `files`: those files of the handles with which the base
        store goes on, by name: the next materialization need not store them again.
        """
        own = [handle.narrow(self._id.key_group_start, self._id.key_group_stop) for handle in handles]
        log = tuple(piece for handle in own for piece in handle.log)
        sqn = max((piece.sqn_stop for piece in log), default=0)
        self._log.resume(sqn)
        parts = tuple(part for handle in own for part in handle.materialized)
        self._current = Base(sqn, BEFORE_ALL_BATCHES, parts, log, dict(files or {}))

    def changes(self) -> Changes | None:
        """What `committed` is to be given for the batch in flight, before the table commits it; None: no row changed.

        Raises
        ------
        UserFunctionError
            A value does not fit its type.
        """
        if self._changelog:
            return self._table.defer_changes()
        return self._table if len(self._table.touched()) else None

    def committed(self, batch: int, changes: Changes | None) -> None:
        """The table committed this batch, with these net changes; also where there are none. May take a snapshot.

        Raises
        ------
        HoldfastError
            Materialization failed `failures_max` times in a row, or in a way that will not pass: the subtask fails.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            self._last_batch = batch
            self._rows_after.append((batch, len(self._table)))
            self._changed = self._changed or changes is not None
            if self._changelog:
                self._log.append(batch, changes)
            due = self._changelog and self._due()
        if due:
            self._materialize(batch)

    def checkpoint(self, checkpoint_id: int, batch: int) -> Future[TableHandle]:
        """The state as of the cut at `batch`, once it is stored. Asked again, gives the same future.

        Its objects stay this TaskManager's to delete until an acknowledgement names them: the handle of another
        table may fail, and then there is none. The future fails with the I/O error, or with `CheckpointFailed` where
        the checkpoint was aborted, subsumed or undone meanwhile. May take a while to return.

        Raises
        ------
        ValueError
            The batch was not committed, the cut went back, or (without a log) a later batch was committed.
        CheckpointFailed
            The batch was undone.
        """
        with self._lock:
            if checkpoint_id in self._pending:
                return self._pending[checkpoint_id].handle
            if self._undone[0] < batch <= self._undone[1]:
                raise CheckpointFailed(f"checkpoint {checkpoint_id}: batch {batch} of {self._id} was undone")
            rows = next((rows for after, rows in reversed(self._rows_after) if after == batch), None)
            pending = _Pending(checkpoint_id, batch, rows=rows)
            cut = self._cut(pending) if self._changelog else None
            self._pending[checkpoint_id] = pending
            self._last_cut = max(self._last_cut, batch)
        try:
            if cut is None:
                self._snapshot(pending)
            else:
                self._log.store(cut).add_done_callback(partial(self._persisted, pending))
        except BaseException:
            self.aborted(checkpoint_id)
            raise
        return pending.handle

    def completed(self, checkpoint_id: int) -> None:
        """The checkpoint was recorded: earlier ones are subsumed, and the log is truncated to the base it used."""
        with self._lock:
            pending = self._pending.pop(checkpoint_id, None)
            if pending is None or pending.base is None:
                return
            for earlier in [each for each in self._pending if each < checkpoint_id]:
                del self._pending[earlier]
            self._completed_cut = pending.batch
            unused = self._adopt(pending.base) + self._superseded()
        self._table.release(pending.batch)
        self._release(unused)

    def aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will not complete. What the next one can use of what it stored stays."""
        with self._lock:
            self._pending.pop(checkpoint_id, None)
            self._log.reset()
            unused = self._superseded()
            self._skip()
        self._release(unused)

    def rewind(self, to_batch: int) -> None:
        """Batches after `to_batch` never were; outside a batch. That one is in a completed checkpoint.

        Checkpoints and materializations past it are given up; those that run end by themselves.

        Raises
        ------
        HoldfastError
            The table's undo does not reach back so far; nothing was changed.
        """
        self._table.rewind(to_batch)
        with self._lock:
            self._log.rewind(to_batch)
            if to_batch < self._last_batch:
                self._undone = to_batch, self._last_batch
            self._last_batch = self._last_cut = to_batch
            self._changed = True
            for undone in [each for each in self._pending.values() if each.batch > to_batch]:
                del self._pending[undone.checkpoint_id]
            dropped = [each for each in self._provisional if each.batch > to_batch]
            self._provisional = [each for each in self._provisional if each.batch <= to_batch]
            if self._running is not None and self._running.batch > to_batch:
                self._running = None
            self._materializer.cancel(to_batch)
        self._release(dropped)

    def held(self) -> list[str]:
        """Names of all stored objects that the log and the materializations still use."""
        with self._lock:
            bases = [name for base in (self._current, *self._provisional) for name in base.objects]
            return list(dict.fromkeys(bases + self._log.held()))

    def close(self) -> None:
        """Ends the log. What was uploaded and no acknowledgement named is deleted; late uploads as they arrive."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._pending.clear()
            bases = [self._current, *self._provisional]
            self._provisional = []
            self._materializer.cancel(BEFORE_ALL_BATCHES)
        self._log.close()
        self._release(bases)

    # --- materialization ----------------------------------------------------------------------------------------------

    def _due(self) -> bool:
        if self._closed or (self._running is not None and not self._running.base.done()):
            return False
        now_s = self._clock.monotonic()
        if now_s < self._pause_ends_s:
            return False
        newest = self._newest()
        size = newest.size(self._log.size(newest.sqn))
        incremental = bool(newest.files)
        growth, settled = self._growth(now_s), self._table.settled
        return self._policy.due(size, newest.stored_bytes, incremental, now_s, self._next_s, growth, settled)

    def _growth(self, now_s: float) -> float:
        """Of the log during a materialization that begins now, if it takes as long as the last one, by its size."""
        return self._took_s / (now_s - self._captured_s) if self._took_s else 0.0

    def _newest(self) -> Base:
        return self._provisional[-1] if self._provisional else self._current

    def _known(self) -> Mapping[str, MaterializedPart]:
        with self._lock:
            known = self._newest().files
            self._uploader.retain(part.object for part in known.values())
        return known

    def _materialize(self, batch: int) -> Materialization:
        began_s = self._clock.monotonic()
        with self._lock:
            self._changed = False
            pace = self._policy.pace(self._growth(began_s), self._pace) if self._changelog else AWAITED
        try:
            made = self._materializer.start(self._log.next_sqn(), batch, pace, partial(self._materialized, began_s))
        except BaseException:
            self._changed = True
            raise
        with self._lock:
            self._running = made
        return made

    def _materialized(self, began_s: float, made: Materialization) -> None:
        """One ended; before the next one of this table begins."""
        error = made.base.exception()
        if error is not None:
            self._materialization_failed(made, error)
            return
        base = made.base.result()
        now_s = self._clock.monotonic()
        self.sizes.materialized(base.stored_bytes, base.new_bytes, (now_s - began_s) * 1000.0)
        with self._lock:
            self._failures = 0
            self._next_s = now_s + self._policy.interval_s
            self._captured_s, self._took_s, self._pace = began_s, now_s - began_s, made.pace
            self._pause_ends_s = now_s + self._policy.pause_s(self._took_s, made.pace)
            wanted = not self._closed and not made.cancelled.is_set()
            if wanted and base.batch > self._current.batch:
                self._provisional.append(base)
            unused = self._superseded() if wanted else [base]
        self._release(unused)
        self._uploader.count(completedMaterialization=1)

    def _materialization_failed(self, made: Materialization, error: BaseException) -> None:
        """Without a log it is the checkpoint that fails, and nothing else."""
        cancelled = isinstance(error, CheckpointFailed)
        with self._lock:
            self._changed = True
            if self._running is made:
                self._running = None
            self._next_s = self._clock.monotonic() + self._policy.retry_delay_s
            if self._changelog and not cancelled:
                self._failures += 1
                if not isinstance(error, StorageError) or self._failures >= self._policy.failures_max:
                    self._failed = error
        if not cancelled:
            self._uploader.count(failedMaterialization=1)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _cut(self, pending: _Pending) -> Sequence[Wanted]:
        pending.base = self._newest_at(pending.batch)
        return self._log.cut(pending.batch, pending.base.sqn)

    def _persisted(self, pending: _Pending, pieces: Future[list[LogPiece]]) -> None:
        error = pieces.exception()
        if error is not None:
            with self._lock:
                self._log.reset()
        self._answer(pending, error, () if error is not None else pieces.result())

    def _snapshot(self, pending: _Pending) -> None:
        """A checkpoint without a log: the newest base where nothing was changed since, otherwise one made now."""
        with self._lock:
            if self._changed and pending.batch != self._last_batch:
                raise ValueError(
                    f"table {self._id}: cut at batch {pending.batch}, but batch {self._last_batch} was committed: "
                    "without a changelog commits wait for the cut"
                )
            running, newest = None if self._changed else self._running, self._newest()
        if self._changed:
            running = self._materialize(pending.batch)
        if running is None:
            self._based(pending, newest)
        else:
            running.base.add_done_callback(partial(self._made, pending))

    def _made(self, pending: _Pending, future: Future[Base]) -> None:
        error = future.exception()
        if error is None:
            self._based(pending, future.result())
        else:
            self._answer(pending, error)

    def _based(self, pending: _Pending, base: Base) -> None:
        pending.base = base
        self._answer(pending, None)

    def _answer(self, pending: _Pending, error: BaseException | None, pieces: Sequence[LogPiece] = ()) -> None:
        """All that the checkpoint names of this table is stored, or will not be."""
        with self._lock:
            wanted = self._pending.get(pending.checkpoint_id) is pending
            if wanted and error is not None:
                del self._pending[pending.checkpoint_id]
        if wanted and error is None and pending.base is not None:
            self.sizes.logged(pieces)
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

    def _adopt(self, base: Base) -> list[Base]:
        """A completed checkpoint used this base: what is older has no use here any more."""
        if base is self._current:
            return []
        older = [self._current, *(each for each in self._provisional if each.batch < base.batch)]
        self._provisional = [each for each in self._provisional if each.batch > base.batch]
        self._current = base
        self._log.truncate(base.sqn)
        return older

    def _newest_at(self, batch: int) -> Base:
        """The newest base that a cut at this batch may start from."""
        possible = (each for each in (self._current, *self._provisional) if each.batch <= batch)
        return max(possible, key=lambda each: each.batch)

    def _skip(self) -> None:
        """Drop the part of the log that neither a rewind, a pending checkpoint nor a later cut can need."""
        needed = [NeededLog(self._current.sqn, self._completed_cut)]
        needed += [NeededLog(each.base.sqn, each.batch) for each in self._pending.values() if each.base is not None]
        self._log.skip(needed, self._newest_at(self._last_cut).sqn)

    def _superseded(self) -> list[Base]:
        """Take out provisional bases older than the newest, which neither pending checkpoints nor later cuts need."""
        used = [*(pending.base for pending in self._pending.values()), self._newest_at(self._last_cut)]
        unused = [each for each in self._provisional[:-1] if each not in used]
        self._provisional = [each for each in self._provisional if each not in unused]
        return unused

    def _release(self, bases: Sequence[Base]) -> None:
        for base in bases:
            self._uploader.release(base.objects)
