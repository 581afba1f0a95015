"""A TaskManager that follows the logs of subtasks that it may host later: as a standby, or to gain them by a rescale.

    follow(order of record n) ──► a follower for each place, in turn ──► answered with the records reached
    take(subtasks) ──► the follower of exactly these subtasks; the others are dropped

A deployment ends the following; it waits only until the current subtasks have been advanced. If the state of all places
takes more memory than a TaskManager may use, the last places are given up and not tried again.
"""

import itertools
import threading
from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.errors import StaleCall
from holdfast.followers.follower import Follower
from holdfast.formats.handles import TableHandle
from holdfast.formats.manifests import load_manifests, without_dropped
from holdfast.graph.program import Program
from holdfast.printable import logger
from holdfast.protocol.taskmanager import Deployment, FollowAnswer, FollowOrder, JobMasterGateway, SubtaskDeployment
from holdfast.recovery.local import LocalCopies
from holdfast.settings import RocksDBState
from holdfast.state.rocksdb_memory import RocksDBMemory
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.checkpoints import Answers
from holdfast.taskmanager.hosting import policy_of, unpickled, uploader_of
from holdfast.taskmanager.remote_apply import RemoteApply
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.uploads.janitor import DeletionQueue

_log = logger(__name__)

SubtaskShares = tuple[tuple[str, int, int, int], ...]
"""Operator, number and key groups of each subtask of a place."""


class StandingBy:
    """The followers of a TaskManager. Thread-safe."""

    def __init__(
        self,
        settings: TaskManagerSettings,
        store: ObjectStore,
        copies: LocalCopies | None,
        clock: Clock,
        janitor: DeletionQueue,
        job_master: JobMasterGateway,
        answers: Answers,
    ) -> None:
        self._process = settings.process
        self._store = store
        self._local_dir = settings.local_dir
        self._state_bytes = settings.state_memory_bytes_max
        self._copies = copies
        self._clock = clock
        self._janitor = janitor
        self._job_master = job_master
        self._answers = answers
        self._offers = itertools.count(1)
        self._lock = threading.Lock()
        """Held while followers work."""
        self._shipped = b""
        self._program: Program | None = None
        self._memory: RocksDBMemory | None = None
        """The memory of RocksDB for all places; a place that is taken later gets all of it."""
        self._followers: dict[SubtaskShares, Follower] = {}
        self._too_large: dict[SubtaskShares, int] = {}
        """The places that were given up to save memory, with the memory that all places took then."""
        self._bytes_read = 0
        self._remote: RemoteApply | None = None
        self._ended = threading.Event()
        self._closed = False

    def follow(self, order: FollowOrder) -> FollowAnswer:
        """See `TaskManagerGateway.follow`."""
        with self._lock:
            if order.beside and not self._closed:
                self._ended.clear()
            if self._ended.is_set():
                raise StaleCall(f"TaskManager {order.task_manager} holds a place, or ends: it follows no more")
            places = [_place(subtasks) for subtasks in order.places]
            self._look_at_program(order)
            self._let_go([each for each in self._followers if each not in places])
            manifests = load_manifests(RetryingStore(self._store), order.manifests, order.writers)
            handles = without_dropped(manifests, order.drop_state, order.epoch)
            for place, subtasks in zip(places, order.places, strict=True):
                if place not in self._too_large and not self._ended.is_set():
                    self._follow(place, subtasks, order, handles)
                    self._materialize(place, order, handles)
            return self._answer(places)

    def take(self, deployment: Deployment, subtasks: Sequence[SubtaskDeployment]) -> Follower | None:
        """End the following, and hand over the follower of these subtasks; None if there is none."""
        self._end()
        wanted = _place(subtasks)
        for place, follower in list(self._followers.items()):
            if place != wanted or self._shipped != deployment.program:
                follower.end()
        with self._lock:
            found = self._followers.pop(wanted, None) if self._shipped == deployment.program else None
            self._let_go(list(self._followers))
            self._end_remote()
            return found

    def close(self) -> None:
        """End the following, and drop all followers."""
        self._closed = True
        self._end()
        for follower in list(self._followers.values()):
            follower.end()
        with self._lock:
            self._let_go(list(self._followers))
            self._end_remote()

    def _end(self) -> None:
        """Let the calls that work end soon."""
        self._ended.set()
        remote = self._remote
        if remote is not None:
            remote.interrupt()

    def _end_remote(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

    def _look_at_program(self, order: FollowOrder) -> None:
        if order.program != self._shipped:
            self._let_go(list(self._followers))
            self._shipped, self._program = order.program, unpickled(order.program)
            self._memory = RocksDBMemory(self._state_bytes, sum(len(subtasks) for subtasks in order.places))

    def _follow(
        self,
        place: SubtaskShares,
        subtasks: Sequence[SubtaskDeployment],
        order: FollowOrder,
        handles: Sequence[TableHandle],
    ) -> None:
        program = self._program
        assert program is not None, "looked at before"
        follower = self._followers.get(place)
        if follower is None:
            copies = self._copies if isinstance(program.state, RocksDBState) else None
            follower = self._followers[place] = Follower(
                program,
                subtasks,
                order.max_parallelism,
                self._store,
                self._memory,
                self._local_dir,
                copies,
                self._clock,
            )
        before = follower.followed.bytes_read
        try:
            follower.follow(order.number, handles, order.base)
        finally:
            self._bytes_read += follower.followed.bytes_read - before
        memory_bytes = sum(each.memory_bytes for each in self._followers.values())
        if memory_bytes > self._state_bytes:
            self._too_large[place] = memory_bytes
            self._let_go([place])

    def _materialize(self, place: SubtaskShares, order: FollowOrder, handles: Sequence[TableHandle]) -> None:
        """Materialize the tables of a place that are due, if the order says so."""
        follower, settings = self._followers.get(place), order.changelog
        if settings is None or order.base.epoch != order.epoch:
            return  # owners know the places in their logs of their own cuts alone
        if follower is None or follower.followed.number != order.number:
            return
        if self._remote is None:
            uploader = uploader_of(settings, order.epoch, order.incarnation, self._store, self._janitor)
            policy, parts = policy_of(settings, 0.0), (self._job_master, self._answers, self._offers)
            self._remote = RemoteApply(self._process, uploader, policy, self._clock, self._ended, *parts)
        self._remote.materialize(follower.tables(handles), order.base.batch)

    def _answer(self, places: Sequence[SubtaskShares]) -> FollowAnswer:
        if self._copies is not None:
            needed = {name for each in self._followers.values() for name in each.objects}
            self._copies.keep_only(needed, self._copies.names())
        numbers = [None if (found := self._followers.get(place)) is None else found.followed.number for place in places]
        left_out = [place for place in places if place in self._too_large]
        return FollowAnswer(
            numbers,
            self._bytes_read,
            sum(each.memory_bytes for each in self._followers.values()),
            _about_memory(len(left_out), self._too_large[left_out[-1]], self._state_bytes) if left_out else "",
        )

    def _let_go(self, places: Sequence[SubtaskShares]) -> None:
        for place in places:
            self._followers.pop(place).close()


def _place(subtasks: Sequence[SubtaskDeployment]) -> SubtaskShares:
    return tuple((each.operator, each.subtask, each.key_group_start, each.key_group_stop) for each in subtasks)


def _about_memory(places: int, found: int, allowed: int) -> str:
    return (
        f"the state of {places} TaskManagers is not followed: with it, followers would take {found:,} bytes, and "
        f"TaskManagerConfig(memory=…) leaves {allowed:,} bytes for state. More standby_task_managers, or more memory, "
        "follow all of it"
    )
