"""Stand-ins for TaskManagers and senders: they answer the driver as real processes would, without Spark and rows.

    driver ──encoded──► stand-in ──encoded──► driver          the work of a stand-in is not the driver's time
    driver ◄──acknowledgement, encoded── stand-in             the driver's work on it is

Every message is encoded by the one side and decoded by the other, as on a connection; the connection itself is left
out. Handles, manifests, timers and metrics have the numbers that a job with RocksDB has in steady state: each table has
materialized files, and a log that grows by a piece with each checkpoint until it is materialized anew.
"""

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from holdfast.errors import ObjectExists, ObjectNotFound, TaskManagerLost
from holdfast.exchange.resident import Order, OrderCommon
from holdfast.exchange.task import UnitResult
from holdfast.formats.handles import FILE, LogPiece, Manifest, MaterializedPart, TableHandle
from holdfast.formats.manifests import encode_manifest
from holdfast.functions.operator import Timers
from holdfast.graph.plan import Unit
from holdfast.graph.program import OperatorTarget, Program, SourceOrigin
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.cluster import LevelRun, ProcessStarter
from holdfast.jobmaster.identity import identities
from holdfast.jobmaster.start import ClusterContext
from holdfast.observe.known_metrics import OF_TASK_MANAGERS
from holdfast.protocol.named import AnsweredNames
from holdfast.protocol.streams import Sent
from holdfast.protocol.taskmanager import (
    Acknowledgement,
    CommitAnswer,
    Deployment,
    ExchangeRoute,
    JobMasterGateway,
    ProcessRequest,
    ProcessResult,
    Registration,
    SubtaskDeployment,
    SubtaskResult,
)
from holdfast.sinks.staging import StagedParquet, encode
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo
from holdfast.taskmanager.remote import CallBody

T = TypeVar("T")

ADDRESS = "grpc+tls://executor-{}.example.internal:40123"
FILES_PER_SUBTASK = 80
"""Materialized files of the tables of one subtask together, as RocksDB has with some gigabytes."""
LOG_PIECES_MAX = 64
NEW_FILES_SHARE = 5
"""A materialization replaces one file in so many."""
BUCKETS = 10
COMMITTABLE = encode(StagedParquet(1000, 80_000, 123_456_789, "staged/" + "x" * 80, ""))

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class DictStore:
    """An object store in this process; remembers the largest journal record."""

    url = "memory://scale"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self.record_bytes = 0

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._objects[name] = bytes(data)

    def create(self, name: str, data: bytes) -> None:
        if self._objects.setdefault(name, data) is not data:
            raise ObjectExists(name)
        if name.startswith("journal/"):
            self.record_bytes = max(self.record_bytes, len(data))

    def get(self, name: str) -> bytes:
        try:
            return self._objects[name]
        except KeyError:
            raise ObjectNotFound(name) from None

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self.get(name)[offset : offset + length]

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        found = sorted(name for name in list(self._objects) if name.startswith(prefix) and name > (after or ""))
        return [ObjectInfo(name, len(self._objects[name]), 0.0) for name in found]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._objects.pop(name, None)


class Wire:
    """Encodes messages; knows the largest one, and the processor time that stand-ins took."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.turn = threading.Lock()
        """Stand-ins in turn: they work one after the other, as answers come from processes that end at different times.
        All at once, hundreds of threads would poll for the interpreter, and take more time than the driver.
        """
        self.stand_in_s = 0.0
        self.largest: dict[str, int] = {}

    def call(self, what: str, incarnation: int, arguments: Any, serve: Callable[[msgspec.Raw], T], kind: Any) -> T:
        """A call of the driver's to a stand-in."""
        body = _encode(CallBody(incarnation, msgspec.Raw(_encode(arguments))))
        self.note(what, len(body))
        with self.elsewhere():
            answer = _encode(serve(_decode(body, type=CallBody).arguments))
        self.note(f"{what}, answer", len(answer))
        return _decode(answer, type=kind)  # type: ignore[no-any-return]

    def note(self, what: str, size_bytes: int) -> None:
        with self._lock:
            self.largest[what] = max(size_bytes, self.largest.get(what, 0))

    def elsewhere(self) -> "_Elsewhere":
        """The time of this block is a stand-in's."""
        return _Elsewhere(self)

    def add(self, seconds: float) -> None:
        with self._lock:
            self.stand_in_s += seconds


