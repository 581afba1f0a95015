"""Deployments: they give TaskManagers their subtasks with the state of a checkpoint, and make runners of batches.

A run number is used for a single deployment or attempt at a batch, and never again: calls with an older number are
refused everywhere. The execution machine gives the numbers. Only the work thread uses this module, except for `cancel`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast import failpoints
from holdfast.changelog_config import ChangelogSettings
from holdfast.execution.calls import Step
from holdfast.formats.handles import TableHandle
from holdfast.formats.manifests import load_manifests
from holdfast.graph.program import Program
from holdfast.jobmaster.batches import BatchRunner
from holdfast.jobmaster.control import Control
from holdfast.jobmaster.deployment import Layout, subtasks_of
from holdfast.jobmaster.planner import BatchLimits
from holdfast.jobmaster.processes import HEARTBEAT_TIMEOUT_S
from holdfast.jobmaster.senders import Senders
from holdfast.jobmaster.taskmanagers import TaskManagers
from holdfast.journal.codec import StoredJob
from holdfast.journal.records import CheckpointRecord
from holdfast.protocol.taskmanager import BaseCheckpoint, Deployment, ExchangeRoutes
from holdfast.settings import CheckpointConfig, FailoverConfig, OnLoss, QueryTrigger, RegionConfig
from holdfast.storage.store import ObjectStore
from holdfast.ui.server import LOOPBACK


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
    metrics_port: int | None = None
    ui_port: int | None = None
    ui_host: str = LOOPBACK
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    start_from: int | None = None
    publish_again: bool = False
    regions: RegionConfig | None = None

    @property
    def changelog(self) -> ChangelogSettings:
        return self.checkpoint.changelog_settings


@dataclass(frozen=True)
class StartedJob:
    """Facts of a job's start that do not change while it runs."""

    settings: MasterSettings
    stored: StoredJob
    epoch: int
    program: Program
    shipped: bytes
    store: ObjectStore
    initial: tuple[TableHandle, ...] = ()
    """State from which the job begins as long as there is no checkpoint."""
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the job's storage."""


class Deployer:
    """Carries out deployments and undoing, and makes runners of batches."""

    def __init__(
        self,
        job: StartedJob,
        senders: Senders,
        task_managers: TaskManagers,
        control: Control,
        before_commit: Callable[[], None],
    ) -> None:
        self._job = job
        self._senders = senders
        self._task_managers = task_managers
        self._control = control
        self._before_commit = before_commit

    def deploy(
        self, run: int, base: CheckpointRecord | None, live: Mapping[int, int], first_batch: int, rewind: bool
    ) -> None:
        """Bring all TaskManagers to the state of a checkpoint. Raises `TaskManagerLost`, `StaleCall`,
        `StorageError`."""
        if live:
            failpoints.hit("jobmaster.deploy.before")
            self._task_managers.deploying(live)
            self._host(run, base, live, first_batch, rewind)
        self._control.run_changed(run)
        failpoints.hit("jobmaster.deploy.after")

    def _host(
        self, run: int, base: CheckpointRecord | None, live: Mapping[int, int], first_batch: int, rewind: bool
    ) -> None:
        job, layout, handles = self._job, self._job.settings.layout, self._handles(base)
        checkpoint = None if base is None else BaseCheckpoint(base.epoch, base.checkpoint_id, base.batch)

        def deployment(task_manager: int) -> Deployment:
            return Deployment(
                job_id=job.stored.job_id,
                epoch=job.epoch,
                run=run,
                task_manager=task_manager,
                incarnation=live[task_manager],
                program=job.shipped,
                max_parallelism=layout.max_parallelism,
                subtasks=subtasks_of(task_manager, layout, job.program, handles),
                first_batch=first_batch,
                base=checkpoint,
                changelog=job.settings.changelog,
                rewind=rewind,
            )

        self._task_managers.on_all(Step.DEPLOY, f"run {run}", lambda index, gateway: gateway.deploy(deployment(index)))

    def _handles(self, base: CheckpointRecord | None) -> list[TableHandle]:
        """Table handles of the base, without the state that the user gave up."""
        if base is None:
            return list(self._job.initial)
        manifests = load_manifests(self._job.store, base.manifests)
        drop = self._job.settings.drop_state
        return [table for manifest in manifests for table in manifest.tables if table.operator not in drop]

    def undo(self, run: int) -> None:
        """Undo the batch in flight; calls of its run change nothing any more. Raises `TaskManagerLost`."""
        self.cancel(run - 1)
        self._control.run_changed(run)
        self._task_managers.on_all(Step.UNDO, f"run {run - 1}", lambda _, gateway: gateway.abort(run))

    def cancel(self, run: int) -> None:
        """End the work on a run. Any thread may call this."""
        self._senders.cancel(run)

    def runner(self, run: int, combine: bool) -> BatchRunner:
        """Make the runner of a batch under that run number."""
        job, layout = self._job, self._job.settings.layout
        return BatchRunner(
            job.stored.job_id,
            job.epoch,
            run,
            job.program,
            self._senders,
            self._task_managers,
            ExchangeRoutes(job.stored.job_id, self._task_managers.routes(), layout.owners, layout.max_parallelism),
            job.store,
            combine,
            self._before_commit,
            job.settings.regions,
        )
