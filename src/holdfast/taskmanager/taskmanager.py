"""The TaskManager hosts subtasks, and executes the JobMaster's calls on them. Knows neither Flight nor Spark.

    senders ──receive──► inputs ──process──► subtasks ──► outputs ──output──► pull tasks
                                     commit │ undo
                                        cut ▼
                              checkpoints.py: manifest, acknowledgement

Invariants
- A call or a stream of a lower run than the last run seen is refused (`StaleCall`), as is a call or stream meant for
  another incarnation; a stream also once its batch was released.
- Only one of deploy, process, commit and undo runs at a time (`_work`). `cut`, `receive`, `output`, `copy` and
  `metrics` never wait for them: a checkpoint does not wait for a batch.
- Nothing in the store is deleted here; input and output live until `release`, `undo` or `deploy`.
"""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from holdfast.availability import Refusal
from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError, StaleCall
from holdfast.failpoints import hit
from holdfast.formats.handles import MadeBase
from holdfast.functions.operator import BatchContext
from holdfast.graph.program import LATE, OperatorOrigin
from holdfast.ids import NO_BATCH, BatchNumber, CheckpointId, RunNumber
from holdfast.printable import logger
from holdfast.protocol.live_reads import StateRead, StateRows
from holdfast.protocol.parcels import PARCEL_BYTES_MAX, OutputsRequest
from holdfast.protocol.taskmanager import (
    CommitAnswer,
    Deployment,
    ExchangeTag,
    FollowAnswer,
    FollowOrder,
    JobMasterGateway,
    ProcessRequest,
    ProcessResult,
    SubtaskResult,
)
from holdfast.recovery.local import open_copies
from holdfast.storage.copying import CopiedObject, CopyOrder, carry_out
from holdfast.storage.counted import counted
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.buffers import SpillArea
from holdfast.taskmanager.checkpoints import Answers, LocalCheckpoint
from holdfast.taskmanager.hosting import Hosted, host
from holdfast.taskmanager.in_flight import BatchInFlight, check_hosted, named
from holdfast.taskmanager.inputs import Inputs
from holdfast.taskmanager.live_reads import answer
from holdfast.taskmanager.memory import StateSize, give_up_undo
from holdfast.taskmanager.moving import move
from holdfast.taskmanager.outputs import Outputs
from holdfast.taskmanager.process_memory import resident_bytes
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.standing_by import StandingBy
from holdfast.taskmanager.subtask import Subtask
from holdfast.uploads.janitor import DeletionQueue

_log = logger(__name__)

T = TypeVar("T")

SUMMED = ("numRecordsIn", "numRecordsOut", "accumulateBusyTimeMs", "stateRows", "stateBytes", "stateUndoBytes")
"""Metrics of a TaskManager that are sums over its subtasks."""
MANY_ROWS = 1024
"""Number of rows from which on each subtask works on its own thread. Fewer rows take less time than waking the threads,
some 0.1 ms each. A higher value wakes threads less often, and makes subtasks wait for each other more often."""
QUICK_S = 0.002
"""Time in seconds after which work on few rows continues on several threads, because it takes long all the same
(timers, or windows that end)."""


