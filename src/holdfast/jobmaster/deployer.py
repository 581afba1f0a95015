"""The job as it is deployed now: who hosts which subtask, under which run number, and what runs batches on them.

A run number is used for one deployment or one attempt at a batch, and never again: what still runs under an older
one is refused everywhere. Used by the batch loop's thread alone, but for `cancel`.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast import failpoints
from holdfast.changelog.handles import TableHandle
from holdfast.errors import JobRefused, TaskManagerLost
from holdfast.graph.program import Program
from holdfast.jobmaster.batches import BatchRunner
from holdfast.jobmaster.cluster import Cluster
from holdfast.jobmaster.control import Control
from holdfast.jobmaster.deployment import Layout, subtasks_of
from holdfast.jobmaster.planner import BatchLimits
from holdfast.jobmaster.processes import HEARTBEAT_TIMEOUT_S
from holdfast.jobmaster.senders import Senders
from holdfast.jobmaster.taskmanagers import TaskManagers
from holdfast.journal.codec import StoredJob
from holdfast.journal.records import CheckpointRecord
from holdfast.recovery.manifests import load_manifests
from holdfast.settings import CheckpointConfig, QueryTrigger
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.protocol import BaseCheckpoint, ChangelogSettings, Deployment, ExchangeRoutes

log = logging.getLogger(__name__)

STARTS_MAX = 10
LOSS_NOTICE_S = 5.0


@dataclass(frozen=True)
class MasterSettings:
    """What the JobMaster is told once."""

    name: str
    layout: Layout
    checkpoint: CheckpointConfig
    limits: BatchLimits
    drop_state: tuple[str, ...]
    trigger: QueryTrigger
    metrics_port: int | None = None
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S

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
            config.preemptive_persist_threshold_bytes,
            config.retries.max_attempts,
            config.retries.next_attempt_delay_s,
            config.retries.timeout_s,
            config.changelog,
        )


@dataclass(frozen=True)
class StartedJob:
    """One start of a job: what does not change while it runs."""

    settings: MasterSettings
    stored: StoredJob
    epoch: int
    program: Program
    shipped: bytes
    store: ObjectStore


class Deployer:
    """`runner` runs batches under the current run number; made anew by `deploy` and `next_run`."""

    runner: BatchRunner

    def __init__(
        self,
        job: StartedJob,
        cluster: Cluster,
        senders: Senders,
        task_managers: TaskManagers,
        control: Control,
        stopping: threading.Event,
        before_commit: Callable[[], None],
    ) -> None:
        self._job = job
        self._cluster = cluster
        self._senders = senders
        self._task_managers = task_managers
        self._control = control
        self._stopping = stopping
        self._before_commit = before_commit
        self._run = 1
        self._combine = True

    def start(self, base: CheckpointRecord | None, first_batch: int) -> None:
        """The first deployment; TaskManagers that end meanwhile are started again. Raises `JobRefused`."""
        for attempt in range(1, STARTS_MAX + 1):
            try:
                self._deploy(base, first_batch)
                return
            except TaskManagerLost as error:
                self._cluster.check()
                if attempt == STARTS_MAX:
                    raise JobRefused(f"TaskManagers keep ending while they start; last: {error}") from error
                log.warning("starting again: %s", error)
                self._task_managers.await_loss(LOSS_NOTICE_S)
                self._run += 1

    def deploy_again(self, base: CheckpointRecord | None, first_batch: int) -> None:
        """Everything from a checkpoint, under a new run number. Raises `TaskManagerLost`, `StorageError`, `Fenced`."""
        self._run += 1
        self._control.check_not_fenced()
        self._deploy(base, first_batch)

    def _deploy(self, base: CheckpointRecord | None, first_batch: int) -> None:
        live: dict[int, int] = {}
        if self._job.settings.layout.task_managers:
            self._task_managers.start_missing()
            self._task_managers.await_serving(self._stopping)
            live = {route.task_manager: route.incarnation for route in self._task_managers.routes()}
            failpoints.hit("jobmaster.deploy.before")
            self._host(base, live, first_batch)
        self.runner = self._make_runner()
        failpoints.hit("jobmaster.deploy.after")
        self._control.deployed(self._run, live)

    def _host(self, base: CheckpointRecord | None, live: dict[int, int], first_batch: int) -> None:
        job, layout, handles = self._job, self._job.settings.layout, self._handles(base)
        checkpoint = None if base is None else BaseCheckpoint(base.epoch, base.checkpoint_id, base.batch)

        def deployment(task_manager: int) -> Deployment:
            return Deployment(
                job_id=job.stored.job_id,
                epoch=job.epoch,
                run=self._run,
                task_manager=task_manager,
                incarnation=live[task_manager],
                program=job.shipped,
                max_parallelism=layout.max_parallelism,
                subtasks=subtasks_of(task_manager, layout, job.program, handles),
                first_batch=first_batch,
                base=checkpoint,
                changelog=job.settings.changelog,
            )

        self._task_managers.on_all(lambda index, gateway: gateway.deploy(deployment(index)))

    def _handles(self, base: CheckpointRecord | None) -> list[TableHandle]:
        """Those of the base, without what the user gave up."""
        if base is None:
            return []
        manifests = load_manifests(self._job.store, base.manifests)
        drop = self._job.settings.drop_state
        return [table for manifest in manifests for table in manifest.tables if table.operator not in drop]

    def next_run(self) -> None:
        """Undo the batch in flight; what still runs of it changes nothing any more. Raises `TaskManagerLost`."""
        self.cancel()
        self._run += 1
        self._control.run_changed(self._run)
        self._task_managers.on_all(lambda _, gateway: gateway.abort(self._run))
        self.runner = self._make_runner()

    def stop_combining(self) -> None:
        """From the next run on, until the job is started again: what led to it would come again with every batch."""
        self._combine = False

    def cancel(self) -> None:
        """Any thread: end what works on the current run."""
        self._senders.cancel(self._run)

    def _make_runner(self) -> BatchRunner:
        job, layout = self._job, self._job.settings.layout
        return BatchRunner(
            job.stored.job_id,
            job.epoch,
            self._run,
            job.program,
            self._senders,
            self._task_managers,
            ExchangeRoutes(job.stored.job_id, self._task_managers.routes(), layout.owners, layout.max_parallelism),
            job.store,
            self._combine,
            self._before_commit,
        )


def base_objects(store: ObjectStore, base: CheckpointRecord | None) -> frozenset[str]:
    """The base's manifests, all objects that they name, and those of its sources."""
    if base is None:
        return frozenset()
    objects = {*base.manifests, *(name for found in base.source_objects.values() for name in found)}
    for manifest in load_manifests(store, base.manifests):
        for table in manifest.tables:
            objects.update(table.objects())
    return frozenset(objects)
