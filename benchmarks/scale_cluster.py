"""The driver's side of the stand-ins: a cluster whose TaskManagers and senders answer from another process.

A message is encoded and decoded on both sides as in a real job. Sockets of the machine carry it, or, where the cost of
connections is to be measured too, the calls of a real job: Flight, with TLS, and a connection for each process.
"""

import logging
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import msgspec

from benchmarks import scale_serving
from benchmarks.scale_serving import CALLS, HOST, TAKEN, WANTED_WHOLE, Connection, Place
from holdfast.errors import ObjectExists, ObjectNotFound, TaskManagerLost
from holdfast.exchange.resident import Order, SenderGateway
from holdfast.exchange.resident_server import ResidentClient
from holdfast.exchange.task import UnitResult
from holdfast.graph.program import Program
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.processes.cluster import LevelRun, ProcessStarter
from holdfast.jobmaster.server import JobMasterServer
from holdfast.jobmaster.starting.start import ClusterContext
from holdfast.ports import Endpoint
from holdfast.protocol.taskmanager import (
    Acknowledgement,
    CommitAnswer,
    Deployment,
    ExchangeRoute,
    JobMasterGateway,
    ProcessRequest,
    ProcessResult,
    Registration,
    TaskManagerGateway,
)
from holdfast.storage.names import MANIFESTS
from holdfast.storage.store import ObjectInfo
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.remote import CallBody

T = TypeVar("T")

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class StandInStore:
    """An object store in this process. Manifests, which the stand-ins store, are files. Remembers the largest journal
    record."""

    url = "memory://scale"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-scale-")
        self.folder = Path(self._folder.name)
        self._creating = threading.Lock()
        self.record_bytes = 0
        self.deleting_s = 0.0
        """Processor time that the deletion of files took."""

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._objects[name] = bytes(data)

    def create(self, name: str, data: bytes) -> None:
        with self._creating:
            if name in self._objects:
                raise ObjectExists(name)
            self._objects[name] = data
        if name.startswith("journal/"):
            self.record_bytes = max(self.record_bytes, len(data))

    def get(self, name: str) -> bytes:
        found = self._objects.get(name)
        if found is not None:
            return found
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise ObjectNotFound(name) from None

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self.get(name)[offset : offset + length]

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        known = {name: len(data) for name, data in list(self._objects.items())}
        files = [each for each in self.folder.rglob(f"{MANIFESTS}*") if each.is_file()]
        known |= {str(each.relative_to(self.folder)): each.stat().st_size for each in files}
        found = sorted(name for name in known if name.startswith(prefix) and name > (after or ""))
        return [ObjectInfo(name, known[name], 0.0) for name in found]

    def delete(self, names: Sequence[str]) -> None:
        began_s = time.thread_time()
        for name in names:
            if self._objects.pop(name, None) is None and name.startswith(MANIFESTS):
                (self.folder / name).unlink(missing_ok=True)
        self.deleting_s += time.thread_time() - began_s

    def close(self) -> None:
        self._folder.cleanup()