class TaskManager:
    """`TaskManagerGateway` and `OutputReader`. Safe for use from several threads."""

    def __init__(
        self,
        settings: TaskManagerSettings,
        store: ObjectStore,
        job_master: JobMasterGateway,
        clock: Clock | None = None,
    ) -> None:
        self.job_id = settings.job_id
        self.process_id = settings.process
        self.index = settings.process.number
        self.incarnation = settings.process.incarnation
        self.stopped = threading.Event()
        self._asked_to_end = False
        self._settings = settings
        # Heartbeats report the requests that no deployment counts: copies, followers, deletions.
        self._store, self.beside = store, counted(store)
        self._job_master, self._clock = job_master, clock or SystemClock()
        self._area = SpillArea(settings.exchange_memory_bytes_max, settings.local_dir)
        self._inputs, self._outputs = Inputs(self._area), Outputs(self._area)
        self._answers = Answers()
        self._janitor = DeletionQueue(self.beside)
        self._copies = open_copies(
            settings.local_dir, settings.job_id, settings.process.number, settings.local_copies_bytes_max
        )
        parts = self._copies, self._clock, self._janitor, job_master, self._answers
        self._standing_by = StandingBy(settings, self.beside, *parts)
        self._work, self._numbers = threading.Lock(), threading.Lock()
        self._run, self._released, self._committed = 0, -1, NO_BATCH
        self._refusals: list[Refusal] = []
        self._deployments = 0
        self._in_flight: BatchInFlight | None = None
        self._rows_in_flight = 0
        """Rows of the batch in flight that subtasks have taken."""
        self._hosted: Hosted | None = None
        self._pool: ThreadPoolExecutor | None = None
        """Threads for the subtasks of a level."""
        self._state_size: StateSize | None = None

    # The gateway, in the order of a batch's life.

    def deploy(self, deployment: Deployment) -> str:
        found, expected = (deployment.job_id, deployment.task_manager, deployment.incarnation), self._identity
        if found != expected:
            raise StaleCall(f"deployment for (job, TaskManager, incarnation) {found}; this is {expected}")
        self._see(deployment.run, "deploy")
        with self._work:
            self._see(deployment.run, "deploy")
            went_back, obstacle = (self._moved(deployment), "") if deployment.moves else self._rewound(deployment)
            if went_back:
                hit("taskmanager.deploy.after")
                return ""
            self._undeploy(discard=True)
            hit("taskmanager.deploy.before")
            with ThreadPoolExecutor(max(1, len(deployment.subtasks)), thread_name_prefix="restore") as restoring:
                hosted = host(
                    deployment,
                    self._store,
                    self._job_master,
                    self._answers,
                    self._janitor,
                    self._clock,
                    restoring,
                    self._settings.local_dir,
                    self._copies,
                    self._settings.state_memory_bytes_max,
                    self._standing_by.take(deployment, deployment.subtasks),
                )
            self._now_hosts(hosted)
            hit("taskmanager.deploy.after")
            return obstacle

    def follow(self, order: FollowOrder) -> FollowAnswer:
        found = (order.job_id, order.task_manager, order.incarnation)
        if found != self._identity:
            raise StaleCall(f"following for (job, TaskManager, incarnation) {found}; this is {self._identity}")
        return self._standing_by.follow(order)

    def receive(self, tag: ExchangeTag, batches: Iterator[tuple[str, int, int, pa.RecordBatch]]) -> None:
        """Keep the rows of a stream of a sender's attempt: (operator, input, subtask, rows), in order.

        Raises
        ------
        StaleCall
            If the stream is of an earlier run, another incarnation or job, or a released batch.
        """
        found, expected = (tag.job_id, tag.incarnation), (self.job_id, self.incarnation)
        if found != expected:
            raise StaleCall(f"stream for (job, incarnation) {found}; this is {expected}")
        self._check_stream(tag)
        hit("taskmanager.receive")
        attempt = self._inputs.attempt(tag)
        for operator, number, subtask, rows in batches:
            self._check_stream(tag)
            attempt.append((operator, number, subtask), rows)

    def process(self, request: ProcessRequest) -> ProcessResult:
        self._see(request.run, "process")
        # Back-pressure: no batch begins while too many bytes of earlier batches wait to be stored.
        self._deployed().uploader.wait_until_available()
        with self._work:
            self._see(request.run, "process")
            hosted = self._deployed()
            levels = self._begin(request)
            hit("taskmanager.process.before")
            taken = self._inputs.take(request)
            subtasks = hosted.of_level(request.level)
            check_hosted(set(taken), subtasks)
            self._in_flight = BatchInFlight(request.run, request.batch, (*levels, request.level))
            rows = sum(rows.num_rows for inputs in taken.values() for _, rows in inputs)
            self._rows_in_flight = rows + (self._rows_in_flight if levels else 0)
            results = self._each(
                subtasks,
                lambda each: self._process(each, request, taken.get((each.name, each.subtask), [])),
                self._few(hosted.without_users),
            )
            assert self._state_size is not None, "deployed"
            self._state_size.check(subtasks if levels else hosted.subtasks.values())
            hit("taskmanager.process.after")
            return ProcessResult(results)

    def output(self, run: RunNumber, batch: BatchNumber, operator: str, subtask: int) -> Iterator[pa.RecordBatch]:
        self._see(run, "output")
        hit("taskmanager.output")
        return iter(self._outputs.read(batch, operator, subtask))

    def small_outputs(self, asked: OutputsRequest) -> list[list[pa.RecordBatch] | None]:
        """Return the requested outputs, in order, as long as they fit a parcel; None for each of the others."""
        self._see(asked.run, "outputs")
        hit("taskmanager.output")
        return self._outputs.read_small(asked.batch, asked.outputs, PARCEL_BYTES_MAX)

    def output_schema(self, operator: str) -> pa.Schema:
        """The schema of an operator's output."""
        return self._deployed().output_schema(operator)

    def commit(self, run: RunNumber, batch: BatchNumber) -> CommitAnswer:
        refusals = self._commit(run, batch)
        return CommitAnswer(self.metrics(), refusals)

    def _commit(self, run: RunNumber, batch: BatchNumber) -> list[Refusal]:
        """Commit once; return the refusals of a cut after the last committed batch."""
        self._see(run, "commit")
        with self._work:
            self._see(run, "commit")
            hosted = self._deployed()
            if batch <= self._committed:
                return self._refusals
            if self._in_flight is None or self._in_flight[:2] != (run, batch):
                raise HoldfastError(
                    f"TaskManager {self.index}: commit of batch {batch} in run {run}, but in flight is "
                    f"{named(self._in_flight)}; process it first"
                )
            hit("taskmanager.commit.before")
            subtasks = list(hosted.subtasks.values())
            self._each(subtasks, lambda each: each.commit(batch), self._few(hosted.program.operators))
            self._refusals = [refusal for each in subtasks if (refusal := each.refusal()) is not None]
            with self._numbers:
                self._committed = batch
                self._in_flight = None
            give_up_undo(self._settings, subtasks)
            hit("taskmanager.commit.after")
            self._let_go(batch)
            return self._refusals

    def undo(self, run: RunNumber) -> None:
        self._see(run, "undo")
        self._inputs.release_runs_before(run)
        with self._work:
            self._see(run, "undo")
            hit("taskmanager.abort")
            if self._in_flight is not None and self._hosted is not None:
                self._each(list(self._hosted.subtasks.values()), lambda each: each.undo())
            self._in_flight = None
            self._inputs.release_runs_before(run)
            self._outputs.release_all()

    def _let_go(self, batch: BatchNumber) -> None:
        """Release input and output of a committed batch: senders have fetched all output before the commit is
        ordered."""
        hit("taskmanager.release")
        with self._numbers:
            self._released = max(self._released, batch)
        self._inputs.release(batch)
        self._outputs.release(batch)

    def cut(self, run: RunNumber, checkpoint_id: CheckpointId, batch: BatchNumber) -> None:
        self._see(run, "cut")
        hosted = self._deployed()
        if batch > self._committed:
            raise HoldfastError(
                f"TaskManager {self.index}: cut of checkpoint {checkpoint_id} at batch {batch}, "
                f"but the last batch committed here is {self._committed}"
            )
        begun_s = time.monotonic()
        hit("taskmanager.cut.before")
        try:
            handles = hosted.cut(checkpoint_id, batch)
        except Exception as error:
            hosted.checkpoints.decline(checkpoint_id, error)
            return
        sync_ms = (time.monotonic() - begun_s) * 1000.0
        hosted.checkpoints.start(LocalCheckpoint(checkpoint_id, batch, handles, hosted.held, begun_s, sync_ms))

    def complete(
        self, run: RunNumber, checkpoint_id: CheckpointId, part: str = "", bases: Sequence[MadeBase] = ()
    ) -> None:
        self._see(run, "complete")
        hit("taskmanager.complete")
        self._deployed().completed(checkpoint_id, part, bases)

    def abort_checkpoint(self, run: RunNumber, checkpoint_id: CheckpointId) -> None:
        self._see(run, "abort_checkpoint")
        self._deployed().aborted(checkpoint_id)

    def copy(self, order: CopyOrder) -> list[CopiedObject]:
        hit("process.copy")
        return carry_out(self.beside, order)

    def read_state(self, read: StateRead) -> StateRows:
        return answer(read, self.index, self._work, lambda: (self._deployed(), self._committed))

    def metrics(self) -> dict[str, float]:
        """Gauges, counters and histograms of the current deployment, by name; 0 if nothing is hosted."""
        hosted = self._hosted
        subtasks = [] if hosted is None else list(hosted.subtasks.values())
        values: dict[str, float] = {} if hosted is None else hosted.uploader.metrics() | hosted.metrics()
        totals = dict.fromkeys(SUMMED, 0.0)
        for each in subtasks:
            for name, value in each.metrics().items():
                values[f"{name}.{each.name}.{each.subtask}"] = value
                if name in totals:
                    totals[name] += value
        return (
            values
            | totals
            | {
                "incarnation": float(self.incarnation),
                "deployments": float(self._deployments),
                "exchangeMemoryBytes": float(self._area.memory_bytes),
                "exchangeSpilledBytes": float(self._area.spilled_bytes),
                "lastCommittedBatch": float(self._committed),
                "processMemoryBytes": float(resident_bytes()),
                "processObjects": float(sys.getallocatedblocks()),
            }
        )

    def stop(self) -> None:
        """Ask the runner of this TaskManager to end it."""
        self._asked_to_end = True
        self.stopped.set()

    def close(self) -> None:
        """Free everything in this process and on its disk.

        If this TaskManager was asked to end, objects that no acknowledgement names are deleted too, and so are local
        copies. Otherwise the store is not touched, and a successor may restore from the copies.
        """
        self._answers.end()
        self._standing_by.close()
        with self._work:
            self._undeploy(discard=self._asked_to_end)
            if self._asked_to_end:
                self._janitor.sweep()
            self._area.close()
            if self._copies is not None:
                self._copies.close(delete=self._asked_to_end)

    # Inside.

    def _rewound(self, deployment: Deployment) -> tuple[bool, str]:
        """Return True if the hosted tables went back, in memory, to the base of a deployment, which they serve now.
        Otherwise return False, with the reason if going back was wanted.
        """
        hosted = self._hosted
        to_batch = None if hosted is None else hosted.rewinds_to(deployment, self._committed)
        if hosted is None or to_batch is None:
            return False, ""
        try:
            hosted.rewind(to_batch, deployment, self._clock)
        except HoldfastError as error:
            _log.info("TaskManager %d cannot go back in memory, and restores its state: %s", self.index, error)
            return False, str(error)
        with self._numbers:
            self._in_flight = None
            self._committed = self._released = BatchNumber(deployment.first_batch - 1)
        self._inputs.release_all()
        self._outputs.release_all()
        _log.info("TaskManager %d went back to after batch %d in memory", self.index, to_batch)
        return True, ""

    def _moved(self, deployment: Deployment) -> bool:
        """Return True if the hosted subtasks were changed to those of a deployment; False: the deployment must be
        hosted anew."""
        hosted, parts = self._hosted, (self._standing_by, self._store, self._settings, self._clock)
        if hosted is None or self._in_flight or not move(hosted, deployment, self._committed, *parts):
            return False
        if self._pool is not None:
            self._pool.shutdown()
        self._now_hosts(hosted)
        return True

    def _now_hosts(self, hosted: Hosted) -> None:
        self._pool = ThreadPoolExecutor(hosted.side_by_side, thread_name_prefix="subtask")
        self._state_size = StateSize(self._settings, hosted.program.state)
        with self._numbers:
            self._hosted = hosted
            self._deployments += 1
            self._committed = self._released = BatchNumber(hosted.deployment.first_batch - 1)

    @property
    def _identity(self) -> tuple[str, int, int]:
        return self.job_id, self.index, self.incarnation

    def _see(self, run: RunNumber, what: str) -> None:
        with self._numbers:
            if run < self._run:
                raise StaleCall(
                    f"TaskManager {self.index}: {what} of run {run} is refused: run {self._run} has begun; "
                    "the caller is left over and gives up"
                )
            self._run = run

    def _check_stream(self, tag: ExchangeTag) -> None:
        self._see(tag.run, f"a stream of attempt {tag.attempt}")
        if tag.batch <= self._released:
            raise StaleCall(
                f"TaskManager {self.index}: batch {tag.batch} was let go; attempt {tag.attempt} is left over"
            )

    def _deployed(self) -> Hosted:
        if self._hosted is None:
            raise StaleCall(f"TaskManager {self.index}, incarnation {self.incarnation}: nothing is deployed here yet")
        return self._hosted

    def _begin(self, request: ProcessRequest) -> tuple[int, ...]:
        """Check that the batch can be processed now; return its levels that were processed already."""
        if self._in_flight is None:
            if request.batch <= self._committed:
                raise HoldfastError(
                    f"TaskManager {self.index}: batch {request.batch} cannot be processed: "
                    f"batch {self._committed} is committed; plan it under a new number"
                )
            return ()
        if self._in_flight[:2] != (request.run, request.batch) or request.level in self._in_flight.levels:
            raise HoldfastError(
                f"TaskManager {self.index}: batch {request.batch} in run {request.run}, level {request.level} cannot "
                f"be processed: in flight is {named(self._in_flight)}; commit or undo it first"
            )
        return self._in_flight.levels

    def _process(
        self, subtask: Subtask, request: ProcessRequest, inputs: list[tuple[int, pa.RecordBatch]]
    ) -> SubtaskResult:
        context = BatchContext(
            request.batch,
            request.batch_time_us,
            subtask.name,
            subtask.subtask,
            request.watermarks.get(subtask.name),
            request.closed.get(subtask.name),
        )
        assert self._state_size is not None, "deployed"
        began_s = self._clock.monotonic()
        result = subtask.process(context, inputs, self._outputs.new, self._state_size.room(subtask))
        rows_out = self._outputs.put(request.batch, subtask.name, subtask.subtask, result.output)
        late_out = {
            LATE[number]: self._outputs.put(
                request.batch, OperatorOrigin(subtask.name, LATE[number]).kept_as, subtask.subtask, rows
            )
            for number, rows in result.late_rows.items()
            if rows
        }
        subtask.counted.note(rows_out=rows_out)
        rows_in, bad = sum(rows.num_rows for _, rows in inputs), tuple(result.bad)
        busy_s = subtask.was_busy(self._clock.monotonic() - began_s)
        return SubtaskResult(
            subtask.name, subtask.subtask, rows_in, rows_out, bad, result.timers, result.late, late_out, busy_s
        )

    def _few(self, operators: Collection[str]) -> Collection[str]:
        """Return these operators if the batch in flight has few rows; otherwise none."""
        return operators if self._rows_in_flight < MANY_ROWS else ()

    def _each(self, subtasks: list[Subtask], do: Callable[[Subtask], T], quick: Collection[str] = ()) -> list[T]:
        """Run `do` for each subtask; when all have ended, raise the first error, if any. Each subtask has its own
        thread; subtasks of `quick` operators run on the calling thread, as long as they are quick.
        """
        assert self._pool is not None, "deployed"
        until_s = self._clock.monotonic() + QUICK_S
        futures: list[Future[T]] = []
        for each in subtasks:
            is_quick = each.name in quick and self._clock.monotonic() < until_s
            futures.append(_done(do, each) if is_quick else self._pool.submit(do, each))
        errors = [error for error in (future.exception() for future in futures) if error is not None]
        if errors:
            raise next((error for error in errors if isinstance(error, HoldfastError)), errors[0])
        return [future.result() for future in futures]

    def _undeploy(self, *, discard: bool) -> None:
        with self._numbers:
            hosted, self._hosted, self._in_flight = self._hosted, None, None
        self._inputs.release_all()
        self._outputs.release_all()
        if hosted is not None:
            hosted.close(discard=discard)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _done(do: Callable[[Subtask], T], subtask: Subtask) -> Future[T]:
    """Run `do` on this thread; the future has the outcome."""
    future: Future[T] = Future()
    try:
        future.set_result(do(subtask))
    except Exception as error:
        future.set_exception(error)
    return future
