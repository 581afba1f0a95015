"""The JobMaster: takes over the storage, deploys, runs the batch loop, fails over, ends.

    start() ─► take over ─► start TaskManagers ─► deploy ─► ┌─► batch ─► batch ─► … ─► stop
                                              ▲             │ lost TaskManager, failed checkpoints
                                              └─ restore ◄──┘

One thread, the batch loop, owns positions and run numbers; checkpoints live in `control`, on a thread of their own.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

from holdfast import errors, failpoints
from holdfast.checkpoint import events
from holdfast.checkpoint.events import Position
from holdfast.checkpoint.outstanding import Outstanding
from holdfast.clock import Clock
from holdfast.graph.plan import Plan
from holdfast.ids import BatchNumber, JournalNumber, ProcessId, Role
from holdfast.jobmaster.batches import BatchOutcome
from holdfast.jobmaster.checkpoint_stats import CheckpointStats
from holdfast.jobmaster.cluster import Cluster
from holdfast.jobmaster.control import Control, Listeners
from holdfast.jobmaster.deployer import LOSS_NOTICE_S, Deployer, StartedJob, base_objects
from holdfast.jobmaster.news import SourceNews
from holdfast.jobmaster.outages import BATCHES, PLANNING, RESTORES, Outages, is_outage
from holdfast.jobmaster.pace import IDLE_S_MAX, IDLE_S_MIN, NAP_S_MIN, batch_due_in_s, idle_wait_s
from holdfast.jobmaster.parts import FATAL, control_of, log_restored, planner_of, position_of, publishers_of, sweeper_of
from holdfast.jobmaster.planner import AllOffsets
from holdfast.jobmaster.processes import Processes
from holdfast.jobmaster.progress import Progress, Standing
from holdfast.jobmaster.senders import Senders
from holdfast.jobmaster.taskmanagers import TaskManagers
from holdfast.jobmaster.waiters import End, Waiters
from holdfast.journal.fence import TakenOver
from holdfast.settings import AvailableNow, CheckpointConfig, ProcessingTime
from holdfast.sources.objects import SourceObjects
from holdfast.taskmanager.protocol import Acknowledgement, Decline, ExchangeRoute, Registration

log = logging.getLogger(__name__)

BATCH_ATTEMPTS_MAX = 3
FAILOVERS_MAX = 10
"""In a row, without a batch committed in between."""
CLOSE_S_MAX = 5.0
"""How long `stop` waits for a last record; without it some output is published once more by the next start."""
LOOK_AT_CLUSTER_S = 1.0
"""How soon the end of the Spark session is noticed while nothing runs that would notice by itself."""
GRACE_S = 1.0
"""How long `stop` lets the Spark jobs of a batch end by themselves: Spark warns of each task that it has to cancel."""


class Stopped(Exception):
    """The query was stopped; not an error."""


class JobMaster:
    """One start of a job. `start` raises what can be known at once; then `error` says how it ended."""

    def __init__(self, job: StartedJob, cluster: Cluster, clock: Clock, taken: TakenOver) -> None:
        self.job = job
        self.error: Exception | None = None
        self.metrics_url: str | None = None
        """Where this start serves metrics."""
        self._settings = job.settings
        self._limit = job.settings.checkpoint.outage_limit
        self.outages = Outages(job.settings.name, job.store.url, clock, lambda: self._limit)
        self.progress = Progress(
            job.settings.name, job.program, clock, lambda: self._control.unpublished, lambda: self.outages.waited_s
        )
        self._taken = taken
        self._cluster = cluster
        self._clock = clock
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._ended = End()
        self._stopped_early = False
        self._on_close: Callable[[], None] = lambda: None
        self._failure: Exception | None = None
        self._failover_reason: str | None = None
        self._failovers = 0
        self._paused: frozenset[str] = frozenset()
        self._last_started_s = float("-inf")
        self._looked_at_cluster_s = float("-inf")
        silence_s = job.settings.heartbeat_timeout_s
        self._task_managers = TaskManagers(cluster, job.settings.layout.task_managers, clock, self._on_lost, silence_s)
        self._senders = Senders(cluster, job.program, clock, silence_s)
        self._publishers = publishers_of(job)
        self._source_objects = SourceObjects(
            job.store, job.epoch, lambda gone: self._control.post(events.ObjectsFound(gone))
        )
        self._planner = planner_of(job, self._source_objects, cluster.senders, clock)
        self._control = self._make_control(taken)
        self._news = SourceNews(job.settings.name, self._planner, self._control.request_checkpoint)
        self._deployer = Deployer(
            job, cluster, self._senders, self._task_managers, self._control, self._stopping, self._before_commit
        )
        self._waiters = Waiters(self._planner.reached, self.trigger_checkpoint, self._control.published)
        self._thread = threading.Thread(target=self._main, name=f"holdfast-{job.settings.name}", daemon=True)
        self._sweeper = sweeper_of(
            job, self._publishers, self._source_objects, self._control.post, clock, self._stopping.is_set
        )

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Deploy, and begin. Raises what keeps the job from starting; everything is ended then."""
        log.info("%s: starts on %s, as epoch %d", self._settings.name, self.job.store.url, self._taken.epoch)
        try:
            base = self._taken.base
            self._planner.begin(position_of(base))
            self._control.open(self._taken.base_number, base, base_objects(self.job.store, base))
            self._sweeper.start()
            self._senders.start_missing()
            self._deployer.start(base, self._planner.next_batch)
            log_restored(self._settings.name, base)
        except BaseException:
            self._close()
            raise
        self._thread.start()

    def on_close(self, call: Callable[[], None]) -> None:
        """Called last when everything of this start ends."""
        self._on_close = call

    def stop(self, timeout_s: float | None = None) -> None:
        """Undo the batch in flight and end; work since the last checkpoint is repeated at the next start."""
        if self.active and not self._stopping.is_set():
            wait_for([self._control.request_close()], CLOSE_S_MAX)
        self._stopping.set()
        self._wake.set()
        if not self._ended.wait(GRACE_S):
            self._deployer.cancel()
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
            self._sweeper.finish()
            log.info("%s: ended: everything available was processed and published", self._settings.name)
        except Stopped:
            self._stopped_early = True
            log.info("%s: stopped", self._settings.name)
        except Exception as error:
            if not self._stopping.is_set():
                self._ended.log_error(self._settings.name, error, told=self._waiters.somebody_waits())
                self.error = error
        finally:
            self._close()
            self._ended.set()
            self._waiters.end(self._outcome())

    def _close(self) -> None:
        """Every part is closed, whatever becomes of the others: the end of a query must be reached."""
        self._stopping.set()
        parts = [
            self._control.close,
            self._tell_sources_at_the_end,
            self._task_managers.stop,
            self._senders.stop,
            self._cluster.stop,
            self._planner.close,
        ]
        for close in [*parts, self._sweeper.close, self._on_close]:
            try:
                close()
            except Exception:
                log.exception("%s: a part of the query could not be closed; its end goes on", self._settings.name)

    # --- the batch loop -----------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        trigger = self._settings.trigger
        to_end = isinstance(trigger, AvailableNow)
        drain = isinstance(trigger, AvailableNow) and trigger.drain
        until: AllOffsets | None = None
        while True:
            self._check()
            if self._failover_reason is not None:
                self._failover()
            self._news.tell()
            due_in_s = self._due_in_s()
            idle_s = idle_wait_s(self._clock.monotonic() - self._last_started_s)
            ready = not self._paused and due_in_s <= 0
            plan = None
            if ready or self._waiters.somebody_waits():
                try:
                    until = until or (self._planner.latest() if to_end else None)
                    latest = until or self._waiters.serve(self._planner.latest)
                    plan = self._planner.next(latest, to_end, drain) if ready else None
                except Exception as error:
                    self.outages.ride_out(PLANNING, error, self._nap)
                    continue
                self.outages.answered(PLANNING)
            if plan is not None:
                self._last_started_s = self._clock.monotonic()
                self._process(plan)
                continue
            if to_end and ready and not self._planner.awaits_record and self._finished():
                return
            self._wake.wait(min(idle_s, max(due_in_s, NAP_S_MIN)) if due_in_s > 0 else idle_s)
            self._wake.clear()

    def _finished(self) -> bool:
        """`available_now`: all is processed; take the final checkpoint, wait for publication."""
        trigger = self._settings.trigger
        assert isinstance(trigger, AvailableNow)
        deadline_s = None if trigger.timeout_s is None else self._clock.monotonic() + trigger.timeout_s
        while True:
            promise = self._control.request_checkpoint()
            if not self._await(promise.done):
                return False
            error = promise.exception()
            if error is None:
                return self._await(self._control.published) and self._await(self._control.request_close().done)
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

    def _due_in_s(self) -> float:
        trigger = self._settings.trigger
        interval_s = trigger.interval_s if isinstance(trigger, ProcessingTime) else 0.0
        since_s = self._clock.monotonic() - self._last_started_s
        return batch_due_in_s(since_s, interval_s, self._control.checkpoint_under_way)

    def _process(self, plan: Plan) -> None:
        """Run a batch until it is committed; raises what no retry can help against."""
        started_s = self._clock.monotonic()
        attempt = 1
        while True:
            outcome = BatchOutcome()
            try:
                self._deployer.runner.execute(plan, outcome)
                break
            except Exception as error:
                self._abandon(outcome)
                self._check()
                self._cluster.check()
                if isinstance(error, FATAL) and not outcome.committing:
                    self._abort_quietly()
                    raise
                if self._must_fail_over(error, outcome):
                    return
                attempt = self._next_attempt(plan, attempt, error)
                if isinstance(error, errors.RowsNeeded):
                    self._deployer.stop_combining()
                try:
                    self._deployer.next_run()
                except errors.TaskManagerLost as lost:
                    if self._must_fail_over(lost, outcome):
                        return
                    raise
        failpoints.hit("jobmaster.committed")
        self.outages.answered(BATCHES)
        self._failovers = 0
        position = self._planner.committed(plan, outcome.event_times, outcome.timers)
        self._control.post(
            events.BatchCommitted(
                BatchNumber(plan.batch), position, plan.progress or outcome.fired > 0, outcome.committables
            )
        )
        standing = Standing(self._planner.lag(), self._planner.source_watermarks())
        self.progress.batch(plan, outcome, self._clock.monotonic() - started_s, standing)

    def _next_attempt(self, plan: Plan, attempt: int, error: Exception) -> int:
        """The number of the next attempt at a batch; none is used up while store or disk are away."""
        try:
            if is_outage(error):
                self.outages.ride_out(BATCHES, error, self._nap)
                return attempt
            if attempt == BATCH_ATTEMPTS_MAX:
                raise error
        except Stopped:
            raise
        except Exception:
            self._abort_quietly()
            raise
        log.warning("batch %d, attempt %d: %s; trying again", plan.batch, attempt, error)
        return attempt + 1

    def _nap(self, duration_s: float) -> None:
        """Wait, but for a failover or an end."""
        until_s = self._clock.monotonic() + duration_s
        while self._failover_reason is None and self._clock.monotonic() < until_s:
            self._check()
            self._wake.wait(IDLE_S_MAX)
            self._wake.clear()

    def _before_commit(self) -> None:
        """Without a changelog a cut is of the tables as they are: it is done everywhere before the next commit."""
        if self._settings.checkpoint.changelog:
            return
        cut = self._control.begin_commit()
        cut.add_done_callback(lambda _: self._wake.set())
        if not self._await(cut.done):
            raise errors.TaskManagerLost(f"no commit: {self._failover_reason}")

    def _must_fail_over(self, error: Exception, outcome: BatchOutcome) -> bool:
        """Whether the error comes with a TaskManager's end, perhaps noticed a little later."""
        if not self._settings.layout.task_managers:
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
            self._deployer.next_run()
        except errors.HoldfastError as error:
            log.warning("the batch in flight could not be undone: %s", error)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._stopping.is_set():
            raise Stopped

    # --- failover -----------------------------------------------------------------------------------------------------

    def _failover(self) -> None:
        """Everything restores from the newest checkpoint."""
        failpoints.hit("jobmaster.failover")
        self._cluster.check()
        reason = self._failover_reason or "unknown"
        log.warning("%s: restarting from the last checkpoint: %s", self._settings.name, reason)
        promise = self._control.begin_failover(reason)
        self._deployer.cancel()
        while not promise.done():
            self._check()
            self._wake.wait(IDLE_S_MIN)
            self._wake.clear()
        base = promise.result()
        while True:
            self._failovers += 1
            if self._failovers > FAILOVERS_MAX:
                raise errors.TaskManagerLost(f"{FAILOVERS_MAX} restarts in a row without a batch; last: {reason}")
            self._failover_reason = None
            try:
                self._deployer.deploy_again(base, self._planner.next_batch)
                break
            except errors.HoldfastError as error:
                self._check()
                self._cluster.check()
                if is_outage(error):
                    self._failovers -= 1
                    self.outages.ride_out(RESTORES, error, self._nap)
                    continue
                if not isinstance(error, errors.TaskManagerLost | errors.StaleCall | errors.StorageError):
                    raise
                reason = str(error)
                log.warning("restarting again: %s", reason)
                if isinstance(error, errors.TaskManagerLost):
                    self._task_managers.await_loss(LOSS_NOTICE_S)
        self.outages.answered(RESTORES)
        self._planner.restore(position_of(base))
        log_restored(self._settings.name, base)
        self.progress.restarted(reason)

    def _on_lost(self, process: ProcessId, reason: str) -> None:
        """Any thread: a TaskManager ended. The batch in flight is cancelled so that the loop comes to notice."""
        self._ask_failover(f"{process.name} ended: {reason}")
        self._deployer.cancel()

    def _ask_failover(self, reason: str) -> None:
        self._failover_reason = self._failover_reason or reason
        self._wake.set()

    # --- what others ask ----------------------------------------------------------------------------------------------

    def register(self, registration: Registration) -> bool:
        return self._processes(registration.process).register(registration)

    def heartbeat(self, process: ProcessId) -> bool:
        return self._processes(process).heartbeat(process)

    def _processes(self, process: ProcessId) -> Processes[Any]:
        return self._senders if process.role is Role.SENDER else self._task_managers

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        failpoints.hit("jobmaster.acknowledged")
        return self._control.acknowledge(acknowledgement)

    def decline(self, decline: Decline) -> bool:
        return self._control.decline(decline)

    def process_all_available(self) -> "Future[None]":
        """Kept once everything available at the call is processed and published."""
        promise = self._waiters.add()
        if self._ended.is_set():
            self._waiters.end(self._outcome())
        self._wake.set()
        return promise

    def _outcome(self) -> Exception | None:
        """What those who wait are told at the end; None where everything was processed."""
        stopped = errors.QueryFailed("the query was stopped") if self._stopped_early else None
        return self.error or stopped

    def routes(self) -> list[ExchangeRoute]:
        """The TaskManagers that serve now."""
        return self._task_managers.routes()

    def trigger_checkpoint(self) -> "Future[JournalNumber | None]":
        return self._control.request_checkpoint()

    def update(self, checkpoint: CheckpointConfig) -> None:
        found = self._settings.checkpoint.changelog
        if checkpoint.changelog != found:
            raise errors.SettingsError(
                f"changelog={checkpoint.changelog}: this query runs with changelog={found}, and it can be switched "
                "only between two starts"
            )
        self._limit = checkpoint.outage_limit
        self._control.post(events.ConfigChanged(checkpoint))

    def _on_completed(self, stats: CheckpointStats, position: Position) -> None:
        self.progress.checkpoint(stats)
        self._news.completed(position)
        self._wake.set()

    def _tell_sources_at_the_end(self) -> None:
        """Not where another JobMaster has taken over: sources may delete what they need no more, which is its to do."""
        if not isinstance(self._failure, errors.Fenced):
            self._news.end(position_of(self._control.newest_record))

    def _on_failed(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake.set()
        self._deployer.cancel()

    def _on_tick(self, now_s: float, outstanding: Callable[[], Outstanding]) -> None:
        self._sweeper.tick(now_s, outstanding)
        self._senders.check_heartbeats()
        if now_s - self._looked_at_cluster_s >= LOOK_AT_CLUSTER_S:
            self._looked_at_cluster_s = now_s
            try:
                self._cluster.check()
                self._senders.make_room(self._task_managers.missing)
            except errors.SessionStopped as error:
                self._on_failed(error)

    def _on_planning(self, paused: frozenset[str]) -> None:
        self._paused = paused
        self._wake.set()

    # --- parts --------------------------------------------------------------------------------------------------------

    def _make_control(self, taken: TakenOver) -> Control:
        listeners = Listeners(
            self._on_completed,
            self.progress.checkpoint_aborted,
            self._ask_failover,
            self._on_failed,
            self._on_planning,
            died=lambda dead, outstanding: self._sweeper.died(dead, outstanding),
            tick=self._on_tick,
        )
        publishers, outages = self._publishers, self.outages
        return control_of(self.job, taken, self._task_managers, publishers, self._clock, listeners, outages)
