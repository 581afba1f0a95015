"""The parts of a JobMaster, made in an order in which each part finds the parts that it uses.

    loops (their queues take facts from now on) ─► cluster ─► processes ─► checkpoints ─► sources, planner ─► batches

A part may get facts before the parts that need them exist: it posts them to a loop, and the loops start last.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from holdfast import errors
from holdfast.checkpoint import events
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.cleanup.janitor import EpochJanitor
from holdfast.cleanup.remains import Remains
from holdfast.cleanup.schedule import CleanupSchedule
from holdfast.clock import Clock
from holdfast.execution import events as ev
from holdfast.execution.failover import Cause, Why
from holdfast.execution.machine import Machine
from holdfast.formats.history import with_losses
from holdfast.formats.store_use import StoreUse
from holdfast.jobmaster.batches.advisor import Advisor
from holdfast.jobmaster.batches.conductor import Conductor
from holdfast.jobmaster.batches.declared import facts_of, planner_of, publishers_of
from holdfast.jobmaster.batches.deployer import Deployer, StartedJob
from holdfast.jobmaster.batches.deployment import DeployedLayout
from holdfast.jobmaster.batches.following import Following
from holdfast.jobmaster.batches.losses import LossLedger
from holdfast.jobmaster.batches.planner import Planner
from holdfast.jobmaster.batches.progress import Progress
from holdfast.jobmaster.batches.rescales import Rescales
from holdfast.jobmaster.batches.wanted import QueryEnd, SourceNews, Waiters
from holdfast.jobmaster.batches.work import WorkQueue
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.checkpoints.job_time import JobTime
from holdfast.jobmaster.checkpoints.outages import Outages
from holdfast.jobmaster.gateway import MasterGateway
from holdfast.jobmaster.live_reads import LiveReads
from holdfast.jobmaster.processes.cluster import Cluster
from holdfast.jobmaster.processes.senders import Senders
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.jobmaster.savepoints.savepoints import SavepointWriter
from holdfast.jobmaster.updating import Updating
from holdfast.journal.fence import TakenOver
from holdfast.journal.journal import Journal
from holdfast.observe.event_log import EventLog
from holdfast.observe.store_requests import store_use
from holdfast.protocol.taskmanager import JobMasterGateway
from holdfast.sources.objects import SourceObjects
from holdfast.storage.counted import SENDER_PUTS, note, requests_of
from holdfast.uploads.hedged_store import RECORDS, SOURCES, DriverUploads

ClusterMaker = Callable[[JobMasterGateway], Cluster]

RECORD_ATTEMPTS_MAX = 2
"""Attempts to write a record before the record counts as waiting for the store; attempts continue after that."""


class Facts:
    """Passes facts from all parts to the execution machine. Any thread may call it."""

    def __init__(self, conductor: Conductor, cluster: Cluster, outages: Outages) -> None:
        self._conductor = conductor
        self._cluster = cluster
        self._outages = outages
        self.is_fenced = False
        """True once another JobMaster was found to have taken over."""

    def tell(self, event: ev.Event) -> None:
        """Tell the machine a fact. If the Spark session was stopped, tell that first."""
        if isinstance(event, ev.Lost):
            self.look_at_cluster()
        self._outages.note_loss(event)
        self._conductor.post(event)

    def failed(self, error: Exception) -> None:
        """Tell of an error that ends the query."""
        self.is_fenced = self.is_fenced or isinstance(error, errors.Fenced)
        self.tell(ev.Failed(error))

    def failover(self, reason: str) -> None:
        """Ask for a restart from the newest checkpoint."""
        why = Why.ASKED if self._outages.message is None else Why.OUTAGE
        self.tell(ev.FailoverAsked(Cause(why, reason)))

    def look_at_cluster(self) -> bool:
        """Return True if the cluster can run processes; end the query if its session was stopped."""
        try:
            self._cluster.check()
        except errors.SessionStopped as error:
            self.tell(ev.Failed(error))
            return False
        return True


@dataclass(frozen=True)
class MasterParts:
    """All parts of a JobMaster."""

    job: StartedJob
    taken: TakenOver
    clock: Clock
    time: JobTime
    updating: Updating
    event_log: EventLog
    outages: Outages
    machine: Machine
    conductor: Conductor
    gateway: MasterGateway
    cluster: Cluster
    facts: Facts
    task_managers: TaskManagers
    senders: Senders
    control: Control
    planner: Planner
    losses: LossLedger
    progress: Progress
    news: SourceNews
    waiters: Waiters
    work: WorkQueue
    savepoints: SavepointWriter
    following: Following
    rescales: Rescales
    deployed: DeployedLayout
    reads: LiveReads
    advisor: Advisor
    sweeper: CleanupSchedule
    ended: QueryEnd
    closing: threading.Event
    """Set once the end of this start begins."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.settings.name


