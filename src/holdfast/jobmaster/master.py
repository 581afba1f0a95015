"""The JobMaster: takes over the storage, then carries out the commands of the execution machine until the query ends.

    start() ─► take over ─► `Started` ─► execution machine ─commands─► processes, work, coordinator, log
                                          ▲                                    │
                                          └──────────── events ◄───────────────┘

Two loops: `conductor` around the execution machine (batches, restarts), `control` around the coordinator (checkpoints).
The rules are in `execution/` and `checkpoint/`; this module makes the parts and passes facts between them.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

from holdfast import errors, failpoints
from holdfast.availability import Refusal
from holdfast.checkpoint import events
from holdfast.checkpoint.events import Position
from holdfast.checkpoint.outstanding import Outstanding
from holdfast.checkpoint.updates import in_words
from holdfast.clock import Clock
from holdfast.execution import events as ev
from holdfast.execution.machine import Machine
from holdfast.formats.history import CheckpointStats, SavepointStats
from holdfast.ids import JournalNumber, ProcessId, Role
from holdfast.jobmaster.batches.conductor import Conductor
from holdfast.jobmaster.batches.deployer import Deployer, StartedJob
from holdfast.jobmaster.batches.losses import LossLedger
from holdfast.jobmaster.batches.news import SourceNews
from holdfast.jobmaster.batches.parts import (
    control_of,
    log_restored,
    log_settings,
    planner_of,
    position_of,
    publishers_of,
    sweeper_of,
)
from holdfast.jobmaster.batches.planner import Planner
from holdfast.jobmaster.batches.progress import Progress
from holdfast.jobmaster.batches.waiters import QueryEnd, Waiters
from holdfast.jobmaster.batches.work import WorkQueue
from holdfast.jobmaster.checkpoints.control import Control, Listeners
from holdfast.jobmaster.checkpoints.found import found_records, records_of
from holdfast.jobmaster.checkpoints.job_time import JobTime
from holdfast.jobmaster.checkpoints.outages import Outages
from holdfast.jobmaster.checkpoints.promises import RestartCheckpoint
from holdfast.jobmaster.processes.cluster import Cluster
from holdfast.jobmaster.processes.processes import Processes
from holdfast.jobmaster.processes.senders import Senders
from holdfast.jobmaster.processes.shown import dead_letters_of, processes_now
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.jobmaster.savepoints.copying import Copiers
from holdfast.jobmaster.savepoints.savepoints import Savepoint, SavepointWriter
from holdfast.jobmaster.updating import Updating
from holdfast.journal.fence import TakenOver
from holdfast.observe.event_log import EventLog
from holdfast.observe.view import JobView, graph_of
from holdfast.printable import logger
from holdfast.protocol.taskmanager import ExchangeRoute, JobMasterGateway, Registration
from holdfast.settings import CheckpointConfig
from holdfast.sources.objects import SourceObjects
from holdfast.ui.site import HttpUrls

log = logger(__name__)

CLOSE_S_MAX = 5.0
"""Bound in seconds on the wait of `stop` for a last record; without the record the next start publishes some output
again."""
PARKED_SHOWN_MAX = 20
"""Parked splits that the last line of the log names."""
LOOK_AT_CLUSTER_S = 1.0
"""Seconds between checks of the Spark session; they bound how late its end is noticed while nothing runs."""
LOOK_FOR_SLOTS_S = 0.1
"""Seconds between two looks at the slots while a TaskManager is missing; a higher value delays failover."""


class JobMaster:
    """A job's running start. `start` raises errors that are known at once; later `error` holds the error that ended the
    query."""

    def __init__(
        self, job: StartedJob, make_cluster: Callable[[JobMasterGateway], Cluster], clock: Clock, taken: TakenOver
    ) -> None:
        self.job = job
        self.error: Exception | None = None
        self.run_id = str(uuid.uuid4())
        """Id of this start, new for each start."""
        self.http = HttpUrls(None, None, None)
        self._graph = graph_of(job.program)
        self._started_s = clock.now()
        self._event_log = EventLog(clock.now)
        self._settings = job.settings
        self._updating = Updating(job.settings.name, job.live, bool(job.program.watermarks))
        self.outages = Outages(job.settings.name, job.store.url, clock, lambda: self._updating.now.outage_limit)
        self.progress = Progress(job.settings.name, job.program, clock, self._gauges, lambda: self._planner.behind)
        self._taken = taken
        # No process calls before the first is started, by which time every part is there.
        cluster = self._cluster = make_cluster(self)
        self._clock = clock
        self._time = JobTime(job.settings.name, clock, taken.base, job.settings.takes_wall)
        self._closing = threading.Event()
        self._runs: Future[None] = Future()
        """Kept once everything was deployed for the first time; fails with the error that prevented it."""
        self._ended = QueryEnd()
        self._is_fenced = False
        self._stopped_early = False
        self._on_close: Callable[[], None] = lambda: None
        self._looked_at_cluster_s = float("-inf")
        self._base = RestartCheckpoint(taken.base_number, taken.base)
        self._machine = Machine(job.settings.failover, job.settings.on_loss)
        self._conductor = Conductor(job.settings.name, self._machine, self._execute, self._event_log)
        silence_s, layout = job.settings.heartbeat_timeout_s, job.settings.layout
        self._task_managers = TaskManagers(
            cluster, layout.processes, layout.task_managers, clock, self._tell, silence_s
        )
        self._senders = Senders(cluster, job.program, clock, self._tell, silence_s, job.settings.regions)
        self._publishers = publishers_of(job)
        self._source_objects = SourceObjects(
            job.store, job.epoch, lambda gone: self._control.post(events.ObjectsFound(gone))
        )
        self._planner: Planner = planner_of(job, self._source_objects, cluster.senders, clock, self._time)
        self._losses = LossLedger()
        self._weak_point: str | None = None
        self._control: Control = self._make_control(taken)
        self.acknowledge, self.decline = self._control.acknowledge, self._control.decline
        self._news = SourceNews(job.settings.name, self._planner, self._control.request_checkpoint)
        self._waiters = Waiters(
            self._planner.reached, self.trigger_checkpoint, self._control.published, self._planner.begin_looks
        )
        self._work = self._make_work()
        copiers: list[Copiers] = [self._task_managers, self._senders]
        self._savepoints = SavepointWriter(job, self._control, copiers, clock, self._ended.is_set)
        self._sweeper = sweeper_of(
            job, self._publishers, self._source_objects, self._control.post, clock, self._closing.is_set
        )

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Deploy and begin. If an error keeps the job from starting, end everything and raise the error."""
        log.info("%s: starts on %s, as epoch %d", self._settings.name, self.job.store.url, self._taken.epoch)
        base = self._base
        try:
            # Before the sources begin: objects that they let go of stay where a retained record names them.
            self._control.open(found_records(self.job.store, self._taken), records_of(self._taken))
            self._planner.begin(position_of(base.record))
            self._sweeper.start()
        except BaseException:
            self._close()
            raise
        self._conductor.start()
        layout = self._settings.layout
        wanted = {Role.TASK_MANAGER: layout.task_managers, Role.SENDER: self._cluster.residents}
        self._tell(ev.Started(time.monotonic(), wanted, base.number, layout.standby))
        try:
            self._runs.result()
        except BaseException:
            self._tell(ev.StopAsked())
            self._ended.wait()
            raise
        log_restored(self._settings.name, base.record)
        self._updating.log_kept()
        log_settings(self._settings.name, base.record, self._settings.checkpoint)

    def on_close(self, call: Callable[[], None]) -> None:
        """Set the function that is called last when this start ends."""
        self._on_close = call

    def stop(self, timeout_s: float | None = None) -> None:
        """Undo the batch in flight and end; work since the last checkpoint is repeated at the next start."""
        if self.active and not self._closing.is_set():
            wait_for([self._control.request_close()], CLOSE_S_MAX)
        self._tell(ev.StopAsked())
        self._ended.wait(timeout_s)

    def wait(self, timeout_s: float | None) -> bool:
        return self._ended.wait(timeout_s)

    @property
    def active(self) -> bool:
        return not self._ended.is_set()

    def view(self) -> JobView:
        """The job as it is now."""
        layout, progress, newest = self._settings.layout, self.progress, self._control.newest_record
        watermarks = progress.watermarks()
        return JobView(
            name=self._settings.name,
            job_id=self.job.stored.job_id,
            run_id=self.run_id,
            epoch=self.job.epoch,
            storage=self.job.store.url,
            started_s=self._started_s,
            now_s=self._clock.now(),
            phase=self._machine.phase.value,
            is_active=self.active,
            error=None if self.error is None else str(self.error),
            paused_by=self._machine.paused_by,
            refused_by=self._control.refused_by,
            outage=self.outages.message,
            clock=self._time.message if self.active else "",
            savepoints=self._savepoints.under_way,
            savepoint_history=self.savepoints,
            source_messages=self._planner.source_messages(),
            graph=self._graph,
            parallelism=layout.parallelism,
            max_parallelism=layout.max_parallelism,
            settings=in_words(self._updating.now),
            kept=self._updating.kept,
            batches=progress.batches(),
            lag=progress.lag(),
            source_watermarks=watermarks["source"],
            operator_watermarks=watermarks["operator"],
            checkpoints=self._control.history.entries(),
            restored=self._base.number,
            restarts=progress.restarts(),
            losses=(*self._control.history.losses(), *self._losses.not_final),
            dropping=self._losses.dropped,
            processes=processes_now(self._task_managers, self._senders, progress.last_metrics()),
            dead_letters=dead_letters_of(self.job.program),
            bad_reasons=progress.bad_reasons(),
            sink_rows=progress.sink_rows(),
            backlog=self._control.backlog,
            behind=self._planner.splits_behind({} if newest is None else newest.behind),
            metrics=progress.picture(),
            events=self._event_log.recent(),
        )

    def _gauges(self) -> Mapping[str, float]:
        """Metrics of the JobMaster itself that stand for this moment."""
        return {
            "unpublishedGroups": float(sum(self._control.backlog.values())),
            "outageMs": self.outages.waited_s * 1000,
            "lostRows": float(self._lost_rows()),
            "standbyTaskManagers": float(self._task_managers.standby),
        }

    def _lost_rows(self) -> int:
        """Rows lost since the start of this epoch, whether acknowledged or not."""
        losses = (*self._control.history.losses(), *self._losses.not_final)
        return sum(each.rows for each in losses if each.epoch == self.job.epoch)

    @property
    def refused_by(self) -> tuple[Refusal, ...]:
        """Refusals that make a checkpoint wait for a later batch boundary."""
        return self._control.refused_by

    def _end(self, command: ev.End) -> None:
        """End this start; the last action of the conductor's thread."""
        self.error = command.error
        self._stopped_early = command.error is None and not command.complete
        try:
            if command.complete:
                self._sweeper.finish()
        except Exception as error:
            self.error = error
        if self.error is not None:
            told = self._waiters.somebody_waits() or not self._runs.done()
            self._ended.log_error(self._settings.name, self.error, told=told)
        elif self._stopped_early:
            log.info("%s: stopped", self._settings.name)
        else:
            log.info("%s: ended: everything available was processed and published", self._settings.name)
            self._log_parked()
        self._close()
        self._ended.set()
        self._waiters.end(self._outcome())
        if not self._runs.done():
            self._runs.set_exception(self._outcome() or errors.QueryFailed("the query has ended"))

    def _log_parked(self) -> None:
        """Log the splits that the query leaves unread."""
        parked = [f"{each.source}/{each.split}" for each in self._planner.splits_behind({}) if each.parked]
        if parked:
            shown = ", ".join(parked[:PARKED_SHOWN_MAX])
            text = "%s: ended without %d parked splits (%s), which the next start tries again"
            log.warning(text, self._settings.name, len(parked), shown)

    def _close(self) -> None:
        """Close every part, even if others fail to close, so that the query always ends."""
        self._closing.set()
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

    def _tell_sources_at_the_end(self) -> None:
        """Tell sources of the newest record; not after a takeover by another JobMaster, since they may delete data."""
        if not self._is_fenced:
            self._news.end(position_of(self._control.newest_record))

    # --- commands of the execution machine ----------------------------------------------------------------------------

    def _execute(self, command: ev.Command) -> None:
        """Carry out a command on the conductor's thread; returns at once."""
        begin, work = self._conductor.begin, self._work
        match command:
            case ev.StartProcess():
                self._processes(command.process).start(command.process)
            case ev.EndProcess():
                self._cluster.end(command.process)
            case ev.Deploy():
                base = self._base
                begin(lambda: work.deploy(command, base))
            case ev.AnnounceDeployed():
                self._control.deployed(command.run, command.live)
                self._look_at_placement()
                if not self._runs.done():
                    self._runs.set_result(None)
            case ev.PlanBatch():
                begin(lambda: work.plan(command))
            case ev.RunBatch():
                begin(lambda: work.run(command))
            case ev.Commit():
                begin(lambda: work.commit(command))
            case ev.Undo():
                begin(lambda: work.undo(command))
            case ev.Finish():
                begin(work.finish)
            case ev.Abandon():
                work.abandon()
            case ev.Interrupt():
                self._conductor.interruption.ask()
            case ev.Cancel():
                threading.Thread(target=self._senders.cancel, args=(command.run,), daemon=True).start()
            case ev.AskBase():
                failpoints.hit("jobmaster.failover")
                self._control.begin_failover(command.reason, command.goes_on).add_done_callback(self._base_chosen)
            case ev.Log():
                say = log.warning if command.warning else log.info
                say("%s: %s", self._settings.name, command.message)
            case ev.End():
                self._end(command)

    def _base_chosen(self, promise: "Future[RestartCheckpoint]") -> None:
        self._base = promise.result()
        self._tell(ev.BaseChosen(self._base.number, self._base.batch_in(self.job.epoch)))

    def _tell(self, event: ev.Event) -> None:
        """Tell the execution machine a fact, from any thread. A Spark session that was stopped is told first."""
        if isinstance(event, ev.Lost):
            self._look_at_cluster()
        self.outages.note_loss(event)
        self._conductor.post(event)

    # --- requests of others -------------------------------------------------------------------------------------------

    def register(self, registration: Registration) -> bool:
        accepted = self._processes(registration.process).register(registration)
        self._look_at_placement()
        return accepted

    def _look_at_placement(self) -> None:
        """Warn of the executor whose loss the standbys could not make up for, once all serve and on a change."""
        layout = self._settings.layout
        if layout.standby == 0 or self._task_managers.standby < layout.standby:
            return
        found = self._task_managers.weak_point()
        if found is not None and found != self._weak_point:
            log.warning("%s: %s", self._settings.name, found)
        self._weak_point = found

    def heartbeat(self, process: ProcessId) -> bool:
        return self._processes(process).heartbeat(process)

    def _processes(self, process: ProcessId) -> Processes[Any]:
        return self._senders if process.role is Role.SENDER else self._task_managers

    def process_all_available(self) -> "Future[None]":
        """Return a promise that is kept once everything available at the call is processed and published."""
        promise = self._waiters.add()
        if self._ended.is_set():
            self._waiters.end(self._outcome())
        self._conductor.interruption.wake()
        return promise

    def _outcome(self) -> Exception | None:
        """Error for those who wait when the query ends; None if everything was processed."""
        stopped = errors.QueryFailed("the query was stopped") if self._stopped_early else None
        return self.error or stopped

    def routes(self) -> list[ExchangeRoute]:
        """TaskManagers that serve now."""
        return self._task_managers.routes()

    def acknowledge_losses(self) -> None:
        """Note that a user knows of the losses so far."""
        self._control.history.acknowledge_losses()

    def trigger_checkpoint(self) -> "Future[JournalNumber | None]":
        return self._control.request_checkpoint()

    def savepoint(self, url: str, storage_options: Mapping[str, str], timeout_s: float | None) -> Savepoint:
        """Take a checkpoint, and copy it while it is held."""
        return self._savepoints.write(url, storage_options, timeout_s)

    def stop_with_savepoint(self, url: str, storage_options: Mapping[str, str], timeout_s: float | None) -> Savepoint:
        """Publish everything, copy the last checkpoint, and stop."""
        return self._savepoints.write_at_end(url, storage_options, self.stop, timeout_s)

    @property
    def savepoints(self) -> tuple[SavepointStats, ...]:
        """Outcomes of the last savepoints, oldest first."""
        return self._control.history.savepoints()

    def retry(self, split: str, source: str | None, skipped: int | None = None) -> None:
        """Try a split that failed at once, and put its row at `skipped` aside. Raises `HoldfastError`."""
        if skipped is not None and self.job.program.dead_letters is None:
            raise errors.HoldfastError(
                f"split {split!r}: a skipped row is kept as a dead letter: start with Job(bad_records='dead_letter')"
            )
        self._planner.ask_for_split(split, source, skipped)
        self._conductor.interruption.wake()

    def restart(self, reason: str) -> None:
        """Make the job restart from its newest checkpoint."""
        self._tell(ev.FailoverAsked(reason, is_outage=self.outages.message is not None))

    def update(
        self, checkpoint: CheckpointConfig | None, changes: Mapping[str, object], keep: bool, forget: bool
    ) -> None:
        """Change checkpoint settings."""
        self._updating.update(self._control, self._planner, checkpoint, changes, keep, forget)

    # --- reports of the control loop ----------------------------------------------------------------------------------

    def _on_completed(self, stats: CheckpointStats, position: Position) -> None:
        self.progress.checkpoint(stats)
        if final := self._losses.recorded(stats.batch):
            self._control.history.add_losses(final)
        self._news.completed(position)
        self._conductor.interruption.wake()
        self._tell(ev.CheckpointCompleted())

    def _on_tick(self, now_s: float, outstanding: Callable[[], Outstanding]) -> None:
        self._sweeper.tick(now_s, outstanding)
        self._senders.check_heartbeats()
        missing = self._task_managers.missing
        if now_s - self._looked_at_cluster_s >= (LOOK_FOR_SLOTS_S if missing else LOOK_AT_CLUSTER_S):
            self._looked_at_cluster_s = now_s
            if self._look_at_cluster():
                self._senders.make_room(missing)

    def _on_failed(self, error: Exception) -> None:
        self._is_fenced = self._is_fenced or isinstance(error, errors.Fenced)
        self._tell(ev.Failed(error))

    def _look_at_cluster(self) -> bool:
        """True if the cluster can run processes; if its session was stopped, the query ends."""
        try:
            self._cluster.check()
        except errors.SessionStopped as error:
            self._tell(ev.Failed(error))
            return False
        return True

    # --- parts --------------------------------------------------------------------------------------------------------

    def _make_work(self) -> WorkQueue:
        return WorkQueue(
            self._settings,
            self._cluster,
            self._clock,
            self._planner,
            self._control,
            Deployer(self.job, self._senders, self._task_managers, self._control, lambda: self._work.before_commit()),
            self._losses,
            self._waiters,
            self._news,
            self.progress,
            self.outages,
            self._conductor.interruption,
        )

    def _make_control(self, taken: TakenOver) -> Control:
        listeners = Listeners(
            self._on_completed,
            self.progress.not_completed,
            self.restart,
            self._on_failed,
            lambda sinks: self._tell(ev.SinksLag(sinks)),
            died=lambda dead, outstanding: self._sweeper.died(dead, outstanding),
            tick=self._on_tick,
        )
        parts = (self._task_managers, self._publishers, self._clock, self._time, listeners)
        return control_of(self.job, taken, *parts, self.outages, self._event_log)
