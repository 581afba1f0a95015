"""Materializations that a standby makes of the tables that it follows, so that their owners upload logs only.

    followed to record n ─► due by its handles ─► capture, store ─► MadeBase ─► JobMaster ─► the owner's next handle

The bounds are those by which an owner materializes; the sizes come from the handles, and a log that its owner merges is
not too long before it has twice the pieces. Only tables of records of this
start, since an owner knows the place in its log of its own cuts alone. A table whose base is on its way to the owner is
left out until a handle names the base, or until both `OFFER_S_MAX` and `OFFER_RECORDS` have passed: a base goes to the
owner with the completion of the next record, and the record after that names it.

Invariants: an object that is offered to the JobMaster is never deleted here; parts of a materialization that failed or
was interrupted are. An offer is repeated until it is answered or the process ends, since its objects have no other
owner.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.followers.subtask import FollowedTable
from holdfast.formats.handles import MadeBase
from holdfast.formats.log_objects import LogId
from holdfast.ids import NO_BATCH, BatchNumber, ProcessId
from holdfast.materialize.base import Base, size_of
from holdfast.materialize.materializer import Materializer
from holdfast.materialize.policy import PATIENT, MaterializationPolicy
from holdfast.materialize.schedule import Schedule
from holdfast.printable import logger
from holdfast.protocol.taskmanager import BaseOffer, JobMasterGateway
from holdfast.taskmanager.checkpoints import Answers
from holdfast.uploads.uploader import Uploader

_log = logger(__name__)

OFFER_S_MAX = 60.0
"""Seconds after which a base that no handle names counts as refused. A higher value makes it anew later."""
OFFER_RECORDS = 3
"""Records to be followed before a base that none of them names counts as refused. A higher value makes it anew later, a
value of 2 does not allow for an offer that just misses a completion."""


@dataclass
class _Table:
    """A table's schedule, and the base that is on its way to the owner."""

    schedule: Schedule
    offered: frozenset[str] = frozenset()
    until_s: float = 0.0
    records_left: int = 0
    """Records still to be followed before the base counts as refused."""
    batch: BatchNumber = NO_BATCH
    """The cut of the record that was followed last."""

    def follow(self, batch: BatchNumber) -> None:
        if batch != self.batch:
            self.batch, self.records_left = batch, max(self.records_left - 1, 0)


class RemoteApply:
    """The materializations of a standby's tables. A single thread uses it; nothing begins once `ended` is set.

    Parameters
    ----------
    numbers
        Numbers of the offers of this process.
    """

    def __init__(
        self,
        process: ProcessId,
        uploader: Uploader,
        policy: MaterializationPolicy,
        clock: Clock,
        ended: Event,
        job_master: JobMasterGateway,
        answers: Answers,
        numbers: Iterator[int],
    ) -> None:
        self._process = process
        self._uploader = uploader
        self._policy = policy
        self._clock = clock
        self._ended = ended
        self._job_master = job_master
        self._answers = answers
        self._numbers = numbers
        self._tables: dict[LogId, _Table] = {}
        self._materializer: Materializer | None = None
        """The materializer of the table that was stored last."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="offers")

    def materialize(self, followed: Sequence[FollowedTable], batch: BatchNumber) -> None:
        """Materialize the tables that are due, all as of a checkpoint's cut, and offer them to the JobMaster."""
        for each in followed:
            now_s = self._clock.monotonic()
            table = self._tables.setdefault(each.log, _Table(Schedule(self._policy, each.log, now_s)))
            table.follow(batch)
            if self._ended.is_set() or not self._is_due(table, each, now_s):
                continue
            try:
                base = self._stored(each, batch)
            except HoldfastError as error:
                _log.info("a follower did not materialize %s: %s", each.log, error)
                table.schedule.cancelled(self._clock.monotonic())
                continue
            table.schedule.stored(now_s, self._clock.monotonic(), PATIENT)
            self._offer(table, each, base)

    def _is_due(self, table: _Table, each: FollowedTable, now_s: float) -> bool:
        handle = each.handle
        waits = now_s < table.until_s or table.records_left
        if waits and table.offered.isdisjoint(handle.objects()):
            return False
        newest = Base(0, NO_BATCH, tuple(handle.materialized), files=each.files)
        size = size_of(handle)
        return table.schedule.due(size, newest, each.table.settled, now_s, self._policy.is_merged_by_owner(size))

    def _offer(self, table: _Table, each: FollowedTable, base: Base) -> None:
        """Give the base to the JobMaster, which owns its objects from now on."""
        reused = frozenset(base.objects).intersection(each.handle.objects())
        each.stored(base.files)
        table.offered, table.until_s = frozenset(base.objects) - reused, self._clock.monotonic() + OFFER_S_MAX
        table.records_left = OFFER_RECORDS
        self._uploader.acknowledge(base.objects)
        self._uploader.release(base.objects)
        log, number = each.log, next(self._numbers)
        groups = log.key_group_start, log.key_group_stop
        made = MadeBase(log.operator, log.table, each.subtask, *groups, base.batch, list(base.materialized))
        offer = BaseOffer(self._process, number, made, sorted(reused))
        self._pool.submit(self._answers.until_answered, self._process.number, lambda: self._job_master.offer(offer))

    def _stored(self, each: FollowedTable, batch: BatchNumber) -> Base:
        """Store the table. Raises `CheckpointFailed` if it was interrupted."""
        made = self._materializer = Materializer(
            each.log, each.table, each.handle.schema, self._uploader, lambda: each.files
        )
        sqn = max((piece.sqn_stop for piece in each.handle.log), default=0)
        base = made.start(sqn, batch, PATIENT, lambda _: None).base
        if self._ended.is_set():
            self.interrupt()
        return base.result()

    def interrupt(self) -> None:
        """Store no further part of the table that is being stored. Any thread may call this."""
        if self._materializer is not None:
            self._materializer.cancel(NO_BATCH)

    def close(self) -> None:
        """End; offers are repeated until they are answered."""
        self._pool.shutdown(wait=False)
        self._uploader.close()
