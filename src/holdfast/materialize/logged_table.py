"""A table that is durable by its log, and is materialized from time to time so that the log can be truncated.

    restored ─► base 0 ──────────────┬─────────────────────── log ───────────────────────►
                                     └ boundary: snapshot, upload ─► provisional base
    checkpoint(cut) = newest base with boundary ≤ cut, and the log from the lead, or that boundary, to the cut
    completed       = the base it used becomes the current base, and the log is truncated to its boundary
    too many pieces = stored pieces before the lead are merged in the background (`log_merge`)
    aborted         = the log between the completed cut and the base that the next cut starts from is skipped

The *lead* is the last change set of the last completed cut. The next cut names it even if its base contains it already,
so that a follower with the completed checkpoint's state needs only the log to continue. Applying the lead to a newer
base changes nothing, since everything after it is applied as well. After `GIVEN_UP_MAX` failed checkpoints in a row
there is no lead, so that the log between can be dropped. A restored table keeps the base from which it was restored
until there is a lead.

Pieces are merged up to the lead, so that a follower finds the lead's end, and no cut or rewind divides a merged piece.
Objects that were merged are kept until a checkpoint that was cut afterwards has completed.

Invariants: the current base is kept, together with the log from it to the completed cut, because a rewind goes there.
Cuts only go forward. So a cut starts from the newest base at or before the last requested cut, or from a newer base.
Only pending checkpoints need the log between the completed cut and this base. By policy at most one materialization
runs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from holdfast.changelog.ranges import Range, RangePart
from holdfast.changelog.writer import ChangelogWriter, NeededLog
from holdfast.clock import Clock
from holdfast.errors import CheckpointFailed, StorageError
from holdfast.failpoints import hit
from holdfast.formats.handles import LogPiece, MadeBase, MaterializedPart, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.ids import NO_BATCH, BatchNumber
from holdfast.materialize.base import Base
from holdfast.materialize.keyed_state import KeyedState, PendingCut
from holdfast.materialize.log_merge import store_merged
from holdfast.materialize.materializer import Materialization
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.materialize.schedule import Schedule
from holdfast.printable import logger
from holdfast.state.table import StateTable, merge_changes
from holdfast.uploads.scheduling import report_failure
from holdfast.uploads.uploader import MERGING, Uploader

_log = logger(__name__)

GIVEN_UP_MAX = 3
"""Failed checkpoints in a row after which the table drops the log that continues the completed one. With a higher value
followers need a new start only after more failures, but more of the log is kept meanwhile."""

BOUNDARIES_MAX = 100
"""Number of cuts at which a follower's materialization is taken. A higher value takes those of slower followers."""


