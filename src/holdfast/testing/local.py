"""A cluster inside this process: TaskManagers are objects, and units of work run one after the other. No Spark, no
network."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from holdfast.clock import Clock
from holdfast.errors import TaskManagerLost
from holdfast.exchange.delivery import run_unit
from holdfast.exchange.local import LocalLinks
from holdfast.exchange.resident import SenderGateway
from holdfast.exchange.stepping import close_calls
from holdfast.exchange.task import UnitResult
from holdfast.formats.handles import MadeBase
from holdfast.graph.program import Program
from holdfast.ids import BatchNumber, CheckpointId, ProcessId, RunNumber
from holdfast.jobmaster.processes.cluster import LevelRun, ProcessStarter
from holdfast.jobmaster.starting.start import ClusterContext, task_manager_settings
from holdfast.printable import logger
from holdfast.protocol.live_reads import StateRead, StateRows
from holdfast.protocol.taskmanager import (
    Acknowledgement,
    BaseOffer,
    CommitAnswer,
    Decline,
    Deployment,
    ExchangeRoute,
    FollowAnswer,
    FollowOrder,
    JobMasterGateway,
    ProcessRequest,
    ProcessResult,
    Registration,
    RestoreProgress,
    TaskManagerGateway,
)
from holdfast.settings import TaskManagerConfig
from holdfast.storage.copying import CopiedObject, CopyOrder
from holdfast.storage.counted import Requests, counted
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.taskmanager import TaskManager
from holdfast.testing.stores import CutOffStore

log = logger(__name__)

T = TypeVar("T")

CLOSE_S_MAX = 10.0
"""Bound in seconds on closing all TaskManagers at the end. A TaskManager that is still busy then, because a user's
function does not return, is abandoned, since nothing can end a thread. A higher value delays the end."""


@dataclass
class _Hosted:
    """A TaskManager with all objects through which it reaches the outside, so that they can be cut off at once."""

    start: ProcessStarter
    store: CutOffStore
    job_master: "_Reachable"
    task_manager: TaskManager
    dead: threading.Event = field(default_factory=threading.Event)

    def cut(self) -> None:
        self.store.cut()
        self.job_master.cut.set()
        self.dead.set()

    def close(self) -> None:
        """Close the TaskManager. Anything that it cannot delete remains for a later clean-up."""
        try:
            self.task_manager.close()
        except Exception as error:
            log.warning("%s could not let go of everything: %s", self.start.process.name, error)


class LocalCluster:
    """Implements `jobmaster.processes.cluster.Cluster`.

    `kill` ends a TaskManager as SIGKILL would: from any thread, in the middle of its work. Afterwards it reaches
    neither store nor JobMaster, and nobody reaches it; its state is released in the background.
    """

    senders = 1
    residents = 0
    heartbeats = False

    def __init__(
        self,
        program: Program,
        store: ObjectStore,
        place: ClusterContext,
        gateway: JobMasterGateway,
        clock: Clock,
        task_manager: TaskManagerConfig,
    ) -> None:
        self._program = program
        self._store = store
        self._settings = task_manager_settings(place, task_manager, store.url)
        self._retrying = counted(RetryingStore(store))
        self._gateway = gateway
        self._clock = clock
        self._lock = threading.Lock()
        self._hosted: dict[int, _Hosted] = {}
        self._closing: dict[threading.Thread, _Hosted] = {}

    def residents_that_fit(self) -> int:
        return 0

    def resize(self, processes: int, senders: int | None = None) -> None:
        """Do nothing: TaskManagers in this process need no slots."""

    def check(self) -> None:
        """Do nothing: the process of the test is always there."""

    def start(self, start: ProcessStarter) -> None:
        settings = msgspec.structs.replace(self._settings, process=start.process)
        store, job_master = CutOffStore(self._store), _Reachable(self._gateway)
        task_manager = TaskManager(settings, store, job_master, self._clock)
        with self._lock:
            self._hosted[start.process.number] = _Hosted(start, store, job_master, task_manager)
        self._gateway.register(Registration(start.process, "in process", "this"))

    def end(self, process: ProcessId) -> None:
        with self._lock:
            found = self._hosted.get(process.number)
        if found is not None and found.start.process == process:
            self.kill(process.number)

    def kill(self, task_manager: int) -> None:
        """End the TaskManager with that index; do nothing if there is none."""
        with self._lock:
            found = self._hosted.pop(task_manager, None)
        if found is None:
            return
        found.cut()
        self._close(found)
        found.start.ended(found.start.process, "killed")

    def leave(self, task_manager: int, reason: str = "its machine is to go") -> None:
        """Announce that the machine of the TaskManager with that index will be removed. It works on until `kill`."""
        start = self._hosted[task_manager].start
        start.leaving(start.process, reason)

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        with self._lock:
            found = self._hosted.get(route.task_manager)
        if found is None:
            raise TaskManagerLost(f"TaskManager {route.task_manager} is gone")
        return _LocalGateway(found)

    def sender(self, process: ProcessId, address: str) -> SenderGateway:
        raise AssertionError("no senders stay in this process")

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        with self._lock:
            hosted = {index: each.task_manager for index, each in self._hosted.items()}
        links = LocalLinks(run.routes, hosted)
        results = [
            run_unit(unit, run.request, self._program, links, self._retrying, clock=self._clock) for unit in run.units
        ]
        if any(result.failure is not None and result.failure.kind == "Aborted" for result in results):
            for task_manager in hosted:
                self.kill(task_manager)
            raise TaskManagerLost("the script aborts")
        return results

    def cancel(self, run: RunNumber) -> None:
        """Do nothing: units run on the caller's thread, so there is nothing to cancel."""

    def stop(self) -> None:
        with self._lock:
            hosted, self._hosted = self._hosted, {}
        for each in hosted.values():
            each.task_manager.stop()
            self._close(each)
        deadline_s = time.monotonic() + CLOSE_S_MAX
        for thread, closing in self._closing.items():
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                closing.cut()
                log.warning("%s is left to itself: a call to it has not returned", closing.start.process.name)
        close_calls(self._program)

    def _close(self, hosted: _Hosted) -> None:
        """Close a TaskManager in the background, once it has finished its current work."""
        name = f"holdfast-close-{hosted.start.process.number}"
        thread = threading.Thread(target=hosted.close, name=name, daemon=True)
        thread.start()
        with self._lock:
            self._closing = {each: of for each, of in self._closing.items() if each.is_alive()} | {thread: hosted}


