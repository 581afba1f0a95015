"""A table that is made durable by its log, and materialized now and then so that the log can be cut off.

    restored ─► base 0 ──────────────┬─────────────────────── log ───────────────────────►
                                     └ boundary: snapshot, upload ─► provisional base
    checkpoint(cut) = newest base with boundary ≤ cut, and the log from that boundary to the cut
    completed       = the base it used becomes the current base, and the log is truncated to its boundary
    aborted         = the log between the completed cut and the base that the next cut starts from is skipped

A table that is `followed` starts a cut from a base that is older than the end of the last completed cut. So its log
begins with changes that the completed checkpoint has, and whoever holds that checkpoint's state goes on with the log
alone. It costs a base that is kept, and a log that is named, for one checkpoint more.

Invariants: the current base is kept, together with the log from it to the completed cut, because a rewind goes there.
Cuts go forward. A cut therefore starts from the newest base at or before the cut requested last, or from a newer base.
Only pending checkpoints need the log between the completed cut and this base. By policy at most one materialization
runs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future

from holdfast.changelog.ranges import RangePart
from holdfast.changelog.writer import ChangelogWriter, NeededLog
from holdfast.clock import Clock
from holdfast.errors import CheckpointFailed, StorageError
from holdfast.failpoints import hit
from holdfast.formats.handles import LogPiece, MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.ids import NO_BATCH, BatchNumber
from holdfast.materialize.base import Base
from holdfast.materialize.keyed_state import KeyedState, PendingCut
from holdfast.materialize.materializer import Materialization
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.materialize.schedule import Schedule
from holdfast.state.table import StateTable, merge_changes
from holdfast.uploads.uploader import Uploader


class LoggedTable(KeyedState):
    """Logs each batch. `policy` says when to materialize. `followed`: others go on from each checkpoint by the log."""

    def __init__(
        self,
        log: LogId,
        table: StateTable,
        uploader: Uploader,
        policy: MaterializationPolicy | None = None,
        clock: Clock | None = None,
        followed: bool = False,
    ) -> None:
        super().__init__(log, table, uploader, clock)
        self._followed = followed
        self._ends: dict[BatchNumber, int] = {}
        """The SQN at which the log of each cut that may complete ends, by its batch."""
        self._completed_end = 0
        """The SQN at which the log of the completed cut ends."""
        self._log = ChangelogWriter(log, uploader, merge_changes)
        self._schedule = Schedule(policy or MaterializationPolicy(), log, self._clock.monotonic())
        self._completed_cut = self._last_cut = NO_BATCH
        """The batches of the last completed checkpoint, and of the last requested checkpoint."""
        self._last_base: Base | None = None
        """The base that the last requested checkpoint starts from; None after a rewind."""
        self._failed: BaseException | None = None

    def restored(self, handles: Sequence[TableHandle], files: Mapping[str, MaterializedPart] | None = None) -> None:
        super().restored(handles, files)
        self._completed_end = self._bases.current.sqn
        self._log.resume(self._bases.current.sqn)

    def commit(self, batch: BatchNumber) -> None:
        changes = None
        if self._table.in_batch:
            changes = self._table.defer_changes()
            self._table.commit()
        hit("taskmanager.commit.between")
        with self._lock:
            if self._failed is not None:
                raise self._failed
            self._committed(batch, changes is not None)
            self._log.append(batch, changes)
            now_s = self._clock.monotonic()
            pace = self._schedule.pace(now_s) if self._due(now_s) else None
        if pace is not None:
            self._materialize(self._log.next_sqn(), batch, pace, now_s)

    def held(self) -> list[str]:
        return list(dict.fromkeys(super().held() + self._log.held()))

    def _due(self, now_s: float) -> bool:
        if self._closed or (self._running is not None and not self._running.base.done()):
            return False
        newest = self._bases.newest
        return self._schedule.due(self._log.size(newest.sqn), newest, self._table.settled, now_s)

    def _materialization_ended(self, made: Materialization, began_s: float, error: BaseException | None) -> None:
        now_s = self._clock.monotonic()
        if error is None:
            self._schedule.stored(began_s, now_s, made.pace)
        elif isinstance(error, CheckpointFailed):
            self._schedule.cancelled(now_s)
        elif self._schedule.failed(now_s) or not isinstance(error, StorageError):
            self._failed = error

    def _cut(self, pending: PendingCut) -> Callable[[], None]:
        pending.base = self._last_base = self._base_at(pending.batch)
        cut = self._log.cut(pending.batch, pending.base.sqn)
        self._last_cut = max(self._last_cut, pending.batch)
        return lambda: self._store(pending, cut)

    def _store(self, pending: PendingCut, cut: Sequence[RangePart]) -> None:
        self._log.store(cut).add_done_callback(lambda pieces: self._persisted(pending, pieces))

    def _persisted(self, pending: PendingCut, pieces: Future[list[LogPiece]]) -> None:
        error = pieces.exception()
        with self._lock:
            if error is not None:
                self._log.reset()
            elif pending.base is not None:
                self._ends[pending.batch] = max([pending.base.sqn, *(each.sqn_stop for each in pieces.result())])
        self._answer(pending, error, () if error is not None else pieces.result())

    def _adopted(self, base: Base, batch: BatchNumber) -> None:
        self._completed_cut = batch
        self._completed_end = self._ends.get(batch, self._completed_end)
        self._ends = {cut: end for cut, end in self._ends.items() if cut > batch}
        self._log.truncate(base.sqn)

    def _gave_up(self) -> None:
        """Drop the part of the log that neither a rewind, a pending checkpoint nor a later cut can need."""
        self._log.reset()
        needed = [NeededLog(self._bases.current.sqn, self._completed_cut)]
        needed += [NeededLog(each.base.sqn, each.batch) for each in self._pending.values() if each.base is not None]
        self._log.skip(needed, self._base_at(self._last_cut).sqn)

    def _base_at(self, batch: BatchNumber) -> Base:
        """The base that a cut at this batch starts from.

        Where others follow, the log of a checkpoint reaches back into the checkpoint before it. A table that has not
        changed since then has no such log: it takes its newest base all the same, which would wait for a change
        otherwise, and who follows it reads that base.
        """
        if not self._followed:
            return self._bases.newest_at(batch)
        idle = self._log.next_sqn() == self._completed_end
        found, last = self._bases.newest_at(batch, self._completed_end + idle), self._last_base
        # No cut starts from an older base than the cut before it: that base goes once the earlier cut completes.
        return last if last is not None and found.batch < last.batch <= batch else found

    def _used_bases(self) -> Collection[Base | None]:
        """The bases of pending checkpoints, and the base that the next cut may start from."""
        return [*super()._used_bases(), self._bases.newest_at(self._last_cut), self._base_at(self._last_cut)]

    def _rewound(self, to_batch: BatchNumber) -> None:
        self._log.rewind(to_batch)
        self._last_cut, self._last_base = to_batch, None
        self._ends = {cut: end for cut, end in self._ends.items() if cut <= to_batch}

    def _ended(self) -> None:
        self._log.close()
