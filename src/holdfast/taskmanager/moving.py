"""A rescale in a TaskManager that keeps running: subtasks that stay are not touched, gained subtasks come from a
follower.

    hosted    a b          deployment  a c          nothing was committed since the deployment's base
              │ └─ closed              │ └─ c: the follower's tables, taken to the base
              └──────── as it is ──────┘

A rescale happens completely or not at all: gained subtasks are built first, and until all are built, the hosted
subtasks stay. At another parallelism no subtask stays: the TaskManager hosts the deployment anew, from its follower.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from holdfast.clock import Clock
from holdfast.failpoints import hit
from holdfast.followers.follower import Follower
from holdfast.followers.subtask import SubtaskFollower
from holdfast.ids import BatchNumber
from holdfast.protocol.taskmanager import Deployment, SubtaskDeployment
from holdfast.recovery.downloads import ObjectCache
from holdfast.state.backends import tables_of
from holdfast.state.rocksdb_memory import RocksDBMemory
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.hosting import Hosted, Recovery, ranges_of, restored, rows_read_whole
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.standing_by import StandingBy
from holdfast.taskmanager.subtask import Subtask


def move(
    hosted: Hosted,
    deployment: Deployment,
    committed: BatchNumber,
    standing_by: StandingBy,
    store: ObjectStore,
    settings: TaskManagerSettings,
    clock: Clock,
) -> bool:
    """Replace the hosted subtasks by those of a deployment, all in the state of its base. Returns False, and changes
    nothing, if the subtasks that stay, whose last batch is `committed`, are not in the state of the base, or if all
    subtasks have other key groups.

    Raises
    ------
    StorageError, CorruptObject, JobRefused, UserFunctionError
        A gained subtask cannot be restored; the hosted subtasks are as before.
    """
    if not _stands_at(hosted, deployment, committed):
        return False
    gained = [each for each in deployment.subtasks if (each.operator, each.subtask) not in hosted.subtasks]
    new, recovery = _gain(hosted, deployment, gained, standing_by.take(deployment, gained), store, settings, clock)
    hit("taskmanager.move.before")
    there = hosted.subtasks | {(each.name, each.subtask): each for each in new}
    subtasks = {(each.operator, each.subtask): there[each.operator, each.subtask] for each in deployment.subtasks}
    left = [subtask for key, subtask in hosted.subtasks.items() if key not in subtasks]
    hosted.moved(deployment, subtasks, recovery)
    for each in left:
        each.close()
    return True


def _stands_at(hosted: Hosted, deployment: Deployment, committed: BatchNumber) -> bool:
    """Return True if the hosted subtasks have exactly the state of the deployment's base. The JobMaster knows that
    batches committed since the base have changed nothing. This function compares the number of the last batch, and
    checks that the base was cut from these subtasks.
    """
    was, base = hosted.deployment, deployment.base
    if was.parallelism != deployment.parallelism:
        return False
    if committed != deployment.first_batch - 1:
        return False
    cut_here = base is not None and base.epoch == was.epoch and hosted.batch_of(base.checkpoint_id) is not None
    return cut_here or base == was.base


def _gain(
    hosted: Hosted,
    deployment: Deployment,
    gained: Sequence[SubtaskDeployment],
    follower: Follower | None,
    store: ObjectStore,
    settings: TaskManagerSettings,
    clock: Clock,
) -> tuple[list[Subtask], Recovery]:
    """Build and open the gained subtasks, either all of them or none."""
    begun_s = clock.monotonic()
    memory = RocksDBMemory(settings.state_memory_bytes_max, max(1, len(gained)))
    new_table = tables_of(hosted.program.state, settings.local_dir, memory)
    taken = {} if follower is None else follower.take()
    followers = [
        taken.get((each.operator, each.subtask))
        or SubtaskFollower(hosted.program, each, deployment.max_parallelism, new_table, settings.local_dir)
        for each in gained
    ]
    with (
        ThreadPoolExecutor(max(1, len(gained)), thread_name_prefix="restore") as pool,
        ObjectCache(RetryingStore(store), copies=hosted.copies, shared=deployment.shared) as fetch,
    ):
        fetch.expect(ranges_of(deployment.whole, gained, followers))
        whole = pool.submit(rows_read_whole, deployment, fetch)
        built = [
            pool.submit(restored, each, by, deployment, hosted.uploader, fetch, whole, clock)
            for each, by in zip(gained, followers, strict=True)
        ]
        opened = [pool.submit(_opened, each, whole) for each in built]
        awaited: list[Future[Any]] = [whole, *opened]
        failed = [error for each in awaited if (error := each.exception()) is not None]
        recovery = Recovery(fetch.fetched, clock.monotonic() - begun_s)
    new = [each.result() for each in built if each.exception() is None]
    if failed:
        for subtask in new:
            subtask.close()
        raise failed[0]
    return new, recovery


def _opened(built: "Future[Subtask]", whole: "Future[Any]") -> None:
    built.result().open(whole.result())
