"""Helpers that tests of several rooms share: a TaskManager with a counting operator, a JobMaster that notes, and
senders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import pyarrow as pa

from holdfast.changelog_config import ChangelogConfig
from holdfast.exchange.local import LocalUnitWriter
from holdfast.exchange.unit_writer import UnitAttempt, UnitWriter
from holdfast.formats.handles import TableHandle
from holdfast.formats.manifests import load_manifests
from holdfast.functions.aggregates.declared import count
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import (
    BatchContext,
    NewTable,
    Operator,
    OperatorInput,
    OperatorResult,
    OperatorSpec,
    TableSchema,
)
from holdfast.graph.keygroups import key_group_range
from holdfast.graph.program import OperatorTarget, Program
from holdfast.ids import ProcessId, Role
from holdfast.protocol.streams import SentStream, SentUnit, Streams, by_task_manager
from holdfast.protocol.taskmanager import (
    Acknowledgement,
    BaseOffer,
    Decline,
    Deployment,
    ExchangeRoute,
    ExchangeRoutes,
    ProcessRequest,
    ProcessResult,
    Registration,
    RestoreProgress,
    SubtaskDeployment,
)
from holdfast.recovery.restore import select
from holdfast.settings import IN_MEMORY, StateBackend
from holdfast.state.table import StateTable
from holdfast.storage.counted import Requests
from holdfast.storage.store import ObjectStore, open_store
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.taskmanager import TaskManager
from waiting import until

JOB = "0123456789abcdef" * 2
MAX_PARALLELISM = 128
INPUT = pa.schema([("k", pa.int64())])
COUNT = OperatorTarget("count", 0, ("k",))
SECRET = "the secret of these tests, the same in every process"


def rows(*keys: int | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(keys, pa.int64())], schema=INPUT)


class NotingJobMaster:
    """`JobMasterGateway` that leaves the first `silent` acknowledgements and declines without an answer."""

    def __init__(self, silent: Sequence[Exception | bool] = ()) -> None:
        self.silent = list(silent)
        self.calls = 0
        self.acknowledgements: list[Acknowledgement] = []
        self.declines: list[Decline] = []
        self.registered: list[Registration] = []
        self.unanswered = 0
        """Number of registrations that are left without an answer."""
        self.heartbeats = 0
        self.wanted = True
        self.restores: list[RestoreProgress] = []

    def register(self, registration: Registration) -> bool:
        self.registered.append(registration)
        if len(self.registered) <= self.unanswered:
            raise TimeoutError("the answer is lost")
        return self.wanted

    def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
        self.heartbeats += 1
        return self.wanted

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        return self._answer(self.acknowledgements, acknowledgement)

    def decline(self, decline: Decline) -> bool:
        return self._answer(self.declines, decline)

    def offer(self, offer: BaseOffer) -> bool:
        return True

    def restoring(self, progress: RestoreProgress) -> bool:
        self.restores.append(progress)
        return True

    def _answer(self, notes: list[Any], note: Any) -> bool:
        self.calls += 1
        if self.silent:
            answer = self.silent.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        notes.append(note)
        return True


@dataclass
class Hooks:
    """Functions that an operator of `HookedSpec` calls before it processes; shared within the process."""

    before: Callable[[BatchContext], None] = field(default=lambda context: None)


HOOKS = Hooks()


class _HookedOperator(Operator):
    def __init__(self, inner: Operator) -> None:
        self._inner = inner
        self.tables = inner.tables

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = self._inner.process(inputs, context)
        HOOKS.before(context)
        return result


@dataclass(frozen=True)
class HookedSpec(OperatorSpec):
    """Counts, then calls `HOOKS.before`: everything was changed and nothing is decided."""

    inner: AggregateSpec
    name: str = "count"

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return self.inner.inputs

    @property
    def output_schema(self) -> pa.Schema:
        return self.inner.output_schema

    def table_schemas(self) -> dict[str, TableSchema]:
        return self.inner.table_schemas()

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return _HookedOperator(self.inner.create(subtask, max_parallelism, new_table))


def counting(name: str = "count") -> OperatorSpec:
    return HookedSpec(AggregateSpec(name, OperatorInput(INPUT, ("k",)), {"n": count()}), name)


def streams_of(writer: UnitWriter) -> Streams:
    """The streams that a unit claims to have sent to TaskManager 0."""
    return by_task_manager([SentUnit(writer.unit.unit, writer.unit.attempt, writer.finish())])[0]


def program(*specs: OperatorSpec, state: StateBackend = IN_MEMORY) -> bytes:
    operators = {spec.name: spec for spec in specs or (counting(),)}
    levels = {name: 1 + index for index, name in enumerate(operators)}
    made = Program({}, (), operators, levels, {}, {}, {}, state=state)
    return bytes(cloudpickle.dumps(made))


class OneTaskManager:
    """A TaskManager, in process, with `parallelism` subtasks of each operator."""

    def __init__(
        self,
        tmp_path: Any,
        parallelism: int = 2,
        store: ObjectStore | None = None,
        job_master: NotingJobMaster | None = None,
        memory_bytes: int = 1 << 30,
        incarnation: int = 1,
    ) -> None:
        self.parallelism = parallelism
        self.store = store or open_store(f"file://{tmp_path}/store")
        self.job_master = job_master or NotingJobMaster()
        self.settings = TaskManagerSettings(
            job_id=JOB,
            epoch=1,
            process=ProcessId(Role.TASK_MANAGER, 0, incarnation),
            job_master="grpc://127.0.0.1:1",
            secret=SECRET,
            bind_host="127.0.0.1",
            storage_url=self.store.url,
            local_dir=str(tmp_path / "spill"),
            memory_bytes=memory_bytes,
        )
        self.task_manager = TaskManager(self.settings, self.store, self.job_master)
        self.run = 1
        self.attempts = 0

    def deployment(self, run: int = 1, shipped: bytes | None = None, **more: Any) -> Deployment:
        return Deployment(
            job_id=JOB,
            epoch=1,
            run=run,
            task_manager=0,
            incarnation=self.settings.process.incarnation,
            program=shipped or program(),
            max_parallelism=MAX_PARALLELISM,
            subtasks=more.pop("subtasks", None) or self.subtasks(more.pop("restore", [])),
            changelog=ChangelogConfig(persist_delay=0, gathered_size_max=0).settings(),
            **more,
        )

    def subtasks(self, restore: list[TableHandle], operators: Sequence[str] = ("count",)) -> list[SubtaskDeployment]:
        made = []
        for operator in operators:
            for subtask in range(self.parallelism):
                start, stop = key_group_range(subtask, self.parallelism, MAX_PARALLELISM)
                own = select(restore, operator, "state", start, stop)
                made.append(SubtaskDeployment(operator, subtask, start, stop, own))
        return made

    def deployed(self) -> "OneTaskManager":
        self.task_manager.deploy(self.deployment())
        return self

    def routes(self, address: str = "") -> ExchangeRoutes:
        route = ExchangeRoute(0, self.settings.process.incarnation, address)
        return ExchangeRoutes(JOB, [route], [0] * self.parallelism, MAX_PARALLELISM)

    def unit(self, batch: int, unit: int = 0, attempt: str = "") -> UnitAttempt:
        self.attempts += 1
        return UnitAttempt(self.run, batch, 0, unit, attempt or f"attempt-{self.attempts}")

    def send(self, batch: int, *keys: int, unit: int = 0, operator: str = "count") -> list[SentStream]:
        writer = LocalUnitWriter(self.routes(), {0: self.task_manager}, self.unit(batch, unit))
        writer.send(OperatorTarget(operator, 0, ("k",)), rows(*keys))
        return list(streams_of(writer))

    def process(self, batch: int, streams: list[SentStream], level: int = 1) -> ProcessResult:
        return self.task_manager.process(ProcessRequest(self.run, batch, 0, level, Streams.of(streams)))

    def batch(self, batch: int, *keys: int) -> None:
        """Send, process and commit a batch."""
        self.process(batch, self.send(batch, *keys))
        self.task_manager.commit(self.run, batch)

    def output(self, batch: int, operator: str = "count") -> dict[int, int]:
        found: dict[int, int] = {}
        for subtask in range(self.parallelism):
            for piece in self.task_manager.output(self.run, batch, operator, subtask):
                found |= dict(zip(piece["k"].to_pylist(), piece["n"].to_pylist(), strict=True))
        return found

    def counts(self) -> dict[int, int]:
        """All counts now, by way of a batch that names no new key and is undone."""
        assert self.task_manager._hosted is not None
        found: dict[int, int] = {}
        for subtask in self.task_manager._hosted.subtasks.values():
            table: StateTable = subtask._operator.tables["state"]
            snapshot = table.snapshot()
            found |= dict(zip(snapshot["k"].to_pylist(), snapshot["n.count"].to_pylist(), strict=True))
        return found

    def acknowledged(self, checkpoint_id: int) -> Acknowledgement:
        notes = self.job_master.acknowledgements
        until(lambda: any(note.checkpoint_id == checkpoint_id for note in notes) or bool(self.job_master.declines))
        assert not self.job_master.declines
        return next(note for note in notes if note.checkpoint_id == checkpoint_id)

    def handles(self, acknowledgement: Acknowledgement) -> list[TableHandle]:
        [manifest] = load_manifests(self.store, [acknowledgement.manifest])
        return manifest.tables
