"""Deployments of subtasks, with the state of a checkpoint, to TaskManagers; and runners of batches. Each deployment and
each attempt at a batch has a run number of its own: calls with an older number are refused everywhere. The execution
machine gives the numbers. Only the work thread uses this module, except for `cancel`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from holdfast import failpoints
from holdfast.autoscale.settings import Autoscale
from holdfast.changelog_config import ChangelogSettings
from holdfast.checkpoint.updates import DeclaredLayout, LiveSettings, SettingValue
from holdfast.clock import Clock
from holdfast.execution.calls import Step
from holdfast.execution.events import Deploy
from holdfast.formats.handles import TableHandle
from holdfast.formats.manifests import ManifestsOfStart, without_dropped
from holdfast.graph.program import Program
from holdfast.ids import BatchNumber, Epoch, RunNumber
from holdfast.jobmaster.batches.deployment import (
    DeployedLayout,
    Layout,
    shared_objects_of,
    subtasks_of,
    whole_tables,
)
from holdfast.jobmaster.batches.planner import BatchLimits
from holdfast.jobmaster.batches.runner import BatchRunner
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.processes.processes import HEARTBEAT_TIMEOUT_S
from holdfast.jobmaster.processes.senders import Senders
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.journal.codec import StoredJob
from holdfast.journal.records import CheckpointRecord
from holdfast.printable import logger
from holdfast.protocol.taskmanager import BaseCheckpoint, Deployment, ExchangeRoutes, TaskManagerGateway
from holdfast.recovery.spans import bounds_of
from holdfast.settings import CheckpointConfig, FailoverConfig, OnLoss, QueryTrigger, RegionConfig
from holdfast.storage.store import ObjectStore
from holdfast.store_prices import StorePrices
from holdfast.ui.site import HttpSettings

log = logger(__name__)


@dataclass(frozen=True)
class MasterSettings:
    """Settings that the JobMaster gets at its start."""

    name: str
    layout: Layout
    checkpoint: CheckpointConfig
    limits: BatchLimits
    drop_state: tuple[str, ...]
    trigger: QueryTrigger
    failover: FailoverConfig
    on_loss: OnLoss = OnLoss.REWIND
    http: HttpSettings = field(default_factory=HttpSettings)
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    start_from: int | None = None
    publish_again: bool = False
    takes_wall: bool = False
    """True: the start takes the wall clock as the job's time, however far it is from the checkpoint's."""
    regions: RegionConfig | None = None
    forget_updates: bool = False
    """True: updates of settings that earlier starts kept do not count."""
    autoscale: Autoscale | None = None
    prices: StorePrices = field(default_factory=StorePrices)
    declared: DeclaredLayout = field(default_factory=DeclaredLayout)
    """The layout that the job's code asks for; a rescale of an earlier start may have changed it."""

    @property
    def changelog(self) -> ChangelogSettings:
        return self.checkpoint.changelog_settings


@dataclass(frozen=True)
class StartedJob:
    """Facts of a job's start that do not change while it runs."""

    settings: MasterSettings
    stored: StoredJob
    epoch: Epoch
    program: Program
    shipped: bytes
    store: ObjectStore
    initial: tuple[TableHandle, ...] = ()
    """State from which the job begins as long as there is no checkpoint."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the job's storage."""
    declared: CheckpointConfig | None = None
    """Checkpoint settings of the job's code, if kept updates replaced some of them; else those of `settings`."""
    kept: Mapping[str, SettingValue] = field(default_factory=dict)
    """Updates of settings that the record keeps, which `settings` has."""

    @cached_property
    def manifests(self) -> ManifestsOfStart:
        """The manifests of the checkpoint from which this start continues."""
        return ManifestsOfStart(self.store)

    @property
    def live(self) -> LiveSettings:
        """The checkpoint settings in force, which updates may change."""
        now = self.settings.checkpoint
        return LiveSettings(now if self.declared is None else self.declared, now, self.kept)


GATHERED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes that the parts of all TaskManagers may take in a checkpoint's gathered object. With a higher value, more parts
of many TaskManagers pass through the driver's memory."""


