"""The JobMaster: takes over the storage, deploys, runs the batch loop, fails over, ends.

    start() ─► take over ─► start TaskManagers ─► deploy ─► ┌─► batch ─► batch ─► … ─► stop
                                              ▲             │ lost TaskManager, failed checkpoints
                                              └─ restore ◄──┘

One thread, the batch loop, owns positions and run numbers; checkpoints live in `control`, on a thread of their own.
"""

import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from holdfast import errors, failpoints
from holdfast.changelog.handles import Manifest
from holdfast.checkpoint import events
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.events import Position
from holdfast.clock import Clock
from holdfast.exchange.task import DEAD_LETTERS
from holdfast.graph.plan import Plan
from holdfast.graph.program import Program
from holdfast.ids import BatchNumber, JournalNumber
from holdfast.jobmaster.batches import BatchOutcome, BatchRunner
from holdfast.jobmaster.cluster import Cluster
from holdfast.jobmaster.control import CheckpointStats, Control, JobFacts, Listeners
from holdfast.jobmaster.deployment import Layout, deployment_for
from holdfast.jobmaster.identity import identities
from holdfast.jobmaster.janitor import Janitor
from holdfast.jobmaster.planner import AllOffsets, BatchLimits, Planner
from holdfast.jobmaster.progress import Progress
from holdfast.jobmaster.publisher import Publisher
from holdfast.jobmaster.taskmanagers import TaskManagers
from holdfast.journal.codec import StoredJob
from holdfast.journal.fence import TakenOver
from holdfast.journal.journal import Journal
from holdfast.journal.records import CheckpointRecord
from holdfast.recovery.restore import load_manifests
from holdfast.settings import AvailableNow, CheckpointConfig, ProcessingTime, QueryTrigger
from holdfast.sinks.base import PublishContext, Sink
from holdfast.sinks.dead_letters import DEAD_LETTER_SCHEMA
from holdfast.sources.base import EnumeratorContext
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.protocol import Acknowledgement, ChangelogSettings, Decline, ExchangeRoute, ExchangeRoutes

log = logging.getLogger(__name__)

BATCH_ATTEMPTS_MAX = 3
FAILOVERS_MAX = 10
"""In a row, without a batch committed in between."""
IDLE_S_MIN = 0.01
IDLE_S_MAX = 0.1
LOSS_NOTICE_S = 5.0

_FATAL = (
    errors.BadRecord,
    errors.UserFunctionError,
    errors.StateTooLarge,
    errors.JobRefused,
    errors.PublishFailed,
    errors.CorruptObject,
    errors.Fenced,
)


class Stopped(Exception):
    """The query was stopped; not an error."""


class _FailoverNeeded(Exception):
    """State on TaskManagers is gone or unknown: restore from the last checkpoint."""


@dataclass(frozen=True)
class MasterSettings:
    """What the JobMaster is told once."""

    name: str
    layout: Layout
    checkpoint: CheckpointConfig
    limits: BatchLimits
    dead_letter: bool
    drop_state: tuple[str, ...]
    trigger: QueryTrigger

    @property
    def changelog(self) -> ChangelogSettings:
        config = self.checkpoint
        return ChangelogSettings(
            config.log_handles_max,
            config.log_ratio_max,
            config.materialization_interval_s,
            config.persist_delay_s,
            config.persist_size_threshold_bytes,
            config.object_size_max_bytes,
            config.in_flight_max_bytes,
        )


@dataclass
class _Waiter:
    """`processAllAvailable`: everything that was there at the call, processed and published."""

    promise: "Future[None]" = field(default_factory=Future)
    until: AllOffsets | None = None
    checkpoint: "Future[JournalNumber | None] | None" = None