def assemble(job: StartedJob, make_cluster: ClusterMaker, clock: Clock, taken: TakenOver) -> MasterParts:
    """Make the parts of a JobMaster. Nothing runs before `JobMaster.start`."""
    settings, layout, name = job.settings, job.settings.layout, job.settings.name
    closing, ended = threading.Event(), QueryEnd()
    event_log = EventLog(clock.now)
    updating = Updating(name, job.live, bool(job.program.watermarks))
    outages = Outages(name, job.store.url, clock, lambda: updating.now.outage_limit)
    time = JobTime(name, clock, taken.base, settings.takes_wall)

    deployed = DeployedLayout(layout)
    machine = Machine(settings.failover, settings.on_loss)
    conductor = Conductor(name, machine, clock, event_log)
    gateway = MasterGateway(name, layout.standby, job.store)
    cluster = make_cluster(gateway)
    facts = Facts(conductor, cluster, outages)
    told, silence_s = (clock, facts.tell), settings.heartbeat_timeout_s
    task_managers = TaskManagers(cluster, layout.processes, layout.task_managers, *told, silence_s)
    tell_requests = partial(note, job.store, by_senders=True)
    senders = Senders(cluster, job.program, *told, silence_s, settings.regions, tell_requests)
    losses, publishers = LossLedger(), publishers_of(job)
    older = [number for number, _ in taken.older]
    uploads = DriverUploads(job.store, settings.changelog.retry_policy)
    journal = Journal(
        uploads.store(RECORDS), taken.epoch, taken.base_number, older=older, attempts_max=RECORD_ATTEMPTS_MAX
    )
    rules = Coordinator(settings.checkpoint, job.kept)
    recorded = facts_of(job, deployed, taken.base, time, clock, losses)
    control = Control(
        rules, journal, job.store, task_managers, publishers, recorded, clock, time, facts.failed, outages, event_log,
        uploads,
    )  # fmt: skip
    following = Following(job, task_managers, control, clock, facts.tell, deployed)
    gateway.open(task_managers, senders, control, following)

    objects = SourceObjects(uploads.store(SOURCES), job.epoch, lambda gone: control.post(events.ObjectsFound(gone)))
    planner = planner_of(job, objects, lambda: cluster.senders, clock, time)
    gauges = partial(_gauges, job, control, outages, task_managers, losses, following)
    progress = Progress(name, job.program, clock, gauges, lambda: planner.behind)
    control.history.use = partial(_store_use, progress, clock, clock.monotonic())
    news = SourceNews(name, planner, control.request_checkpoint)
    waiters = Waiters(planner.reached, control.request_checkpoint, control.published, planner.begin_looks)
    deployer = Deployer(job, senders, task_managers, control, clock, deployed)
    interruption, record = conductor.interruption, partial(updating.rescaled, control, settings.declared)
    rescales = Rescales(job, cluster, task_managers, senders, deployed, control, following, *told, interruption, record)
    advisor = Advisor(job, clock, rescales)
    work = WorkQueue(
        settings, cluster, clock, planner, control, deployer, losses, waiters, news, progress, outages, interruption,
        advisor, deployed,
    )  # fmt: skip
    savepoints = SavepointWriter(job, control, [task_managers, senders], clock, ended.is_set)
    reads = LiveReads(job, task_managers, deployed)
    remains = Remains(job.store, job.stored.job_id, job.epoch, publishers, objects)
    janitor = EpochJanitor(job.store, job.epoch, publishers)
    sweeper = CleanupSchedule(janitor, remains, control.post, clock, closing.is_set)
    return MasterParts(
        job, taken, clock, time, updating, event_log, outages, machine, conductor, gateway, cluster, facts,
        task_managers, senders, control, planner, losses, progress, news, waiters, work, savepoints, following,
        rescales, deployed, reads, advisor, sweeper, ended, closing,
    )  # fmt: skip


def _store_use(progress: Progress, clock: Clock, began_s: float) -> StoreUse:
    return store_use(progress.picture(), clock.monotonic() - began_s)


def _gauges(
    job: StartedJob,
    control: Control,
    outages: Outages,
    task_managers: TaskManagers,
    losses: LossLedger,
    following: Following,
) -> Mapping[str, float]:
    """Return the JobMaster's own metrics that show the current moment."""
    lost = with_losses(control.history.losses(), losses.not_final)
    return {
        **control.upload_metrics(),
        **dict.fromkeys(SENDER_PUTS.values(), 0),
        **requests_of(job.store),
        "unpublishedGroups": float(sum(control.backlog.values())),
        "outageMs": outages.waited_s * 1000,
        "lostRows": float(sum(each.rows for each in lost if each.epoch == job.epoch)),
        "standbyTaskManagers": float(task_managers.standby),
        **following.gauges(),
    }
