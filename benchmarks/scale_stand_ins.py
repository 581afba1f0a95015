"""Stand-ins for TaskManagers and senders, in a process of their own: they answer the driver as real processes would,
without Spark and rows.

    driver ── a call to an incarnation ──► StandIns.answer ──► the stand-in of that incarnation
    driver ◄── its acknowledgement ─────── StandIns.checkpoint, once no call waits

Handles, manifests, timers and metrics have the numbers that a job with RocksDB has in steady state: each table has
materialized files, and a log that grows by a piece with each checkpoint until it is materialized anew. `scale_serving`
carries the calls.
"""

import itertools
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from holdfast.exchange.resident import Order, OrderCommon
from holdfast.exchange.task import OutputResult, UnitResult
from holdfast.formats.handles import FILE, LogPiece, Manifest, MaterializedPart, TableHandle
from holdfast.formats.manifests import encode_manifest
from holdfast.functions.operator import Timers
from holdfast.graph.plan import Unit
from holdfast.graph.program import OperatorTarget, Program, SourceOrigin
from holdfast.ids import Epoch, RunNumber
from holdfast.jobmaster.checkpoints.job_facts import identities
from holdfast.observe.known_metrics import OF_TASK_MANAGERS
from holdfast.protocol.named import AnsweredNames
from holdfast.protocol.streams import Sent
from holdfast.protocol.taskmanager import (
    Acknowledgement,
    CommitAnswer,
    Deployment,
    ProcessRequest,
    ProcessResult,
    SubtaskDeployment,
    SubtaskResult,
)
from holdfast.sinks.staging import StagedParquet, encode
from holdfast.storage import names
from holdfast.taskmanager.remote import CallBody

FILES_PER_SUBTASK = 80
"""Materialized files of the tables of one subtask together, as RocksDB has with some gigabytes."""
LOG_PIECES_MAX = 64
NEW_FILES_SHARE = 5
"""A materialization replaces one file in so many."""
BUCKETS = 10

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