class _Elsewhere:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __enter__(self) -> None:
        # The wait for a turn is no driver's time either.
        self._began_s = time.thread_time()
        self._wire.turn.acquire()

    def __exit__(self, *error: object) -> None:
        self._wire.turn.release()
        self._wire.add(time.thread_time() - self._began_s)


@dataclass
class _Table:
    """The stored objects of a table."""

    operator: str
    name: str
    start: int
    stop: int
    schema: bytes
    files: list[MaterializedPart]
    log: list[LogPiece]

    def handle(self) -> TableHandle:
        return TableHandle(
            self.operator, self.name, self.start, self.stop, self.schema, list(self.files), list(self.log)
        )


class StandInTaskManager:
    """Implements `TaskManagerGateway` on the driver's side of a connection, and the TaskManager behind it."""

    def __init__(self, cluster: "StandInCluster", process: ProcessId) -> None:
        self.dead = False
        self.completed = 0
        self._cluster = cluster
        self._process = process
        self._epoch = cluster.place.epoch
        self._subtasks: list[SubtaskDeployment] = []
        self._tables: list[_Table] = []
        self._names = AnsweredNames()
        self._sequence = itertools.count(1)
        self._next_sqn = LOG_PIECES_MAX

    # The driver's side.

    def _call(self, what: str, arguments: Any, serve: Callable[[Any], Any], takes: Any, gives: Any) -> Any:
        if self.dead:
            raise TaskManagerLost(f"{self._process.name} was killed")
        do = lambda raw: serve(_decode(raw, type=takes))  # noqa: E731
        return self._cluster.wire.call(what, self._process.incarnation, arguments, do, gives)

    def deploy(self, deployment: Deployment) -> str:
        return self._call("deploy", deployment, self._deploy, Deployment, str)  # type: ignore[no-any-return]

    def process(self, request: ProcessRequest) -> ProcessResult:
        return self._call("process", request, self._process_level, ProcessRequest, ProcessResult)  # type: ignore[no-any-return]

    def commit(self, run: int, batch: int) -> CommitAnswer:
        return self._call("commit", (run, batch), self._commit, tuple[int, int], CommitAnswer)  # type: ignore[no-any-return]

    def abort(self, run: int) -> None:
        self._call("abort", (run,), lambda _: None, tuple[int], type(None))

    def cut(self, run: int, checkpoint_id: int, batch: int) -> None:
        self._call("cut", (run, checkpoint_id, batch), self._cut, tuple[int, int, int], type(None))

    def complete(self, run: int, checkpoint_id: int) -> None:
        self._call("complete", (run, checkpoint_id), lambda _: None, tuple[int, int], type(None))
        self.completed = checkpoint_id

    def abort_checkpoint(self, run: int, checkpoint_id: int) -> None:
        self._call("abort_checkpoint", (run, checkpoint_id), lambda _: None, tuple[int, int], type(None))

    # The stand-in's.

    def _deploy(self, deployment: Deployment) -> str:
        self._subtasks = deployment.subtasks
        if not self._tables or any(subtask.restore for subtask in deployment.subtasks):
            self._tables = [
                table
                for place, subtask in enumerate(deployment.subtasks)
                for table in (self._restored(subtask) if subtask.restore else self._made(place, subtask))
            ]
        return ""

    def _restored(self, subtask: SubtaskDeployment) -> list[_Table]:
        return [
            _Table(
                h.operator, h.table, h.key_group_start, h.key_group_stop, h.schema, list(h.materialized), list(h.log)
            )
            for h in subtask.restore
        ]

    def _made(self, place: int, subtask: SubtaskDeployment) -> list[_Table]:
        """Tables in steady state: logs of different lengths, all in the objects of earlier checkpoints."""
        schemas = self._cluster.table_schemas[subtask.operator]
        objects = self._cluster.earlier_objects(self._process)
        pieces = 1 + (place * 8 + self._process.number) % (LOG_PIECES_MAX - 1)
        start, stop = subtask.key_group_start, subtask.key_group_stop
        tables = []
        for name, schema in schemas.items():
            files = [self._file(start, stop) for _ in range(FILES_PER_SUBTASK // len(schemas))]
            log = [self._piece(objects[-pieces + at], at, start, stop) for at in range(pieces)]
            tables.append(_Table(subtask.operator, name, start, stop, schema, files, log))
        return tables

    def _file(self, start: int, stop: int) -> MaterializedPart:
        name = names.shared_object(self._epoch, self._process.incarnation)
        return MaterializedPart(name, 0, 64_000_000, start, stop, FILE)

    def _piece(self, name: str, sqn: int, start: int, stop: int) -> LogPiece:
        return LogPiece(name, 8_000 * sqn, 8_000, sqn, sqn + 1, start, stop)

    def _process_level(self, request: ProcessRequest) -> ProcessResult:
        rows = -(-sum(stream.rows for stream in request.streams) // len(self._subtasks))
        timers = Timers(request.batch_time_us + 60_000_000, None, 0)
        return ProcessResult(
            [SubtaskResult(each.operator, each.subtask, rows, rows, timers=timers) for each in self._subtasks]
        )

    def _commit(self, _: Any) -> CommitAnswer:
        values = {"incarnation": float(self._process.incarnation), "deployments": 1.0}
        for metric in OF_TASK_MANAGERS:
            if metric.by_subtask:
                values |= {f"{metric.name}.{each.operator}.{each.subtask}": 1234.5 for each in self._subtasks}
            elif metric.kind == "histogram":
                parts = [*(f"le{at}" for at in range(BUCKETS)), "count", "sum", "max"]
                values |= {f"{metric.name}#{part}": 1234.5 for part in parts}
            else:
                values[metric.name] = 1234.5
        return CommitAnswer(values)

    def _cut(self, arguments: tuple[int, int, int]) -> None:
        _, checkpoint_id, batch = arguments
        self._cluster.background(self._checkpoint, checkpoint_id, batch)

    def _checkpoint(self, checkpoint_id: int, batch: int) -> None:
        """All of a stand-in's, but for the driver's work on the acknowledgement."""
        wire = self._cluster.wire
        with wire.elsewhere():
            ahead = self._grow()
            name = self._store_manifest(checkpoint_id, batch)
            objects = list(dict.fromkeys([name, *(o for table in self._tables for o in table.handle().objects())]))
            acknowledgement = self._acknowledgement(checkpoint_id, batch, name, objects, [ahead])
            body = _encode(self._names.shortened(acknowledgement))
            wire.note("acknowledge", len(body))
        if not self.dead and not self._cluster.job_master.acknowledge(_decode(body, type=Acknowledgement)):
            assert self._cluster.job_master.acknowledge(acknowledgement), "a whole acknowledgement is always taken"
        with wire.elsewhere():
            self._names.answered(acknowledgement)
            del acknowledgement, objects

    def _acknowledgement(
        self, checkpoint_id: int, batch: int, manifest: str, objects: list[str], held: list[str]
    ) -> Acknowledgement:
        number, incarnation = self._process.number, self._process.incarnation
        sequence = next(self._sequence)
        return Acknowledgement(
            checkpoint_id, number, incarnation, batch, manifest, objects, held, 1, 2, 3, 4.0, 5.0, sequence
        )

    def _grow(self) -> str:
        """A piece more in each log, or a materialization where it is full; the name of an object uploaded ahead."""
        self._next_sqn += 1
        name = names.changelog_object(self._epoch, self._process.incarnation)
        for table in self._tables:
            piece = self._piece(name, self._next_sqn, table.start, table.stop)
            if len(table.log) < LOG_PIECES_MAX:
                table.log.append(piece)
                continue
            table.log = [piece]
            for at in range(0, len(table.files), NEW_FILES_SHARE):
                table.files[at] = self._file(table.start, table.stop)
        return names.changelog_object(self._epoch, self._process.incarnation)

    def _store_manifest(self, checkpoint_id: int, batch: int) -> str:
        tables = [table.handle() for table in self._tables]
        number, incarnation = self._process.number, self._process.incarnation
        name = names.manifest(self._epoch, checkpoint_id, number)
        manifest = Manifest(self._epoch, checkpoint_id, number, incarnation, batch, tables)
        self._cluster.store.put(name, encode_manifest(manifest))
        return name


class StandInSender:
    """Implements `SenderGateway`: a unit sends its rows to TaskManagers, or stages one file."""

    def __init__(self, cluster: "StandInCluster", process: ProcessId) -> None:
        self._cluster = cluster
        self._process = process

    def run(self, order: Order) -> Iterator[UnitResult]:
        wire = self._cluster.wire
        body = _encode(CallBody(self._process.incarnation, msgspec.Raw(_encode(order))))
        wire.note("order", len(body))
        with wire.elsewhere():
            results = self._results(body)
        for result in results:
            wire.note("unit result", len(result))
            yield _decode(result, type=UnitResult)

    def _results(self, body: bytes) -> list[bytes]:
        taken = _decode(_decode(body, type=CallBody).arguments, type=Order)
        common = _decode(taken.common, type=OrderCommon)
        return [_encode(self._result(unit, common)) for unit in taken.units]

    def cancel(self, attempt: int) -> None:
        self._cluster.wire.call("cancel", self._process.incarnation, attempt, lambda _: None, type(None))

    def _result(self, unit: Unit, order: OrderCommon) -> UnitResult:
        leg = self._cluster.program.legs[unit.leg]
        attempt = uuid.uuid4().hex
        times = {}
        if isinstance(leg.origin, SourceOrigin) and leg.watermark is not None:
            times = {read.split: 1_700_000_000_000_000 + order.request.batch for read in unit.reads}
        rows = sum(read.rows for read in unit.reads)
        if not isinstance(leg.target, OperatorTarget):
            return UnitResult(unit.unit, leg.index, attempt, rows, committables=[COMMITTABLE], event_times=times)
        sent = self._sent(unit, rows, order)
        return UnitResult(unit.unit, leg.index, attempt, rows, sent, event_times=times)

    def _sent(self, unit: Unit, rows: int, order: OrderCommon) -> Sent:
        """The rows are spread over all TaskManagers; a few rows reach a few of them."""
        routes = order.routes.routes
        reached = min(len(routes), max(1, rows))
        first = 7 * unit.unit
        chosen = sorted(routes[(first + step) % len(routes)].task_manager for step in range(reached))
        return Sent.of([(task_manager, max(1, rows // reached), 0xDEADBEEF) for task_manager in chosen])


@dataclass
class StandInCluster:
    """Implements `jobmaster.cluster.Cluster`."""

    residents: int
    program: Program
    store: DictStore
    place: ClusterContext
    job_master: JobMasterGateway
    wire: Wire = field(default_factory=Wire)
    heartbeats: bool = False
    _processes: dict[ProcessId, tuple[ProcessStarter, Any]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4, "stand-ins"))
    _earlier: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table_schemas = {name: each.tables for name, each in identities(self.program).items()}

    @property
    def senders(self) -> int:
        return self.residents

    def residents_that_fit(self) -> int:
        return self.residents

    def check(self) -> None:
        """Stand-ins are always there."""

    def start(self, start: ProcessStarter) -> None:
        process = start.process
        kind = StandInTaskManager if process.role is Role.TASK_MANAGER else StandInSender
        self._processes[process] = (start, kind(self, process))
        registration = Registration(process, ADDRESS.format(process.number), uuid.uuid4().hex)
        self.job_master.register(_decode(_encode(registration), type=Registration))

    def end(self, process: ProcessId) -> None:
        found = self._processes.pop(process, None)
        if found is not None:
            found[1].dead = True
            found[0].ended(process, "ended")

    def kill(self, number: int) -> None:
        """End a TaskManager unasked."""
        self.end(next(each for each in self._processes if each[:2] == (Role.TASK_MANAGER, number)))

    def task_managers(self) -> list[StandInTaskManager]:
        return [found for _, found in list(self._processes.values()) if isinstance(found, StandInTaskManager)]

    def gateway(self, route: ExchangeRoute) -> StandInTaskManager:
        found = self._processes.get(ProcessId(Role.TASK_MANAGER, route.task_manager, route.incarnation))
        if found is None:
            raise TaskManagerLost(f"TaskManager {route.task_manager} is gone")
        return found[1]  # type: ignore[no-any-return]

    def sender(self, process: ProcessId, address: str) -> StandInSender:
        return self._processes[process][1]  # type: ignore[no-any-return]

    def earlier_objects(self, process: ProcessId) -> list[str]:
        """Log objects of a TaskManager that earlier checkpoints stored, shared by all of its logs."""
        made = lambda: [names.changelog_object(self.place.epoch, process.incarnation) for _ in range(LOG_PIECES_MAX)]  # noqa: E731
        if process.number not in self._earlier:
            self._earlier[process.number] = made()
        return self._earlier[process.number]

    def background(self, call: Callable[..., None], *arguments: Any) -> None:
        self._pool.submit(call, *arguments)

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        raise AssertionError("all legs are in Python, and their units go to senders that stay")

    def cancel(self, run: int) -> None:
        """No unit goes as a Spark job."""

    def stop(self) -> None:
        self._pool.shutdown()