class _Reachable:
    """The JobMaster as a TaskManager reaches it, until the TaskManager is cut off; then calls get no answer."""

    def __init__(self, gateway: JobMasterGateway) -> None:
        self._gateway = gateway
        self.cut = threading.Event()

    def register(self, registration: Registration) -> bool:
        return not self.cut.is_set() and self._gateway.register(registration)

    def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
        return not self.cut.is_set() and self._gateway.heartbeat(process, requests)

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        return not self.cut.is_set() and self._gateway.acknowledge(acknowledgement)

    def decline(self, decline: Decline) -> bool:
        return not self.cut.is_set() and self._gateway.decline(decline)

    def offer(self, offer: BaseOffer) -> bool:
        return not self.cut.is_set() and self._gateway.offer(offer)

    def restoring(self, progress: RestoreProgress) -> bool:
        return not self.cut.is_set() and self._gateway.restoring(progress)


class _LocalGateway:
    """`TaskManagerGateway`: calls the TaskManager directly; once it was killed, calls and their answers are lost."""

    def __init__(self, hosted: _Hosted) -> None:
        self._hosted = hosted

    def _call(self, call: Callable[[TaskManager], T]) -> T:
        lost = TaskManagerLost(f"{self._hosted.start.process.name} was killed")
        if self._hosted.dead.is_set():
            raise lost
        try:
            answer = call(self._hosted.task_manager)
        except Exception as error:
            if self._hosted.dead.is_set():
                raise lost from error
            raise
        if self._hosted.dead.is_set():
            raise lost
        return answer

    def deploy(self, deployment: Deployment) -> str:
        return self._call(lambda it: it.deploy(deployment))

    def follow(self, order: FollowOrder) -> FollowAnswer:
        return self._call(lambda task_manager: task_manager.follow(order))

    def process(self, request: ProcessRequest) -> ProcessResult:
        return self._call(lambda it: it.process(request))

    def commit(self, run: RunNumber, batch: BatchNumber) -> CommitAnswer:
        return self._call(lambda it: it.commit(run, batch))

    def undo(self, run: RunNumber) -> None:
        self._call(lambda it: it.undo(run))

    def cut(self, run: RunNumber, checkpoint_id: CheckpointId, batch: BatchNumber) -> None:
        self._call(lambda it: it.cut(run, checkpoint_id, batch))

    def complete(
        self, run: RunNumber, checkpoint_id: CheckpointId, part: str = "", bases: Sequence[MadeBase] = ()
    ) -> None:
        self._call(lambda it: it.complete(run, checkpoint_id, part, bases))

    def abort_checkpoint(self, run: RunNumber, checkpoint_id: CheckpointId) -> None:
        self._call(lambda it: it.abort_checkpoint(run, checkpoint_id))

    def read_state(self, read: StateRead) -> StateRows:
        return self._call(lambda it: it.read_state(read))

    def copy(self, order: CopyOrder) -> list[CopiedObject]:
        return self._call(lambda it: it.copy(order))
