"""The result of a deployment: subtasks with their restored tables, and everything that serves them.

It is built completely or not at all, and `Hosted.close` frees it. Restores run side by side, and an object is fetched
once for all subtasks. The program, which comes from the authenticated JobMaster, is the only thing unpickled here.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa

from holdfast.changelog_config import ChangelogSettings
from holdfast.clock import Clock
from holdfast.errors import CorruptObject, HoldfastError, ObjectNotFound
from holdfast.followers.follower import Follower
from holdfast.followers.subtask import SubtaskFollower
from holdfast.formats.handles import MadeBase, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.graph.program import Program
from holdfast.ids import BatchNumber, CheckpointId, Epoch, Incarnation, ProcessId, Role
from holdfast.materialize.keyed_state import KeyedState
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.policy import AWAITED, FOLLOWER_S_MAX, HURRIED, MaterializationPolicy
from holdfast.materialize.replica import Replica
from holdfast.materialize.snapshotted_table import SnapshottedTable
from holdfast.printable import logger
from holdfast.protocol.taskmanager import Deployment, JobMasterGateway, RestoreProgress, SubtaskDeployment
from holdfast.recovery.downloads import Fetched, ObjectCache
from holdfast.recovery.local import LocalCopies
from holdfast.recovery.spans import StoredRange
from holdfast.recovery.whole import TableName, read_whole
from holdfast.state.backends import tables_of
from holdfast.state.rocksdb_memory import ALONE_BYTES, RocksDBMemory
from holdfast.state.table import StateTable
from holdfast.storage.counted import CountedStore
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.checkpoints import Answers, CheckpointWork
from holdfast.taskmanager.key_group_skew import KeyGroupSkew
from holdfast.taskmanager.subtask import Subtask
from holdfast.uploads.janitor import DeletionQueue
from holdfast.uploads.uploader import Uploader

_log = logger(__name__)

PROGRESS_S = 1.0
"""Seconds between two reports of a long restore to the JobMaster; a higher value shows less and costs fewer calls."""
PROGRESSES_LOGGED = 5
"""Every fifth report is logged too."""


@dataclass(frozen=True)
class Recovery:
    """Figures of the last deployment's restore: the bytes read, and the time until everything was restored."""

    fetched: Fetched = field(default_factory=Fetched)
    duration_s: float = 0.0

    def metrics(self) -> dict[str, float]:
        return {
            "recoveryMs": self.duration_s * 1000.0,
            "recoveryObjects": float(self.fetched.objects),
            "recoveryBytesFromStore": float(self.fetched.bytes_from_store),
            "recoveryBytesFromLocal": float(self.fetched.bytes_from_local),
        }

    def __str__(self) -> str:
        return f"{self.fetched}, in {self.duration_s:.2f} s"


