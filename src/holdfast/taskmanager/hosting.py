"""What a deployment makes: the subtasks with their restored tables, and everything that serves them.

Built whole or not at all; `Hosted.close` lets go of it. Restores run side by side, and an object is fetched
once for all subtasks. The program comes from the authenticated JobMaster: the only bytes unpickled here.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import cloudpickle
import pyarrow as pa

from holdfast.changelog.janitor import Janitor
from holdfast.changelog.retries import RetryPolicy
from holdfast.changelog.uploader import Uploader
from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.graph.program import Program
from holdfast.materialize.keyed_state import UNLOGGED_LANES, KeyedState
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.recovery.restore import ObjectCache, restore_table
from holdfast.state.backends import tables_of
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.checkpoints import Answers, CheckpointWork
from holdfast.taskmanager.protocol import Deployment, JobMasterGateway, SubtaskDeployment
from holdfast.taskmanager.subtask import Subtask


@dataclass
class Hosted:
    """The subtasks by (operator, subtask), and what they share."""

    program: Program
    subtasks: dict[tuple[str, int], Subtask]
    uploader: Uploader
    checkpoints: CheckpointWork

    def of_level(self, level: int) -> list[Subtask]:
        """Those whose operators process at `level`."""
        levels = self.program.operator_levels
        return [each for each in self.subtasks.values() if levels[each.name] == level]

    def output_schema(self, operator: str) -> pa.Schema:
        spec = self.program.operators.get(operator)
        if spec is None:
            raise HoldfastError(f"operator {operator!r} is not in this job; it has {sorted(self.program.operators)}")
        return spec.output_schema

    def held(self) -> list[str]:
        """Objects that live logs and materializations hold."""
        return [name for each in self.subtasks.values() for name in each.held()]

    def close(self, *, discard: bool) -> None:
        """`discard`: what was uploaded and never acknowledged is deleted; not so where the JobMaster may be gone."""
        self.checkpoints.close()
        self.uploader.close(discard=discard)
        for each in self.subtasks.values():
            each.close()


def host(
    deployment: Deployment,
    store: ObjectStore,
    job_master: JobMasterGateway,
    answers: Answers,
    janitor: Janitor,
    clock: Clock,
    pool: ThreadPoolExecutor,
    local_dir: str | None = None,
) -> Hosted:
    """Build and restore everything that `deployment` names; `pool` runs the restores.

    State that is not in memory lies in fresh folders below `local_dir`, deleted by `Hosted.close`.

    Raises
    ------
    StorageError, CorruptObject, JobRefused
        A subtask cannot be restored; nothing stays hosted.
    """
    program: Program = cloudpickle.loads(deployment.program)
    uploader = _uploader(deployment, store, janitor, clock)
    retrying = RetryingStore(store)
    checkpoints = CheckpointWork(deployment, retrying, uploader, job_master, answers)
    hosted = Hosted(program, {}, uploader, checkpoints)
    with ObjectCache(retrying) as fetch:
        built: list[Future[Subtask]] = [
            pool.submit(_restored, each, deployment, program, uploader, fetch, clock, local_dir)
            for each in deployment.subtasks
        ]
        errors = [error for error in (future.exception() for future in built) if error is not None]
    subtasks = [future.result() for future in built if future.exception() is None]
    hosted.subtasks.update({(each.name, each.subtask): each for each in subtasks})
    if errors:
        hosted.close(discard=True)
        raise errors[0]
    return hosted


def _uploader(deployment: Deployment, store: ObjectStore, janitor: Janitor, clock: Clock) -> Uploader:
    settings = deployment.changelog
    return Uploader(
        store,
        deployment.epoch,
        deployment.incarnation,
        persist_delay_s=settings.persist_delay_s,
        persist_bytes_max=settings.persist_bytes_max,
        object_bytes_max=settings.object_bytes_max,
        in_flight_bytes_max=settings.in_flight_bytes_max,
        preempt_bytes_max=settings.preempt_bytes_max,
        retries=RetryPolicy(settings.upload_attempts_max, settings.next_attempt_delay_s, settings.attempt_timeout_s),
        materializations_max=1 if settings.enabled else UNLOGGED_LANES,
        janitor=janitor,
    )


def _restored(
    subtask: SubtaskDeployment,
    deployment: Deployment,
    program: Program,
    uploader: Uploader,
    fetch: ObjectCache,
    clock: Clock,
    local_dir: str | None,
) -> Subtask:
    settings = deployment.changelog
    policy = MaterializationPolicy(
        log_handles_max=settings.log_handles_max,
        log_ratio_max=settings.log_ratio_max,
        interval_s=settings.materialization_interval_s,
    )
    start, stop = subtask.key_group_start, subtask.key_group_stop
    operator = program.operators[subtask.operator].create(
        subtask.subtask, start, stop, deployment.max_parallelism, tables_of(program.state, local_dir)
    )
    states: dict[str, KeyedState] = {}
    try:
        for name, table in operator.tables.items():
            handles = [each for each in subtask.restore if (each.operator, each.table) == (subtask.operator, name)]
            restore_table(table, handles, fetch, start, stop, local_dir)
            states[name] = KeyedState(
                subtask.operator, name, table, start, stop, uploader, policy, clock, changelog=settings.enabled
            )
            if handles:
                states[name].restored(handles)
    except BaseException:
        for table in operator.tables.values():
            table.close()
        raise
    return Subtask(subtask.operator, subtask.subtask, operator, states)