class JobMaster:
    """One start of a job. `start` raises what can be known at once; then `error` says how it ended."""

    def __init__(
        self,
        settings: MasterSettings,
        job: StoredJob,
        store: ObjectStore,
        program: Program,
        shipped: bytes,
        cluster: Cluster,
        clock: Clock,
        taken: "TakenOver",
    ) -> None:
        self.settings = settings
        self.job = job
        self.program = program
        self.epoch = int(taken.epoch)
        self.error: Exception | None = None
        self._taken = taken
        self._store = store
        self._shipped = shipped
        self._cluster = cluster
        self._clock = clock
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._stopped_early = False
        self._on_close: Callable[[], None] = lambda: None
        self._failure: Exception | None = None
        self._failover_reason: str | None = None
        self._paused: frozenset[str] = frozenset()
        self._run = 1
        self._failovers = 0
        self._waiters: list[_Waiter] = []
        self._lock = threading.Lock()
        self._completed_positions: list[Position] = []
        self._last_started_s = float("-inf")
        self.progress = Progress(settings.name, self.program, clock)
        self._task_managers = TaskManagers(cluster, settings.layout.task_managers, clock, self._on_lost)
        self._publishers = self._make_publishers()
        self._planner = self._make_planner()
        self._control = self._make_control(Journal(store, taken.epoch, taken.base_number))
        self._thread = threading.Thread(target=self._main, name=f"holdfast-{settings.name}", daemon=True)
        self._background = ThreadPoolExecutor(1, "holdfast-cleanup")
        self._runner: BatchRunner | None = None

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Deploy, and begin. Raises what keeps the job from starting; everything is ended then."""
        try:
            base = self._taken.base
            self._planner.begin(_position(base))
            self._control.open(self._taken.base_number, base, self._base_objects(base))
            janitor = Janitor(self._store, self._taken, self._publishers)
            self._background.submit(janitor.run, self._stopping.is_set)
            self._start_deployment(base)
        except BaseException:
            self._close()
            raise
        self._thread.start()

    def _start_deployment(self, base: CheckpointRecord | None) -> None:
        """The first deployment; TaskManagers that end meanwhile are started again."""
        for attempt in range(FAILOVERS_MAX):
            try:
                self._deploy(base)
                return
            except errors.TaskManagerLost as error:
                if attempt == FAILOVERS_MAX - 1:
                    raise errors.JobRefused(f"TaskManagers keep ending while they start; last: {error}") from error
                log.warning("starting again: %s", error)
                self._task_managers.await_loss(LOSS_NOTICE_S)
                self._run += 1

    def on_close(self, call: Callable[[], None]) -> None:
        """Called last when everything of this start ends."""
        self._on_close = call

    def stop(self, timeout_s: float | None = None) -> None:
        """Undo the batch in flight and end; work since the last checkpoint is repeated at the next start."""
        self._stopping.set()
        self._wake.set()
        self._cluster.cancel(self._run)
        self._ended.wait(timeout_s)

    def wait(self, timeout_s: float | None) -> bool:
        return self._ended.wait(timeout_s)

    @property
    def active(self) -> bool:
        return not self._ended.is_set()

    @property
    def paused_by(self) -> frozenset[str]:
        """Sinks that lag so far behind that planning waits for them."""
        return self._paused

    def _main(self) -> None:
        try:
            self._loop()
        except Stopped:
            self._stopped_early = True
            log.info("%s: stopped", self.settings.name)
        except Exception as error:
            if not self._stopping.is_set():
                log.error("%s: ended: %s", self.settings.name, error)
                self.error = error
        finally:
            self._close()
            self._ended.set()
            self._fail_waiters()

    def _close(self) -> None:
        self._stopping.set()
        self._control.close()
        self._task_managers.stop()
        self._cluster.stop()
        self._planner.close()
        self._background.shutdown(wait=True, cancel_futures=True)
        self._on_close()

    # --- the batch loop -----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        until = self._planner.latest() if isinstance(self.settings.trigger, AvailableNow) else None
        idle_s = IDLE_S_MIN
        while True:
            self._check()
            if self._failover_reason is not None:
                self._failover()
            self._tell_sources()
            ready = not self._paused and self._due()
            latest = until or self._latest()
            plan = self._planner.next(latest) if ready else None
            if plan is not None:
                self._last_started_s = self._clock.monotonic()
                self._process(plan)
                idle_s = IDLE_S_MIN
                continue
            if until is not None and ready and self._finished():
                return
            self._wake.wait(idle_s)
            self._wake.clear()
            idle_s = min(IDLE_S_MAX, idle_s * 2)

    def _latest(self) -> AllOffsets:
        """What is new; requests for all that is available take it as their end."""
        latest = self._planner.latest()
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            self._serve(waiter, latest)
        return latest

    def _serve(self, waiter: _Waiter, latest: AllOffsets) -> None:
        if waiter.until is None:
            waiter.until = latest
        if waiter.checkpoint is None and self._planner.reached(waiter.until):
            waiter.checkpoint = self._control.request_checkpoint(uuid.uuid4().hex)
        if waiter.checkpoint is None or not waiter.checkpoint.done():
            return
        if waiter.checkpoint.exception() is not None:
            waiter.checkpoint = None
        elif self._control.published():
            self._waiters.remove(waiter)
            waiter.promise.set_result(None)

    def _finished(self) -> bool:
        """`available_now`: all is processed; take the final checkpoint, wait for publication."""
        trigger = self.settings.trigger
        assert isinstance(trigger, AvailableNow)
        deadline_s = None if trigger.timeout_s is None else self._clock.monotonic() + trigger.timeout_s
        while True:
            promise = self._control.request_checkpoint(uuid.uuid4().hex)
            if not self._await(promise.done):
                return False
            error = promise.exception()
            if error is None:
                return self._await(self._control.published)
            if not isinstance(error, errors.CheckpointFailed) or not error.soft:
                log.warning("the final checkpoint failed, trying again: %s", error)
            if deadline_s is not None and self._clock.monotonic() > deadline_s:
                raise errors.CheckpointFailed(f"no final checkpoint within {trigger.timeout}: {error}") from error

    def _await(self, condition: Callable[[], bool]) -> bool:
        """True once the condition holds; False where a failover has to come first."""
        while not condition():
            self._check()
            if self._failover_reason is not None:
                return False
            self._wake.wait(IDLE_S_MIN)
            self._wake.clear()
        return True

    def _due(self) -> bool:
        """`processing_time(interval)`: the starts of batches are at least the interval apart."""
        trigger = self.settings.trigger
        interval_s = trigger.interval_s if isinstance(trigger, ProcessingTime) else 0.0
        return self._clock.monotonic() >= self._last_started_s + interval_s

    def _process(self, plan: Plan) -> None:
        """Run a batch until it is committed; raises what no retry can help against."""
        started_s = self._clock.monotonic()
        for attempt in range(1, BATCH_ATTEMPTS_MAX + 1):
            outcome = BatchOutcome()
            try:
                assert self._runner is not None
                self._runner.execute(plan, outcome)
                break
            except Exception as error:
                self._abandon(outcome)
                self._check()
                if isinstance(error, _FATAL) and not outcome.committing:
                    self._abort_quietly()
                    raise
                if self._must_fail_over(error, outcome):
                    return
                if attempt == BATCH_ATTEMPTS_MAX:
                    self._abort_quietly()
                    raise
                log.warning("batch %d, attempt %d: %s; trying again", plan.batch, attempt, error)
                try:
                    self._next_run()
                except errors.TaskManagerLost as lost:
                    if self._must_fail_over(lost, outcome):
                        return
                    raise
        failpoints.hit("jobmaster.committed")
        self._failovers = 0
        position = self._planner.committed(plan)
        self._control.post(
            events.BatchCommitted(BatchNumber(plan.batch), position, plan.progress, outcome.committables)
        )
        self.progress.batch(plan, outcome, self._clock.monotonic() - started_s, self._planner.lag())

    def _must_fail_over(self, error: Exception, outcome: BatchOutcome) -> bool:
        """Whether the error comes with a TaskManager's end, perhaps noticed a little later."""
        if not self.settings.layout.task_managers:
            return False
        if isinstance(error, errors.TaskManagerLost):
            deadline_s = self._clock.monotonic() + LOSS_NOTICE_S
            while self._failover_reason is None and self._clock.monotonic() < deadline_s:
                self._check()
                self._wake.wait(IDLE_S_MIN)
                self._wake.clear()
        if self._failover_reason is None and outcome.committing:
            self._failover_reason = f"a commit was not answered: {error}"
        return self._failover_reason is not None

    def _abandon(self, outcome: BatchOutcome) -> None:
        """Staged output of a batch that was not committed goes at once."""
        for sink, committables in outcome.committables.items():
            self._control.drop_staged(sink, committables)

    def _abort_quietly(self) -> None:
        """Leave state as it was before the batch, for whoever looks at it; the query ends anyway."""
        try:
            self._next_run()
        except errors.HoldfastError as error:
            log.warning("the batch in flight could not be undone: %s", error)

    def _next_run(self) -> None:
        """A new run number: what still runs under the old one changes nothing any more."""
        self._cluster.cancel(self._run)
        self._run += 1
        self._control.run_changed(self._run)
        self._task_managers.on_all(lambda _, gateway: gateway.abort(self._run))
        self._runner = self._make_runner()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping.is_set():
            raise Stopped

    # --- failover -----------------------------------------------------------------------------------------------------

    def _failover(self) -> None:
        """Everything restores from the newest checkpoint."""
        failpoints.hit("jobmaster.failover")
        reason = self._failover_reason or "unknown"
        log.warning("%s: restarting from the last checkpoint: %s", self.settings.name, reason)
        promise = self._control.begin_failover(reason)
        self._cluster.cancel(self._run)
        while not promise.done():
            self._check()
            self._wake.wait(IDLE_S_MIN)
        base = promise.result()
        while True:
            self._failovers += 1
            if self._failovers > FAILOVERS_MAX:
                raise errors.TaskManagerLost(f"{FAILOVERS_MAX} restarts in a row without a batch; last: {reason}")
            self._failover_reason = None
            self._run += 1
            try:
                self._deploy(base)
                break
            except (errors.TaskManagerLost, errors.StaleCall, errors.StorageError) as error:
                self._check()
                reason = str(error)
                log.warning("restarting again: %s", reason)
                if isinstance(error, errors.TaskManagerLost):
                    self._task_managers.await_loss(LOSS_NOTICE_S)
        self._planner.restore(_position(base))
        self.progress.restarted(reason)

    def _deploy(self, base: CheckpointRecord | None) -> None:
        layout = self.settings.layout
        live: dict[int, int] = {}
        if layout.task_managers:
            self._task_managers.start_missing()
            self._task_managers.await_serving(self._stopping)
            manifests = self._manifests(base)
            routes = self._task_managers.routes()
            live = {route.task_manager: route.incarnation for route in routes}
            failpoints.hit("jobmaster.deploy.before")
            self._task_managers.on_all(
                lambda index, gateway: gateway.deploy(
                    deployment_for(
                        index,
                        live[index],
                        layout,
                        self.program,
                        self._shipped,
                        manifests,
                        self.job.job_id,
                        self.epoch,
                        self._run,
                        self._planner.next_batch,
                        self.settings.changelog,
                    )
                )
            )
        self._runner = self._make_runner()
        failpoints.hit("jobmaster.deploy.after")
        self._control.deployed(self._run, live)

    def _manifests(self, base: CheckpointRecord | None) -> list[Manifest]:
        if base is None:
            return []
        drop = set(self.settings.drop_state)
        found = load_manifests(self._store, base.manifests)
        return [
            msgspec.structs.replace(manifest, tables=[table for table in manifest.tables if table.operator not in drop])
            for manifest in found
        ]

    def _on_lost(self, task_manager: int, reason: str) -> None:
        """Any thread: a TaskManager ended. The batch in flight is cancelled so that the loop comes to notice."""
        self._ask_failover(f"TaskManager {task_manager} ended: {reason}")
        self._cluster.cancel(self._run)

    def _ask_failover(self, reason: str) -> None:
        self._failover_reason = self._failover_reason or reason
        self._wake.set()

    # --- what others ask ----------------------------------------------------------------------------------------------

    def register(self, task_manager: int, incarnation: int, address: str) -> bool:
        return self._task_managers.register(task_manager, incarnation, address)

    def heartbeat(self, task_manager: int, incarnation: int) -> bool:
        return self._task_managers.heartbeat(task_manager, incarnation)

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        failpoints.hit("jobmaster.acknowledged")
        return self._control.acknowledge(acknowledgement)

    def decline(self, decline: Decline) -> bool:
        return self._control.decline(decline)

    def process_all_available(self) -> "Future[None]":
        """Kept once everything available at the call is processed and published."""
        waiter = _Waiter()
        with self._lock:
            self._waiters.append(waiter)
        if self._ended.is_set():
            self._fail_waiters()
        self._wake.set()
        return waiter.promise

    def routes(self) -> list[ExchangeRoute]:
        """The TaskManagers that serve now."""
        return self._task_managers.routes()

    def trigger_checkpoint(self) -> "Future[JournalNumber | None]":
        return self._control.request_checkpoint(uuid.uuid4().hex)

    def update(self, checkpoint: CheckpointConfig) -> None:
        self._control.post(events.ConfigChanged(checkpoint))

    def _fail_waiters(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if self.error is None and not self._stopped_early:
                waiter.promise.set_result(None)
            else:
                waiter.promise.set_exception(self.error or errors.QueryFailed("the query was stopped"))

    def _on_completed(self, stats: CheckpointStats, position: Position) -> None:
        self.progress.checkpoint(stats)
        with self._lock:
            self._completed_positions.append(position)
        self._wake.set()

    def _tell_sources(self) -> None:
        """On the loop's thread, which owns the enumerators."""
        with self._lock:
            positions, self._completed_positions = self._completed_positions, []
        if positions:
            self._planner.completed(positions[-1])

    def _on_failed(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake.set()
        self._cluster.cancel(self._run)

    def _on_planning(self, paused: frozenset[str]) -> None:
        self._paused = paused
        self._wake.set()

    # --- parts --------------------------------------------------------------------------------------------------------

    def _make_publishers(self) -> dict[str, Publisher]:
        sinks: dict[str, Sink] = dict(self.program.sinks)
        schemas = dict(self.program.sink_schemas)
        if self.program.dead_letters is not None:
            sinks[DEAD_LETTERS] = self.program.dead_letters
            schemas[DEAD_LETTERS] = DEAD_LETTER_SCHEMA
        return {
            name: Publisher(
                sink,
                PublishContext(self.job.job_id, name, self._store, schemas[name], self.program.sink_keys.get(name, ())),
                self._store,
            )
            for name, sink in sinks.items()
        }

    def _make_planner(self) -> Planner:
        enumerators = {
            name: source.enumerator(EnumeratorContext(self._store, name, self.epoch, self._clock))
            for name, source in self.program.sources.items()
        }
        return Planner(enumerators, self.settings.limits, self._cluster.senders, self._clock)

    def _make_control(self, journal: Journal) -> Control:
        layout = self.settings.layout
        facts = JobFacts(self.epoch, identities(self.program), layout.parallelism, layout.max_parallelism)
        listeners = Listeners(
            self._on_completed, self.progress.checkpoint_failed, self._ask_failover, self._on_failed, self._on_planning
        )
        return Control(
            Coordinator(self.settings.checkpoint),
            journal,
            self._store,
            self._task_managers,
            self._publishers,
            facts,
            self._clock,
            listeners,
        )

    def _make_runner(self) -> BatchRunner:
        layout = self.settings.layout
        routes = ExchangeRoutes(self.job.job_id, self._task_managers.routes(), layout.owners, layout.max_parallelism)
        return BatchRunner(
            self.job.job_id,
            self.epoch,
            self._run,
            self.program,
            self._cluster,
            self._task_managers,
            routes,
            self._store,
            self.settings.dead_letter,
        )

    def _base_objects(self, base: CheckpointRecord | None) -> frozenset[str]:
        if base is None:
            return frozenset()
        objects = set(base.manifests)
        for manifest in load_manifests(self._store, base.manifests):
            for table in manifest.tables:
                objects.update(table.objects())
        return frozenset(objects)


def _position(base: CheckpointRecord | None) -> Position | None:
    if base is None:
        return None
    return Position(base.batch_time_us, base.offsets, base.source_objects)
