"""The work of a JobMaster, with a method for each kind: deploy, plan, run a batch, commit it, undo it, finish.

Each method may take long, returns its outcome as an event, and raises nothing. The execution machine decides which
method comes next. This module owns the positions; only the work thread calls it.
"""

from collections.abc import Callable, Collection, Mapping

from holdfast import errors, failpoints
from holdfast.checkpoint import events as checkpoint_events
from holdfast.clock import Clock
from holdfast.execution import events as ev
from holdfast.execution import reactions
from holdfast.execution.failover import Failover
from holdfast.execution.reactions import Reaction
from holdfast.formats.history import LostRows
from holdfast.graph.plan import Plan
from holdfast.ids import NO_BATCH, BatchNumber, Incarnation
from holdfast.jobmaster.batches.advisor import Advisor
from holdfast.jobmaster.batches.conductor import Interruption
from holdfast.jobmaster.batches.declared import log_restored, position_of
from holdfast.jobmaster.batches.deployer import Deployer, MasterSettings
from holdfast.jobmaster.batches.deployment import DeployedLayout
from holdfast.jobmaster.batches.losses import CommittedRows, LossLedger
from holdfast.jobmaster.batches.pace import (
    IDLE_S_MAX,
    IDLE_S_MIN,
    NAP_S_MAX,
    NAP_S_MIN,
    AskingAgain,
    batch_due_in_s,
    idle_wait_s,
)
from holdfast.jobmaster.batches.planner import Planner
from holdfast.jobmaster.batches.progress import Progress, Standing
from holdfast.jobmaster.batches.regional import AllOffsets
from holdfast.jobmaster.batches.runner import BatchOutcome, BatchRunner
from holdfast.jobmaster.batches.wanted import FinalCheckpoint, SourceNews, Waiters
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.checkpoints.outages import BATCHES, PLANNING, RESTORES, Outages
from holdfast.jobmaster.checkpoints.promises import RestartCheckpoint
from holdfast.jobmaster.processes.cluster import Cluster
from holdfast.printable import logger
from holdfast.settings import AvailableNow, OnLoss, ProcessingTime

log = logger(__name__)