@lru_cache
def _committable(job_id: str) -> bytes:
    """Names a file that the job's sink `out` staged."""
    folder = names.staging_folder(job_id, Epoch(1), RunNumber(1))
    name = f"_{folder}/out/000000000001-100000-{'0' * 32}-0000.parquet"
    return encode(StagedParquet(1000, 80_000, 123_456_789, name, ""))


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
    """A TaskManager; its number comes with its first deployment."""

    def __init__(self, stand_ins: "StandIns", incarnation: int) -> None:
        self._stand_ins = stand_ins
        self._epoch = stand_ins.epoch
        self._incarnation = incarnation
        self._number = 0
        self._subtasks: list[SubtaskDeployment] = []
        self._tables: list[_Table] = []
        self._names = AnsweredNames()
        self._sequence = itertools.count(1)
        self._next_sqn = LOG_PIECES_MAX
        self._answers: dict[str, Callable[[bytes], Any]] = {
            "deploy": lambda body: self._deploy(_decode(body, type=Deployment)),
            "process": lambda body: self._process(_decode(body, type=ProcessRequest)),
            "commit": lambda body: self._commit(),
            "cut": lambda body: self._cut(*_decode(body, type=tuple[int, int, int])),
        }

    def answer(self, what: str, arguments: bytes) -> Any:
        """Answer a call. Calls that change nothing in a stand-in (`undo`, `complete`) have an empty answer."""
        answer = self._answers.get(what)
        return None if answer is None else answer(arguments)

    def _deploy(self, deployment: Deployment) -> str:
        self._number = deployment.task_manager
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
        schemas = self._stand_ins.table_schemas[subtask.operator]
        objects = self._stand_ins.earlier_objects(self._number, self._incarnation)
        pieces = 1 + (place * 8 + self._number) % (LOG_PIECES_MAX - 1)
        start, stop = subtask.key_group_start, subtask.key_group_stop
        tables = []
        for name, schema in schemas.items():
            files = [self._file(start, stop) for _ in range(FILES_PER_SUBTASK // len(schemas))]
            log = [self._piece(objects[-pieces + at], at, start, stop) for at in range(pieces)]
            tables.append(_Table(subtask.operator, name, start, stop, schema, files, log))
        return tables

    def _file(self, start: int, stop: int) -> MaterializedPart:
        name = names.shared_object(self._epoch, self._incarnation)
        return MaterializedPart(name, 0, 64_000_000, start, stop, FILE)

    def _piece(self, name: str, sqn: int, start: int, stop: int) -> LogPiece:
        return LogPiece(name, 8_000 * sqn, 8_000, sqn, sqn + 1, start, stop)

    def _process(self, request: ProcessRequest) -> ProcessResult:
        rows = -(-sum(stream.rows for stream in request.streams) // len(self._subtasks))
        timers = Timers(request.batch_time_us + 60_000_000, None, 0)
        return ProcessResult(
            [SubtaskResult(each.operator, each.subtask, rows, rows, timers=timers) for each in self._subtasks]
        )

    def _commit(self) -> CommitAnswer:
        values = {"incarnation": float(self._incarnation), "deployments": 1.0}
        for metric in OF_TASK_MANAGERS:
            if metric.by_subtask:
                values |= {f"{metric.name}.{each.operator}.{each.subtask}": 1234.5 for each in self._subtasks}
            elif metric.kind == "histogram":
                parts = [*(f"le{at}" for at in range(BUCKETS)), "count", "sum", "max"]
                values |= {f"{metric.name}#{part}": 1234.5 for part in parts}
            else:
                values[metric.name] = 1234.5
        return CommitAnswer(values)

    def _cut(self, run: int, checkpoint_id: int, batch: int) -> None:
        self._stand_ins.later.append(lambda: self._checkpoint(checkpoint_id, batch))

    def _checkpoint(self, checkpoint_id: int, batch: int) -> None:
        ahead = self._grow()
        name = self._store_manifest(checkpoint_id, batch)
        objects = list(dict.fromkeys([name, *(o for table in self._tables for o in table.handle().objects())]))
        whole = self._acknowledgement(checkpoint_id, batch, name, objects, [ahead])
        acknowledge = self._stand_ins.acknowledge
        if not acknowledge(self._names.shortened(whole)):
            assert acknowledge(whole), "a whole acknowledgement is always taken"
        self._names.answered(whole)

    def _acknowledgement(
        self, checkpoint_id: int, batch: int, manifest: str, objects: list[str], held: list[str]
    ) -> Acknowledgement:
        sequence = next(self._sequence)
        return Acknowledgement(
            checkpoint_id, self._number, self._incarnation, batch, manifest, objects, held, 1, 2, 3, 4.0, 5.0, sequence
        )

    def _grow(self) -> str:
        """A piece more in each log, or a materialization where it is full; the name of an object uploaded ahead."""
        self._next_sqn += 1
        name = names.changelog_object(self._epoch, self._incarnation)
        for table in self._tables:
            piece = self._piece(name, self._next_sqn, table.start, table.stop)
            if len(table.log) < LOG_PIECES_MAX:
                table.log.append(piece)
                continue
            table.log = [piece]
            for at in range(0, len(table.files), NEW_FILES_SHARE):
                table.files[at] = self._file(table.start, table.stop)
        return names.changelog_object(self._epoch, self._incarnation)

    def _store_manifest(self, checkpoint_id: int, batch: int) -> str:
        tables = [table.handle() for table in self._tables]
        name = names.manifest(self._epoch, checkpoint_id, self._number)
        manifest = Manifest(self._epoch, checkpoint_id, self._number, self._incarnation, batch, tables)
        path = self._stand_ins.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_manifest(manifest))
        return name


class StandIns:
    """All stand-ins. Calls come singly. `acknowledge` tells the driver."""

    def __init__(
        self, program: Program, epoch: int, folder: Path, acknowledge: Callable[[Acknowledgement], bool]
    ) -> None:
        self.epoch = epoch
        self.folder = folder
        self.acknowledge = acknowledge
        self.table_schemas = {name: each.tables for name, each in identities(program).items()}
        self.later: deque[Callable[[], None]] = deque()
        """Checkpoints that were cut, to be worked off once no call waits."""
        self._program = program
        self._task_managers: dict[int, StandInTaskManager] = {}
        self._earlier: dict[int, list[str]] = {}

    def answer(self, what: str, body: bytes) -> list[bytes]:
        """Answer a call: a message, or for an order a message for each unit."""
        call = _decode(body, type=CallBody)
        if what == "run":
            return self._run(_decode(call.arguments, type=Order))
        if what in ("cancel", "split"):
            return [_encode("" if what == "split" else None)]
        found = self._task_managers.get(call.incarnation)
        if found is None:
            found = self._task_managers[call.incarnation] = StandInTaskManager(self, call.incarnation)
        return [_encode(found.answer(what, call.arguments))]

    def earlier_objects(self, number: int, incarnation: int) -> list[str]:
        """Log objects of a TaskManager that earlier checkpoints stored, shared by all of its logs."""
        if number not in self._earlier:
            self._earlier[number] = [names.changelog_object(self.epoch, incarnation) for _ in range(LOG_PIECES_MAX)]
        return self._earlier[number]

    def _run(self, order: Order) -> list[bytes]:
        """A sender's answer: each unit sends its rows to TaskManagers, or stages a file."""
        common = _decode(order.common, type=OrderCommon)
        return [_encode(self._result(unit, common)) for unit in order.units]

    def _result(self, unit: Unit, order: OrderCommon) -> UnitResult:
        leg = self._program.legs[unit.leg]
        attempt = uuid.uuid4().hex
        times = {}
        if isinstance(leg.origin, SourceOrigin) and leg.watermark is not None:
            times = {read.split: 1_700_000_000_000_000 + order.request.batch for read in unit.reads}
        rows = sum(read.rows for read in unit.reads)
        outputs = tuple(
            OutputResult(self._sent(unit, rows, order))
            if isinstance(output.target, OperatorTarget)
            else OutputResult(committables=(_committable(order.routes.job_id),))
            for output in leg.outputs
        )
        return UnitResult(unit.unit, leg.index, attempt, rows, outputs, event_times=times)

    def _sent(self, unit: Unit, rows: int, order: OrderCommon) -> Sent:
        """The rows are spread over all TaskManagers; a few rows reach a few of them."""
        routes = order.routes.routes
        reached = min(len(routes), max(1, rows))
        first = 7 * unit.unit
        chosen = sorted(routes[(first + step) % len(routes)].task_manager for step in range(reached))
        return Sent.of([(task_manager, max(1, rows // reached), 0xDEADBEEF) for task_manager in chosen])