class Sizes:
    """The largest message of each kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.largest: dict[str, int] = {}

    def note(self, what: str, size_bytes: int) -> None:
        with self._lock:
            self.largest[what] = max(size_bytes, self.largest.get(what, 0))


class _Caller:
    """Calls to a stand-in over a socket, in turn."""

    def __init__(self, cluster: "StandInCluster", process: ProcessId) -> None:
        self._sizes = cluster.sizes
        self._process = process
        self._connection = cluster.connected()
        self._turn = threading.Lock()

    def _call(self, what: str, arguments: Any, answer: type[T]) -> T:
        with self._turn:
            self._begin(what, arguments)
            return self._answer(what, answer)

    def _begin(self, what: str, arguments: Any) -> None:
        body = _encode(CallBody(self._process.incarnation, msgspec.Raw(_encode(arguments))))
        self._sizes.note(what, len(body))
        self._connection.send(bytes((CALLS.index(what),)) + body)

    def _answer(self, what: str, kind: type[T]) -> T:
        found = self._connection.receive()
        self._sizes.note(f"{what}, answer", len(found))
        return _decode(found, type=kind)

    def close(self) -> None:
        self._connection.carrier.close()


class SocketTaskManager(_Caller):
    """`TaskManagerGateway` over a socket."""

    def deploy(self, deployment: Deployment) -> str:
        return self._call("deploy", deployment, str)

    def process(self, request: ProcessRequest) -> ProcessResult:
        return self._call("process", request, ProcessResult)

    def commit(self, run: int, batch: int) -> CommitAnswer:
        return self._call("commit", (run, batch), CommitAnswer)

    def undo(self, run: int) -> None:
        self._call("undo", (run,), type(None))

    def cut(self, run: int, checkpoint_id: int, batch: int) -> None:
        self._call("cut", (run, checkpoint_id, batch), type(None))

    def complete(self, run: int, checkpoint_id: int, part: str = "") -> None:
        self._call("complete", (run, checkpoint_id, part), type(None))

    def abort_checkpoint(self, run: int, checkpoint_id: int) -> None:
        self._call("abort_checkpoint", (run, checkpoint_id), type(None))


class SocketSender(_Caller):
    """`SenderGateway` over a socket."""

    def run(self, order: Order) -> Iterator[UnitResult]:
        self._begin("run", order)
        return self._results(len(order.units))

    def _results(self, count: int) -> Iterator[UnitResult]:
        for _ in range(count):
            yield self._answer("run", UnitResult)

    def cancel(self, attempt: int) -> None:
        """A stand-in has no order for long enough that its end would be worth a call."""

    def split(self, attempt: int) -> str:
        return ""


class StandInCluster:
    """Implements `jobmaster.processes.cluster.Cluster`. `on_completed` is called for each TaskManager that is told of a
    completed checkpoint."""

    heartbeats = False

    def __init__(
        self,
        residents: int,
        program: Program,
        store: StandInStore,
        place: ClusterContext,
        job_master: JobMasterGateway,
        *,
        over_flight: bool,
        on_completed: Callable[[int], None],
    ) -> None:
        self.residents = self.senders = residents
        self.sizes = Sizes()
        self._connections: list[Connection] = []
        self._secret = place.secret
        self._store = store
        self._job_master = job_master
        self._on_completed = on_completed
        self._processes: dict[ProcessId, tuple[ProcessStarter, Any]] = {}
        self._server = JobMasterServer(job_master, place.secret, Endpoint(HOST)) if over_flight else None
        job_master_address = "" if self._server is None else self._server.address
        shipped = cloudpickle.dumps(program)
        told = Place(shipped, place.epoch, str(store.folder), place.secret, job_master_address)
        self._process, self.address = scale_serving.start(told)
        if not over_flight:
            acknowledgements = self.connected()
            threading.Thread(target=self._take, args=(acknowledgements,), name="acknowledgements", daemon=True).start()

    def connected(self) -> Connection:
        made = Connection.to(self.address)
        self._connections.append(made)
        return made

    def carrying_s(self) -> float:
        """The processor time that sockets, and files of the stand-in store, have taken on the driver's side."""
        return self._store.deleting_s + sum(each.spent_s for each in self._connections)

    def _take(self, acknowledgements: Connection) -> None:
        """Take acknowledgements to the JobMaster, as its server does."""
        while True:
            try:
                body = acknowledgements.receive()
            except (EOFError, OSError):
                return
            self.sizes.note("acknowledge", len(body))
            taken = self._job_master.acknowledge(_decode(body, type=Acknowledgement))
            acknowledgements.send(TAKEN if taken else WANTED_WHOLE)

    def residents_that_fit(self) -> int:
        return self.residents

    def check(self) -> None:
        """Stand-ins are always there."""

    def start(self, start: ProcessStarter) -> None:
        process = start.process
        made = self._task_manager(process) if process.role is Role.TASK_MANAGER else self._sender(process)
        self._processes[process] = (start, made)
        registration = Registration(process, self.address, uuid.uuid4().hex)
        self._job_master.register(_decode(_encode(registration), type=Registration))

    def _task_manager(self, process: ProcessId) -> TaskManagerGateway:
        route = ExchangeRoute(process.number, process.incarnation, self.address)
        kind = SocketTaskManager(self, process) if self._server is None else TaskManagerClient(route, self._secret)
        complete, number = kind.complete, process.number

        def noted(run: int, checkpoint_id: int, part: str = "") -> None:
            complete(run, checkpoint_id, part)
            self._on_completed(number)

        kind.complete = noted  # type: ignore[method-assign]
        return kind  # type: ignore[return-value]

    def _sender(self, process: ProcessId) -> SenderGateway:
        if self._server is None:
            return SocketSender(self, process)  # type: ignore[return-value]
        return ResidentClient(process, self.address, self._secret)

    def end(self, process: ProcessId) -> None:
        found = self._processes.pop(process, None)
        if found is not None:
            found[0].ended(process, "ended")

    def kill(self, number: int) -> None:
        """End a TaskManager unasked."""
        self.end(next(each for each in self._processes if each[:2] == (Role.TASK_MANAGER, number)))

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        found = self._processes.get(ProcessId(Role.TASK_MANAGER, route.task_manager, route.incarnation))
        if found is None:
            raise TaskManagerLost(f"TaskManager {route.task_manager} is gone")
        return found[1]  # type: ignore[no-any-return]

    def sender(self, process: ProcessId, address: str) -> SenderGateway:
        return self._processes[process][1]  # type: ignore[no-any-return]

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        raise AssertionError("all legs are in Python, and their units go to senders that stay")

    def cancel(self, run: int) -> None:
        """No unit goes as a Spark job."""

    def stop(self) -> None:
        for _, gateway in self._processes.values():
            gateway.close()
        self._process.terminate()
        if self._server is not None:
            self._server.close()