@dataclass
class Hosted:
    """A deployment in this process: the subtasks by (operator, subtask), and the parts that they share."""

    program: Program
    subtasks: dict[tuple[str, int], Subtask]
    uploader: Uploader
    checkpoints: CheckpointWork
    deployment: Deployment
    store: CountedStore
    copies: LocalCopies | None = None
    _cuts: dict[CheckpointId, BatchNumber] = field(default_factory=dict)
    """The batch of each checkpoint that was cut here, from the last completed checkpoint on."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    recovery: Recovery = field(default_factory=Recovery)

    def of_level(self, level: int) -> list[Subtask]:
        """Return the subtasks whose operators process at `level`."""
        return self._by_level.get(level, [])

    @cached_property
    def _by_level(self) -> dict[int, list[Subtask]]:
        found: dict[int, list[Subtask]] = {}
        for each in self.subtasks.values():
            found.setdefault(self.program.operator_levels[each.name], []).append(each)
        return found

    @cached_property
    def without_users(self) -> frozenset[str]:
        """The operators in which no function of a user runs."""
        return frozenset(name for name, spec in self.program.operators.items() if spec.calls_no_user)

    @property
    def side_by_side(self) -> int:
        """Greatest number of subtasks that process at the same time; at least 1."""
        return max(map(len, self._by_level.values()), default=1)

    def output_schema(self, operator: str) -> pa.Schema:
        schema = self.program.output_schema(operator)
        if schema is None:
            raise HoldfastError(f"operator {operator!r} is not in this job; it has {sorted(self.program.operators)}")
        return schema

    def held(self) -> list[str]:
        """Objects in the store that live logs and materializations hold."""
        return self.uploader.carried.in_store(name for each in self.subtasks.values() for name in each.held())

    def rewinds_to(self, deployment: Deployment, committed: BatchNumber) -> BatchNumber | None:
        """Return the batch to which tables must go back in memory for a new deployment; None if its base is not an
        earlier state of this deployment. `committed` is the last batch of this deployment; batch numbers are not
        reused.
        """
        was, base = self.deployment, deployment.base
        if not deployment.rewind or _layout(deployment) != _layout(was) or deployment.first_batch <= committed:
            return None
        if (base, deployment.subtasks) == (was.base, was.subtasks):
            return BatchNumber(was.first_batch - 1)
        with self._lock:
            return None if base is None or base.epoch != was.epoch else self._cuts.get(base.checkpoint_id)

    def rewind(self, to_batch: BatchNumber, deployment: Deployment, clock: Clock) -> None:
        """Take all subtasks back to their state after a batch: the last batch of the new deployment's base.

        The base is a completed checkpoint. Tables go back in memory. Tables that every subtask loads in full are read
        from the store, because other processes have changed them.

        Raises
        ------
        HoldfastError
            Undo does not reach back so far, or a table that is loaded in full cannot be read; some subtasks may have
            gone back.
        """
        begun_s, base = clock.monotonic(), deployment.base
        if base is not None and base != self.deployment.base:
            self.completed(base.checkpoint_id)
        for each in self.subtasks.values():
            each.rewind(to_batch)
        with self._lock:
            self._cuts = {number: batch for number, batch in self._cuts.items() if batch <= to_batch}
        with ObjectCache(RetryingStore(self.store), copies=self.copies, shared=deployment.shared) as fetch:
            fetch.expect(each for handle in deployment.whole for each in handle.ranges())
            whole = rows_read_whole(deployment, fetch)
            for each in self.subtasks.values():
                each.open(whole)
            self.recovery = Recovery(fetch.fetched, clock.monotonic() - begun_s)

    def batch_of(self, checkpoint_id: CheckpointId) -> BatchNumber | None:
        """The batch at which a checkpoint was cut here; None if it was not cut here, or a newer checkpoint has
        completed."""
        with self._lock:
            return self._cuts.get(checkpoint_id)

    def moved(self, deployment: Deployment, subtasks: dict[tuple[str, int], Subtask], recovery: Recovery) -> None:
        """Host these subtasks from now on, and forget earlier cuts, which do not have all of them."""
        with self._lock:
            self._cuts = {}
        self.deployment, self.subtasks, self.recovery = deployment, subtasks, recovery
        vars(self).pop("_by_level", None)

    def cut(self, checkpoint_id: CheckpointId, batch: BatchNumber) -> list[Future[TableHandle]]:
        """Start to persist the state of all subtasks as of `batch`."""
        handles = [future for each in self.subtasks.values() for future in each.checkpoint(checkpoint_id, batch)]
        with self._lock:
            self._cuts[checkpoint_id] = batch
        return handles

    def completed(self, checkpoint_id: CheckpointId, part: str = "", bases: Sequence[MadeBase] = ()) -> None:
        """Note that the checkpoint was recorded: truncate logs, and delete unused local copies. `part`: the reference
        to this TaskManager's manifest, if the manifest came with the acknowledgement. `bases`: materialized tables.
        """
        # First, since the JobMaster holds their objects only until an acknowledgement tells of this checkpoint.
        for base in bases:
            if (subtask := self.subtasks.get((base.operator, base.subtask))) is not None:
                subtask.take_base(base)
        self.uploader.completed(checkpoint_id, part)
        with self._lock:
            self._cuts = {number: batch for number, batch in self._cuts.items() if number >= checkpoint_id}
        with self._copies_in_use_only():
            for each in self.subtasks.values():
                each.completed(checkpoint_id)

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """Delete objects that only an aborted checkpoint needed, in the store and on the local disk."""
        with self._copies_in_use_only():
            for each in self.subtasks.values():
                each.aborted(checkpoint_id)

    @contextmanager
    def _copies_in_use_only(self) -> Iterator[None]:
        """Delete, on exit, the older local copies that nothing refers to any more."""
        known = set() if self.copies is None else self.copies.names()
        yield
        if self.copies is not None:
            self.copies.keep_only(self.uploader.in_use().union(self.held()), known)

    def metrics(self) -> dict[str, float]:
        """Metrics of the last recovery, of the copies kept for the next recovery, and of requests to the store."""
        copies = {} if self.copies is None else {"localCopiesBytes": float(self.copies.size_bytes)}
        return self.recovery.metrics() | self.store.metrics() | copies

    def close(self, *, discard: bool) -> None:
        """End hosting. `discard`: delete uploads that were never acknowledged; False if the JobMaster may be gone."""
        self.checkpoints.close()
        self.uploader.close(discard=discard)
        for each in self.subtasks.values():
            each.close()


def host(
    deployment: Deployment,
    store: ObjectStore,
    job_master: JobMasterGateway,
    answers: Answers,
    janitor: DeletionQueue,
    clock: Clock,
    pool: ThreadPoolExecutor,
    local_dir: str | None = None,
    copies: LocalCopies | None = None,
    state_bytes: int = ALONE_BYTES,
    follower: Follower | None = None,
) -> Hosted:
    """Build and restore everything that `deployment` names; `pool` runs the restores.

    State that is not in memory lies in fresh folders below `local_dir`, which `Hosted.close` deletes. Uploaded and
    downloaded objects are also given to `copies`, from which objects are read before the store. State may take
    `state_bytes` of memory. Subtasks that `follower` has continue from its state.

    Raises
    ------
    StorageError, CorruptObject, JobRefused
        A subtask cannot be restored; nothing stays hosted.
    """
    program = unpickled(deployment.program) if follower is None else follower.program
    single = CountedStore(store)
    uploader = uploader_of(deployment.changelog, deployment.epoch, deployment.incarnation, single, janitor, copies)
    retrying = RetryingStore(single)
    checkpoints = CheckpointWork(deployment, uploader, job_master, answers)
    hosted = Hosted(program, {}, uploader, checkpoints, deployment, single, copies)
    begun_s = clock.monotonic()
    memory = RocksDBMemory(state_bytes, len(deployment.subtasks))
    new_table = tables_of(program.state, local_dir, memory)
    taken = {} if follower is None else follower.take()
    followers = [
        taken.get((each.operator, each.subtask))
        or SubtaskFollower(program, each, deployment.max_parallelism, new_table, local_dir)
        for each in deployment.subtasks
    ]
    if copies is not None:
        copies.refresh()
    with ObjectCache(retrying, copies=copies, shared=deployment.shared) as fetch:
        fetch.expect(ranges_of(deployment.whole, deployment.subtasks, followers))
        # First, since subtasks wait for it in threads of the same pool.
        whole = pool.submit(rows_read_whole, deployment, fetch)
        built: list[Future[Subtask]] = [
            pool.submit(restored, each, follower, deployment, uploader, fetch, whole, clock)
            for each, follower in zip(deployment.subtasks, followers, strict=True)
        ]
        reading: list[Future[Any]] = [*built, whole]
        _follow(reading, built, deployment, job_master, fetch)
        hosted.recovery = Recovery(fetch.fetched, clock.monotonic() - begun_s)
    subtasks = [future.result() for future in built if future.exception() is None]
    hosted.subtasks.update({(each.name, each.subtask): each for each in subtasks})
    errors = _errors(reading) or _errors([pool.submit(each.open, whole.result()) for each in subtasks])
    if errors:
        hosted.close(discard=True)
        raise errors[0]
    if hosted.recovery.fetched.objects:
        _log.info("TaskManager %d restored its subtasks: %s", deployment.task_manager, hosted.recovery)
    return hosted


def _follow(
    reading: list[Future[Any]],
    built: list[Future[Subtask]],
    deployment: Deployment,
    job_master: JobMasterGateway,
    fetch: ObjectCache,
) -> None:
    """Wait for a restore; if it takes long, report its progress to the JobMaster."""
    process = ProcessId(Role.TASK_MANAGER, deployment.task_manager, deployment.incarnation)
    reports = 0
    while (waited := wait(reading, PROGRESS_S)).not_done or reports:
        restored = sum(each.done() for each in built) if waited.not_done else len(built)
        try:
            job_master.restoring(RestoreProgress(process, len(built), restored, fetch.fetched.size_bytes))
        except Exception as error:  # a failed report must not end the restore
            _log.debug("the JobMaster does not hear how far the restore is: %s", error)
        if not waited.not_done:
            return
        reports += 1
        if reports % PROGRESSES_LOGGED == 0:
            _log.info("TaskManager %d restores: %s so far", deployment.task_manager, fetch.fetched)


def unpickled(shipped: bytes) -> Program:
    """The program that the authenticated JobMaster has sent."""
    program: Program = cloudpickle.loads(shipped)
    return program


def _errors(futures: Sequence[Future[Any]]) -> list[BaseException]:
    """Wait for all of them; return the errors of those that failed."""
    return [error for error in (future.exception() for future in futures) if error is not None]


def rows_read_whole(deployment: Deployment, fetch: ObjectCache) -> dict[TableName, pa.RecordBatch]:
    """Read the rows of the tables that every subtask loads in full, once for all subtasks."""
    try:
        return read_whole(deployment.whole, fetch)
    except (ObjectNotFound, CorruptObject) as error:
        names = ", ".join(sorted({f"{each.operator}.{each.table}" for each in deployment.whole}))
        raise type(error)(
            f"TaskManager {deployment.task_manager}: the lists that all subtasks see ({names}) cannot be restored: "
            f"{error}. Restore the object from a backup (`holdfast verify` lists all that is wrong); or give up the "
            "operator's state with job.start(drop_state=[…])"
        ) from error


def _layout(deployment: Deployment) -> Deployment:
    """The part of a deployment that stays the same during a start of a job."""
    subtasks = [msgspec.structs.replace(each, restore=[]) for each in deployment.subtasks]
    return msgspec.structs.replace(
        deployment, run=0, first_batch=0, base=None, subtasks=subtasks, whole=[], shared=[], moves=False
    )


def ranges_of(
    whole: Sequence[TableHandle], subtasks: Sequence[SubtaskDeployment], followers: Sequence[SubtaskFollower]
) -> Iterator[StoredRange]:
    """Yield the downloads of all subtasks, in turn, since subtasks read side by side. The `whole` tables, which all of
    them load in full, are read once."""
    of_each: list[list[StoredRange]] = [[each for handle in whole for each in handle.ranges()]]
    of_each += [follower.ranges(each.restore) for each, follower in zip(subtasks, followers, strict=True)]
    return (each for some in itertools.zip_longest(*of_each) for each in some if each is not None)


def uploader_of(
    settings: ChangelogSettings,
    epoch: Epoch,
    incarnation: Incarnation,
    store: ObjectStore,
    janitor: DeletionQueue,
    copies: LocalCopies | None = None,
) -> Uploader:
    """Make the uploader of an incarnation, by the job's settings."""
    return Uploader(
        store,
        epoch,
        incarnation,
        persist_delay_s=settings.persist_delay_s,
        persist_bytes_max=settings.persist_bytes_max,
        object_bytes_max=settings.object_bytes_max,
        adjust_object_size=settings.adjust_object_size,
        in_flight_bytes_max=settings.in_flight_bytes_max,
        preempt_bytes_max=settings.preempt_bytes_max,
        gathered_bytes_max=settings.gathered_bytes_max,
        awaited_bytes_max=min(settings.object_bytes_max, settings.in_flight_bytes_max),
        retries=settings.retry_policy,
        materializations_max=(HURRIED if settings.enabled else AWAITED).lanes,
        janitor=janitor,
        copies=copies,
    )