class Deployer:
    """Carries out deployments and undoing, and makes runners of batches."""

    def __init__(
        self,
        job: StartedJob,
        senders: Senders,
        task_managers: TaskManagers,
        control: Control,
        clock: Clock,
        deployed: DeployedLayout,
    ) -> None:
        self._job = job
        self._senders = senders
        self._task_managers = task_managers
        self._control = control
        self._clock = clock
        self._deployed = deployed

    def deploy(self, command: Deploy, base: CheckpointRecord | None, first_batch: BatchNumber) -> None:
        """Bring the TaskManager of each place to the state of a checkpoint. Raises `TaskManagerLost`, `StaleCall`,
        `StorageError`."""
        if command.live:
            failpoints.hit("jobmaster.deploy.before")
            self._deployed.deploying(command.holders, command.parallelism)
            self._task_managers.deploying(command.live)
            self._host(command, base, first_batch)
        self._control.run_changed(command.run)
        failpoints.hit("jobmaster.deploy.after")

    def _host(self, command: Deploy, base: CheckpointRecord | None, first_batch: BatchNumber) -> None:
        job, layout, handles = self._job, self._deployed.now, self._handles(base)
        checkpoint = None if base is None else BaseCheckpoint(base.epoch, base.checkpoint_id, base.batch)
        whole, bounds = whole_tables(job.program, handles), bounds_of(handles)
        changelog = _bounded(job.settings.changelog, len(command.holders))

        def deployment(task_manager: int) -> Deployment:
            subtasks = subtasks_of(command.holders.index(task_manager), layout, job.program, handles)
            return Deployment(
                job_id=job.stored.job_id,
                epoch=job.epoch,
                run=command.run,
                task_manager=task_manager,
                incarnation=command.live[task_manager],
                program=job.shipped,
                parallelism=layout.parallelism,
                max_parallelism=layout.max_parallelism,
                subtasks=subtasks,
                first_batch=first_batch,
                base=checkpoint,
                changelog=changelog,
                rewind=command.rewind,
                whole=whole,
                shared=shared_objects_of(subtasks, whole, bounds),
                moves=command.moves,
            )

        failover = command.failover
        joining = command.live if failover is None or failover.joining is None else failover.joining

        def deploy(task_manager: int, gateway: TaskManagerGateway) -> None:
            if task_manager not in joining:
                return
            obstacle = gateway.deploy(deployment(task_manager))
            if obstacle:
                log.warning(
                    "%s: TaskManager %d restored its state from the storage, because it could not go back in memory: "
                    "%s. More memory lets undo reach further back; checkpoints that are taken more often need less",
                    job.settings.name,
                    task_manager,
                    obstacle,
                )

        self._task_managers.on_all(Step.DEPLOY, f"run {command.run}", deploy)

    def _handles(self, base: CheckpointRecord | None) -> list[TableHandle]:
        """Table handles of the base, without state of earlier starts that the user dropped (`drop_state`)."""
        if base is None:
            return list(self._job.initial)
        manifests = self._job.manifests.take(base.manifests, base.writers())
        return without_dropped(manifests, self._job.settings.drop_state, self._job.epoch)

    def undo(self, run: RunNumber) -> None:
        """Undo the batch in flight, whose calls change nothing any more. Raises `TaskManagerLost`."""
        self.cancel(RunNumber(run - 1))
        self._control.run_changed(run)
        call = self._task_managers.on_present if self._drops else self._task_managers.on_all
        call(Step.UNDO, f"run {run - 1}", lambda _, gateway: gateway.undo(run))

    @property
    def _drops(self) -> bool:
        return self._job.settings.on_loss is OnLoss.DROP

    def cancel(self, run: RunNumber) -> None:
        """Cancel the units of a run. Any thread may call this."""
        self._senders.cancel(run)

    def runner(self, run: RunNumber, combine: bool, before_commit: Callable[[], None]) -> BatchRunner:
        """Make the runner of a batch under that run number."""
        job, layout = self._job, self._deployed.now
        return BatchRunner(
            job.stored.job_id,
            job.epoch,
            run,
            job.program,
            self._senders,
            self._task_managers,
            ExchangeRoutes(job.stored.job_id, self._task_managers.deployed(), layout.hosts, layout.max_parallelism),
            job.store,
            self._clock,
            combine and not self._drops,
            before_commit,
            self._drops,
            job.settings.regions,
        )


def _bounded(changelog: ChangelogSettings, task_managers: int) -> ChangelogSettings:
    """Return the settings for one TaskManager: it may send its share of the `GATHERED_BYTES_MAX` that all may send
    together with acknowledgements."""
    share = GATHERED_BYTES_MAX // max(1, task_managers)
    return replace(changelog, gathered_bytes_max=min(changelog.gathered_bytes_max, share))