class WorkQueue:
    """The tasks of the work thread. `interruption` ends a wait of the thread."""

    def __init__(
        self,
        settings: MasterSettings,
        cluster: Cluster,
        clock: Clock,
        planner: Planner,
        control: Control,
        deployer: Deployer,
        losses: LossLedger,
        waiters: Waiters,
        news: SourceNews,
        progress: Progress,
        outages: Outages,
        interruption: Interruption,
        advisor: Advisor,
        deployed: DeployedLayout,
    ) -> None:
        self._advisor = advisor
        self._deployed = deployed
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._planner = planner
        self._control = control
        self._deployer = deployer
        self._losses = losses
        self._waiters = waiters
        self._news = news
        self._progress = progress
        self._outages = outages
        self._interruption = interruption
        self._until: AllOffsets | None = None
        """Ends of all sources at the start, for `available_now`."""
        self._final = FinalCheckpoint(settings.trigger, control, clock)
        self._asking = AskingAgain()
        self._started_s = float("-inf")
        self._run_s = float("-inf")
        """Time at which the newest run of a batch began."""
        self._plan: Plan | None = None
        self._outcome = BatchOutcome()
        self._runner: BatchRunner | None = None
        self._committed = NO_BATCH
        """The last committed batch of this start that changed anything; -1 if there is none."""

    def _cause(self, error: Exception) -> Exception:
        """Replace an error by `SessionStopped` if the Spark session was stopped, since that is its cause."""
        try:
            self._cluster.check()
        except errors.SessionStopped as stopped:
            return stopped
        return error

    def _outage(self, step: str, error: Exception, began_s: float) -> tuple[Exception, ev.Outage | None]:
        """Decide if the step, begun at `began_s`, failed because of an outage; if the outage has taken too long, the
        returned error says so."""
        if not errors.is_outage(error) or reactions.to_batch(error) is not Reaction.RETRY:
            self._outages.failed_otherwise(step)
            return error, None
        try:
            return error, ev.Outage(self._outages.failed(step, str(error), began_s))
        except errors.StorageError as too_long:
            return too_long, ev.Outage(0.0, is_over=True)

    # --- deployments --------------------------------------------------------------------------------------------------

    def deploy(self, command: ev.Deploy, base: RestartCheckpoint) -> ev.Event:
        failover = command.failover
        goes_back = failover is not None and not failover.goes_on
        began_s = self._clock.monotonic()
        try:
            if goes_back:
                self._cluster.check()
                self._control.check_not_fenced()
            batch = base.batch_in(self._control.history.epoch)
            if command.moves:
                self._check_all_recorded(batch)
            self._deployer.deploy(command, base.record, self._planner.next_batch)
            if failover is not None and failover.joining is not None:
                self._joined(command.live, failover, failover.joining, base)
            if goes_back:
                for repaired in self._losses.went_back():
                    log.warning("%s: processed again, so that it is not lost: %s", self._settings.name, repaired)
                self._planner.restore(position_of(base.record))
                log_restored(self._settings.name, base.record)
                self._committed = batch
                self._progress.restarted(str(failover), command.live, batch)
            if command.moves:
                self._progress.joined(command.live)
        except Exception as error:
            cause = self._cause(error)
            if not goes_back:
                return ev.DeployFailed(command.run, cause)
            return ev.DeployFailed(command.run, *self._outage(RESTORES, cause, began_s))
        self._outages.answered(RESTORES)
        return ev.Deployed(command.run)

    def _check_all_recorded(self, batch: BatchNumber) -> None:
        """Check that nothing has changed since the last batch of a checkpoint. Raises `StaleCall`."""
        if batch != self._committed:
            raise errors.StaleCall(f"the last checkpoint is of batch {batch}, committed is {self._committed}")

    def _joined(
        self, live: Mapping[int, Incarnation], failover: Failover, joining: Collection[int], base: RestartCheckpoint
    ) -> None:
        """Report the rows that are lost because replacements begin from the base while the other TaskManagers
        continued."""
        number = -1 if base.number is None else base.number
        loss = LostRows(self._clock.now(), self._control.history.epoch, number, str(failover))
        batch = base.batch_in(loss.epoch)
        subtasks = self._deployed.now.subtasks_of(joining)
        loss = self._losses.joined(subtasks, batch, position_of(base.record), loss)
        self._progress.joined(live)
        log.warning("%s: exactly-once has ended: %s", self._settings.name, loss)

    # --- planning -----------------------------------------------------------------------------------------------------

    def plan(self, command: ev.PlanBatch) -> ev.Event:
        try:
            self._control.stands_still(command.paused_by)
            return self._await_batch(bool(command.paused_by))
        except Exception as error:
            return ev.WorkFailed(error)

    def _await_batch(self, is_paused: bool) -> ev.Event:
        to_end = isinstance(self._settings.trigger, AvailableNow)
        while not self._interruption.is_asked:
            self._news.tell()
            due_in_s = self._due_in_s()
            idle_s = idle_wait_s(self._clock.monotonic() - self._started_s)
            is_ready = not is_paused and due_in_s <= 0
            if is_ready or self._waiters.somebody_waits():
                began_s = self._clock.monotonic()
                try:
                    self._plan = self._look(is_ready)
                except Exception as error:
                    self._outages.ride_out(PLANNING, error, began_s, self._nap)
                    continue
                self._outages.answered(PLANNING)
                if self._plan is not None:
                    self._started_s = self._clock.monotonic()
                    return ev.BatchPlanned(BatchNumber(self._plan.batch))
                is_waiting = self._planner.awaits_record or self._planner.awaits_splits
                if to_end and is_ready and not is_waiting and self._final.is_taken():
                    return ev.EndReached()
            self._interruption.nap(self._nap_s(due_in_s, idle_s))
        return ev.Interrupted()

    def _nap_s(self, due_in_s: float, idle_s: float) -> float:
        """Return the time to the next look. A caller who begins to wait, and a checkpoint that ends, wake the work
        thread before."""
        if due_in_s <= 0:
            return idle_s
        is_quiet = not self._waiters.somebody_waits() and not self._control.checkpoint_under_way
        return max(min(due_in_s, NAP_S_MAX if is_quiet else idle_s), NAP_S_MIN)

    def _look(self, is_ready: bool) -> Plan | None:
        """Plan the next batch, and serve those who wait."""
        trigger = self._settings.trigger
        if isinstance(trigger, AvailableNow):
            self._until = self._until or self._planner.latest()
        latest = self._until or self._waiters.serve(self._planner.latest)
        if not is_ready:
            return None
        drain = isinstance(trigger, AvailableNow) and trigger.drain
        plan = self._planner.next(latest, self._until is not None, drain)
        since_s = self._clock.monotonic() - self._started_s
        if plan is None and self._asking.is_due(since_s, is_refused=bool(self._control.refused_by)):
            plan = self._planner.ask_again()
        return plan

    def _nap(self, duration_s: float) -> None:
        until_s = self._clock.monotonic() + duration_s
        self._interruption.nap_until(lambda: self._clock.monotonic() >= until_s, IDLE_S_MAX)

    def _due_in_s(self) -> float:
        trigger = self._settings.trigger
        interval_s = trigger.interval_s if isinstance(trigger, ProcessingTime) else 0.0
        since_s = self._clock.monotonic() - self._started_s
        return batch_due_in_s(since_s, interval_s, self._control.checkpoint_under_way)

    # --- batches ------------------------------------------------------------------------------------------------------

    def run(self, command: ev.RunBatch) -> ev.Event:
        assert self._plan is not None and self._plan.batch == command.batch, f"{command} was not planned"
        self._outcome = BatchOutcome()
        self._run_s = self._clock.monotonic()
        try:
            self._runner = self._deployer.runner(command.run, command.combine, self._before_commit)
            self._runner.execute(self._plan, self._outcome)
            self._planner.check(self._outcome.failed_splits)
        except errors.QueryFailed as error:
            return ev.WorkFailed(error)
        except Exception as error:
            return ev.BatchFailed(command.run, command.batch, *self._outage(BATCHES, self._cause(error), self._run_s))
        return ev.BatchProcessed(command.run, command.batch)

    def commit(self, command: ev.Commit) -> ev.Event:
        plan, outcome = self._plan, self._outcome
        assert plan is not None and self._runner is not None and self._runner.run == command.run, (
            f"{command} was not run"
        )
        try:
            self._runner.commit(plan, outcome)
        except Exception as error:
            cause = self._cause(error)
            if outcome.committing:
                return ev.CommitFailed(command.run, command.batch, cause)
            return ev.BatchFailed(command.run, command.batch, *self._outage(BATCHES, cause, self._run_s))
        failpoints.hit("jobmaster.committed")
        self._outages.answered(BATCHES)
        plan = plan.without(outcome.failed_splits)
        position = self._planner.committed(plan, outcome.event_times, outcome.timers, outcome.failed_splits)
        self._drop(outcome.superseded)
        if self._settings.on_loss is OnLoss.DROP:
            self._losses.committed(CommittedRows(plan.batch, outcome.taken, outcome.dropped), position)
        progress = plan.progress or outcome.fired > 0 or bool(outcome.failed_splits)
        self._committed = command.batch if progress else self._committed
        refusals = (*outcome.refusals, *plan.refusals)
        self._control.committed(
            checkpoint_events.CommitAcknowledged(
                command.batch, position, progress, outcome.committables, refusals, outcome.broadcast
            )
        )
        standing = Standing(self._planner.lag(), self._planner.source_watermarks())
        duration_s = self._clock.monotonic() - self._started_s
        self._planner.took(outcome.rows_in, duration_s)
        self._progress.batch(plan, outcome, duration_s, standing)
        self._advisor.committed(outcome, duration_s, standing.lag)
        return ev.BatchCommitted(command.run, command.batch, outcome.broadcast)

    def _before_commit(self) -> None:
        """Wait before a commit, in a job without a changelog, until the cut is done everywhere, since the cut captures
        the tables as they are."""
        if self._settings.changelog.enabled:
            return
        cut = self._control.begin_commit()
        cut.add_done_callback(lambda _: self._interruption.wake())
        if not self._interruption.nap_until(cut.done, IDLE_S_MIN):
            raise errors.TaskManagerLost("no commit: the batch was interrupted before it")

    def abandon(self) -> None:
        """Delete the staged output of a batch that was not committed. Called while no work is in flight."""
        self._drop(self._outcome.committables)
        self._drop(self._outcome.superseded)

    def _drop(self, staged: Mapping[str, list[bytes]]) -> None:
        for sink, committables in staged.items():
            self._control.drop_staged(sink, committables)

    def undo(self, command: ev.Undo) -> ev.Event:
        try:
            self._deployer.undo(command.run)
        except Exception as error:
            return ev.UndoFailed(command.run, self._cause(error))
        return ev.Undone(command.run)

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> ev.Event:
        """Wait until everything is published, for `available_now`, after everything is processed and recorded."""
        try:
            is_published = self._until_holds(self._control.published)
            done = is_published and self._until_holds(self._control.request_close().done)
        except Exception as error:
            return ev.WorkFailed(error)
        return ev.Finished() if done else ev.Interrupted()

    def _until_holds(self, condition: Callable[[], bool]) -> bool:
        return self._interruption.nap_until(condition, IDLE_S_MIN)