def _durable(
    log: LogId, table: StateTable, deployment: Deployment, uploader: Uploader, clock: Clock
) -> LoggedTable | SnapshottedTable:
    settings = deployment.changelog
    if not settings.enabled:
        return SnapshottedTable(log, table, uploader, clock)
    policy = policy_of(settings, FOLLOWER_S_MAX if settings.by_follower else 0.0)
    return LoggedTable(log, table, uploader, policy, clock)


def policy_of(settings: ChangelogSettings, patience_s: float) -> MaterializationPolicy:
    """The bounds of materializations, by the job's settings."""
    return MaterializationPolicy(
        log_handles_max=settings.log_handles_max,
        log_ratio_max=settings.log_ratio_max,
        interval_s=settings.materialization_interval_s,
        patience_s=patience_s,
    )


def restored(
    subtask: SubtaskDeployment,
    follower: SubtaskFollower,
    deployment: Deployment,
    uploader: Uploader,
    fetch: ObjectCache,
    whole: Future[dict[TableName, pa.RecordBatch]],
    clock: Clock,
) -> Subtask:
    """Advance a follower to the deployment's base, and build a subtask on its state. The subtask is not open yet."""
    start, stop = subtask.key_group_start, subtask.key_group_stop
    states: dict[str, KeyedState | Replica] = {}
    try:
        follower.follow(subtask.restore, fetch, whole.result(), deployment.base)
        operator = follower.operator
        for name, table in operator.tables.items():
            groups = follower.key_groups(name)
            if groups != (start, stop) and subtask.subtask:
                states[name] = Replica(table)
                continue
            handles = [each for each in subtask.restore if (each.operator, each.table) == (subtask.operator, name)]
            state = _durable(LogId(subtask.operator, name, *groups), table, deployment, uploader, clock)
            states[name] = state
            if handles:
                state.restored(handles, follower.files(name))
    except BaseException:
        for each in states.values():
            each.close()
        follower.close()
        raise
    own = next(iter(operator.tables.values()), None)
    skew = None if own is None else KeyGroupSkew(own, stop - start, deployment.max_parallelism, clock.monotonic)
    return Subtask(subtask.operator, subtask.subtask, operator, states, skew, range(start, stop))
