"""The settings of a job's JobMaster, made of the job that the user declared."""

from typing import TYPE_CHECKING

from holdfast.checkpoint.updates import DeclaredLayout
from holdfast.jobmaster.batches.deployer import MasterSettings
from holdfast.jobmaster.batches.deployment import Layout
from holdfast.jobmaster.batches.planner import BatchLimits
from holdfast.settings import QueryTrigger
from holdfast.storage.routing import OtherStorages
from holdfast.ui.site import HttpSettings

if TYPE_CHECKING:
    from holdfast.job import Job


def other_storages(job: "Job") -> OtherStorages:
    """The storages besides the job's own in which the objects of a start lie."""
    return OtherStorages(job.changelog_storage or "", job.shared_storages)


def settings_of(job: "Job", layout: Layout, trigger: QueryTrigger) -> MasterSettings:
    """The settings of a job's JobMaster, as the user declared them."""
    limits = BatchLimits(
        job.max_rows_per_batch, job.max_bytes_per_batch, job.max_event_time_skew_us, job.target_batch_duration_s
    )
    return MasterSettings(
        job.name,
        layout,
        job.checkpoint,
        limits,
        tuple(job.starting.drop_state),
        trigger,
        job.failover,
        job.on_loss,
        http=HttpSettings(job.metrics_port, job.starting.ui_port, job.ui_host, job.ui_control),
        heartbeat_timeout_s=job.task_manager.heartbeat_timeout_s,
        start_from=job.starting.start_from if isinstance(job.starting.start_from, int) else None,
        publish_again=job.starting.publish_again,
        regions=job.regions,
        takes_wall=job.clock == "wall",
        forget_updates=job.starting.forget_updates,
        autoscale=job.autoscale,
        prices=job.prices,
        declared=DeclaredLayout(layout.task_managers, job.parallelism, job.senders),
    )