class LoggedTable(KeyedState):
    """Logs each batch. `policy` says when to materialize."""

    def __init__(
        self,
        log: LogId,
        table: StateTable,
        uploader: Uploader,
        policy: MaterializationPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(log, table, uploader, clock)
        self._lead: int | None = None
        """The SQN of the lead; None if there is none."""
        self._given_up = 0
        """Number of checkpoints that failed since the last completed one."""
        self._leadless = NO_BATCH
        """Cuts up to this batch leave no lead, since the log after them may have been dropped."""
        self._awaits_lead = False
        """True while cuts must start from the base from which the table was restored."""
        self._log = ChangelogWriter(log, uploader, merge_changes)
        self._schedule = Schedule(policy or MaterializationPolicy(), log, self._clock.monotonic())
        self._completed_cut = self._last_cut = NO_BATCH
        """The batches of the last completed checkpoint, and of the last requested checkpoint."""
        self._failed: BaseException | None = None
        self._merging = False
        """True while pieces of the log are being merged."""
        self._boundaries: dict[BatchNumber, int] = {}
        """The SQN after each of the last cuts, at which a follower may have materialized the table."""

    def restored(self, handles: Sequence[TableHandle], files: Mapping[str, MaterializedPart] | None = None) -> None:
        super().restored(handles, files)
        self._awaits_lead = bool(self._bases.current.objects)
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
            run = self._run_to_merge(now_s)
            pace = self._schedule.pace(now_s) if self._due(now_s) else None
        if run:
            self._uploader.in_background(partial(self._merge, run), MERGING).add_done_callback(report_failure)
        if pace is not None:
            self._materialize(self._log.next_sqn(), batch, pace, now_s)

    def held(self) -> list[str]:
        return list(dict.fromkeys(super().held() + self._log.held()))

    def take_base(self, made: MadeBase) -> bool:
        """Let the next checkpoints name a base that a follower has made; return False if the log cannot go on from it,
        or a newer base is there. Its objects belong to the JobMaster, which holds them while `held` names them."""
        with self._lock:
            sqn = self._boundaries.get(made.batch)
            is_own = (made.key_group_start, made.key_group_stop) == (self._id.key_group_start, self._id.key_group_stop)
            if self._closed or not is_own or sqn is None or made.batch <= self._bases.newest.batch:
                return False
            self._bases.add(Base(sqn, made.batch, tuple(made.parts)))
            self._schedule.taken(self._clock.monotonic())
            unused = self._drop_superseded()
        self._release(unused)
        return True

    def _due(self, now_s: float) -> bool:
        if self._closed or (self._running is not None and not self._running.base.done()):
            return False
        newest = self._bases.newest
        log = self._log.size(newest.sqn)
        if self._awaits_lead and not (log.pieces or log.pending_sets):
            return False  # no cut could use the base
        merges = self._merging or self._schedule.merge_waits(now_s)
        return self._schedule.due(log, newest, self._table.settled, now_s, merges, self._table.rows_bytes)

    def _run_to_merge(self, now_s: float) -> Sequence[Range]:
        """Return the ranges to merge now, if the log has too many pieces; afterwards `_merging` tells whether there are
        any."""
        if self._closed or self._merging or self._lead is None or self._schedule.merge_waits(now_s):
            return ()
        newest = self._bases.newest
        frees_min = self._schedule.merge_frees(self._log.size(newest.sqn), newest)
        run = self._log.run_to_merge(newest.sqn, self._lead, frees_min) if frees_min else ()
        self._merging = bool(run)
        return run

    def _merge(self, run: Sequence[Range]) -> None:
        """Store the changes of these ranges as one piece, which later checkpoints name."""
        pieces: Sequence[LogPiece] = ()
        used, error = False, None
        try:
            pieces = store_merged(self._id, run, self._table.stored_schema(), self._uploader)
        except Exception as found:
            error = found
            _log.info("the log of %s was not merged: %s", self._id, error)
        with self._lock:
            self._merging = False
            if error is None:
                self._schedule.merged()
                used = self._log.merged(run, list(pieces))
            elif not isinstance(error, CheckpointFailed) and not any(each.dropped for each in run):
                self._schedule.merge_failed(self._clock.monotonic())
        if not used:
            self._uploader.release(piece.object for piece in pieces)

    def _materialization_ended(self, made: Materialization, began_s: float, error: BaseException | None) -> None:
        now_s = self._clock.monotonic()
        if error is None:
            self._schedule.stored(began_s, now_s, made.pace)
        elif isinstance(error, CheckpointFailed):
            self._schedule.cancelled(now_s)
        elif self._schedule.failed(now_s) or not isinstance(error, StorageError):
            self._failed = error

    def _cut(self, pending: PendingCut) -> Callable[[], None]:
        pending.base = self._base_at(pending.batch)
        pending.from_sqn = self._start(pending.base)
        pending.merges = self._log.merges
        cut = self._log.cut(pending.batch, pending.from_sqn)
        self._last_cut = max(self._last_cut, pending.batch)
        self._schedule.cut()
        self._boundaries[pending.batch] = self._log.sqn_after(pending.batch)
        while len(self._boundaries) > BOUNDARIES_MAX:
            del self._boundaries[min(self._boundaries)]
        return lambda: self._store(pending, cut)

    def _store(self, pending: PendingCut, cut: Sequence[RangePart]) -> None:
        self._log.store(cut).add_done_callback(lambda pieces: self._persisted(pending, pieces))

    def _persisted(self, pending: PendingCut, pieces: Future[list[LogPiece]]) -> None:
        error = pieces.exception()
        with self._lock:
            if error is not None:
                self._log.reset()
            elif pieces.result():
                pending.last_sqn = max(each.sqn_stop for each in pieces.result()) - 1
        self._answer(pending, error, () if error is not None else pieces.result())

    def _adopted(self, cut: PendingCut, base: Base) -> None:
        self._completed_cut = cut.batch
        self._given_up = 0
        self._lead = cut.last_sqn if cut.batch > self._leadless else None
        self._awaits_lead = self._awaits_lead and self._lead is None
        self._log.forget_replaced(cut.merges)
        # A later cut may start earlier: it has a lead, which a cut before the first completion had not.
        starts = [cut.from_sqn, *(each.from_sqn for each in self._pending.values() if each.base is not None)]
        self._log.truncate(min(starts))  # local copies of all that the completed checkpoint names are kept

    def _gave_up(self) -> None:
        """Drop the part of the log that no rewind, no pending checkpoint and no later cut can need."""
        self._log.reset()
        self._given_up += 1
        if self._given_up >= GIVEN_UP_MAX:
            self._lead, self._awaits_lead, self._leadless = None, False, self._last_cut
        needed = [NeededLog(self._start(self._bases.current), self._completed_cut)]
        needed += [NeededLog(each.from_sqn, each.batch) for each in self._pending.values() if each.base is not None]
        self._log.skip(needed, self._start(self._base_at(self._last_cut)))

    def _base_at(self, batch: BatchNumber) -> Base:
        """Return the base from which a cut at this batch starts."""
        return self._bases.current if self._awaits_lead else self._bases.newest_at(batch)

    def _start(self, base: Base) -> int:
        """Return the SQN at which the log of a cut from this base starts."""
        return base.sqn if self._lead is None else min(base.sqn, self._lead)

    def _used_bases(self) -> Collection[Base | None]:
        """Return the bases of pending checkpoints, and the base from which the next cut may start."""
        return [*super()._used_bases(), self._bases.newest_at(self._last_cut), self._base_at(self._last_cut)]

    def _rewound(self, to_batch: BatchNumber) -> None:
        self._log.rewind(to_batch)
        self._last_cut = to_batch
        self._boundaries = {batch: sqn for batch, sqn in self._boundaries.items() if batch <= to_batch}

    def _ended(self) -> None:
        self._log.close()
