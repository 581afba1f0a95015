"""TaskManagers of a driver in waiting follow the logs of the leader's job, so that a takeover has little to restore.

    the leader's newest record, by its heartbeat ─► read ─► follow(order) ─► each TaskManager, for its place
                                                               └ an object is gone ─► again, with the newest record

The leader does not know these followers, and keeps no objects for them. The new objects of a checkpoint stay until the
table is stored the next time, and are usually read within a moment. A TaskManager that is too slow is asked again with
the newest record, and continues from it or starts anew.

Only reads the store, and decides nothing about a takeover: at its deployment, a TaskManager applies the pieces that it
has not applied yet, and restores everything if it has followed another place than it gets.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from holdfast.errors import HoldfastError
from holdfast.ids import JournalNumber
from holdfast.jobmaster.batches.deployment import subtasks_of
from holdfast.jobmaster.starting.start import Start, layout_at
from holdfast.jobmaster.starting.warm import WarmProcesses
from holdfast.journal.codec import StoredJob
from holdfast.journal.fence import read_record
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger
from holdfast.protocol.taskmanager import BaseCheckpoint, ExchangeRoute, FollowAnswer, FollowOrder

log = logger(__name__)

LOOK_S = 0.5
"""Seconds between two looks for a new record. With a higher value a takeover has more left to apply."""
AT_ONCE_MAX = 8
"""Number of TaskManagers that are asked side by side. With a higher value, large jobs are followed more closely, and
this driver has more threads."""


class WarmFollowing:
    """Works from construction until `close`. `newest` returns the number of the leader's newest record, or 0."""

    def __init__(self, start: Start, job: StoredJob, warm: WarmProcesses, newest: Callable[[], JournalNumber]) -> None:
        self._start, self._job, self._warm, self._newest = start, job, warm, newest
        self._asked: dict[ExchangeRoute, tuple[JournalNumber, Future[FollowAnswer]]] = {}
        """The last order of each TaskManager: its record, and its answer."""
        self._answers: dict[ExchangeRoute, FollowAnswer] = {}
        """The last answer of each TaskManager."""
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="holdfast-warm-follow")
        self._thread = threading.Thread(target=self._run, name="holdfast-warm-following", daemon=True)
        self._thread.start()

    @property
    def followed(self) -> JournalNumber | None:
        """The oldest record whose state a place has; None while some place has none."""
        found = [self._answers.get(each) for each in self._warm.task_managers()]
        reached = [number for each in found for number in ([None] if each is None else each.numbers)]
        numbers = [number for number in reached if number is not None]
        return min(numbers) if numbers and len(numbers) == len(reached) else None

    def close(self) -> None:
        """Give no further orders. Calls under way end with the next deployment of their TaskManager, or with it."""
        self._ended.set()
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self._look()
            except HoldfastError as error:
                log.info("%s: the leader's newest record cannot be followed yet: %s", self._job.name, error)

    def _look(self) -> None:
        newest = self._newest()
        behind = [each for each in self._warm.task_managers() if self._is_due(each, newest)]
        record = read_record(self._start.store, newest) if behind else None
        if isinstance(record, CheckpointRecord):
            for each in behind:
                self._asked[each] = newest, self._pool.submit(self._follow, each, newest, record)

    def _is_due(self, route: ExchangeRoute, newest: JournalNumber) -> bool:
        """Note the last answer of a TaskManager; return whether it must be asked again."""
        number, asked = self._asked.get(route, (JournalNumber(0), None))
        if asked is None:
            return newest > 0
        if not asked.done():
            return False
        if (error := asked.exception()) is not None:
            log.info("TaskManager %d does not follow record %d: %s", route.task_manager, number, error)
            return newest > 0
        before, answer = self._answers.get(route), asked.result()
        if answer.left_out and (before is None or not before.left_out):
            log.warning("%s: TaskManager %d: %s", self._job.name, route.task_manager, answer.left_out)
        self._answers[route] = answer
        return newest > number

    def _follow(self, route: ExchangeRoute, number: JournalNumber, record: CheckpointRecord) -> FollowAnswer:
        start, layout, place = self._start, layout_at(self._start, record), route.task_manager
        return self._warm.gateway(route).follow(
            FollowOrder(
                job_id=self._job.job_id,
                epoch=record.epoch,
                task_manager=route.task_manager,
                incarnation=route.incarnation,
                program=start.shipped,
                max_parallelism=layout.max_parallelism,
                places=[subtasks_of(place, layout, start.program, [])] if place < layout.task_managers else [],
                number=number,
                base=BaseCheckpoint(record.epoch, record.checkpoint_id, record.batch),
                manifests=list(record.manifests),
                writers=sorted(record.writers()),
            )
        )
