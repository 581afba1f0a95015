"""Spark as a job's cluster: TaskManagers run as Spark jobs of a single task, levels of a batch as single-stage jobs.

The number of concurrent tasks is at most the number of slots that TaskManagers leave: a replacement TaskManager must
not wait behind senders. Every Spark job carries a group (for cancelling) and a description (for the Spark UI).
"""

import time
import uuid
from collections.abc import Sequence
from types import ModuleType

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from holdfast.errors import SessionStopped
from holdfast.exchange.resident import SenderGateway
from holdfast.exchange.resident_server import ResidentClient
from holdfast.exchange.task import UnitResult
from holdfast.graph.plan import Unit
from holdfast.graph.program import BATCH_TIME, Leg, Program, SourceOrigin, Transform
from holdfast.ids import ProcessId, RunNumber
from holdfast.jobmaster.processes.cluster import LevelRun, ProcessStarter
from holdfast.printable import logger
from holdfast.protocol.taskmanager import ExchangeRoute, TaskManagerGateway
from holdfast.sources.dataframe import DataFrameSource
from holdfast.spark.claims import SHARED, Claim, SlotClaims
from holdfast.spark.failures import step_failure
from holdfast.spark.host import SparkHost, SparkJob
from holdfast.spark.hosting import Hosting
from holdfast.spark.shipping import shipped_by_value
from holdfast.spark.slots import await_slots, dynamic
from holdfast.spark.staying import StayingProcess
from holdfast.spark.tasks import DeliverUnit, ReadUnit, RunUnits, Shipment
from holdfast.spark.transforms import declared_rows, spark_schema
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.settings import TaskManagerSettings

log = logger(__name__)

ASK_EVERY_S = 30.0
"""Seconds between two requests for executors while senders have no slots. A lower value repeats requests that Spark has
given up sooner."""
RESULT = StructType([StructField("result", BinaryType())])


class SparkCluster:
    """Implements `jobmaster.processes.cluster.Cluster` on a Spark session."""

    heartbeats = True

    def __init__(
        self,
        host: SparkHost,
        name: str,
        program: Program,
        shipment: Shipment,
        task_manager: TaskManagerSettings,
        claim: Claim,
        claims: SlotClaims,
        slots_left: int,
        modules: Sequence[ModuleType] = (),
    ) -> None:
        self._claim, self._claims = claim, claims
        self._slots_left = slots_left
        self._beside_at_start = slots_left - claim.senders
        self._host = host
        self._name = name
        self._group = f"holdfast-{name}-{uuid.uuid4().hex[:8]}"
        self._program = program
        self._secret = shipment.secret
        self._shipment = host.ship(msgspec.msgpack.encode(shipment))
        self._task_manager = task_manager
        self._modules = tuple(modules)
        self._lanes: dict[int, DataFrame] = {}
        self._hosting = Hosting(host, name, self._group, self._secret)
        self._running: int | None = None
        self._asked_s = float("-inf")

    @property
    def _slots_beside_residents(self) -> int:
        return max(1, min(self._beside_at_start, self._slots_left - self._claim.senders))

    @property
    def senders(self) -> int:
        """Most units of a level that run side by side."""
        return self._claim.senders or self._slots_left

    @property
    def residents(self) -> int:
        """Number of long-running senders; other queries of the session may take some, and give them back."""
        return self._claim.senders

    def residents_that_fit(self) -> int:
        slots = self._slots_now()
        if slots is None:
            return self.residents
        fit = self._claims.fit(self._claim, slots, self._beside_at_start)
        if fit < self.residents:
            self._ask_for_slots()
        return fit

    def resize(self, processes: int, senders: int | None = None) -> None:
        wanted = self._claim.senders if senders is None else senders
        more = processes + wanted - self._claim.total
        available = await_slots(self._host, 1, self._claims.held() + more + SHARED, is_used=True) if more > 0 else 0
        self._claims.resize(self._claim, available, processes, senders)

    def check(self) -> None:
        if self._host.has_ended():
            raise SessionStopped(
                f"the Spark session of {self._name!r} was stopped while its query ran (spark.stop(), the end of "
                "Spark's JVM, or a Spark Connect server that does not answer). Stop the query first; to go on from the "
                "last checkpoint, start the job on a new session"
            )
        if self._claim.missing > 0:
            self._look_for_slots()

    def _look_for_slots(self) -> None:
        """Hold slots that have come since the start for senders that had none, and ask for those that are missing."""
        slots = self._slots_now()
        if slots is None:
            return
        self._claims.grow(slots)
        if self._claim.missing > 0:
            self._ask_for_slots()

    def _ask_for_slots(self) -> None:
        """Ask now and then for the slots that senders miss, under dynamic allocation."""
        if dynamic(self._host) and time.monotonic() - self._asked_s >= ASK_EVERY_S:
            self._asked_s = time.monotonic()
            self._host.ask_for(self._claims.held() + self._claim.missing + SHARED)

    def _slots_now(self) -> int | None:
        """Return the number of slots; None if it cannot be found now, which ends no query that runs."""
        try:
            return self._host.slots()
        except Exception as error:
            log.warning("%s: slots were not counted: %s", self._name, str(error)[:500])
            return None

    def start(self, start: ProcessStarter) -> None:
        settings = msgspec.structs.replace(self._task_manager, process=start.process)
        self._hosting.start(start, msgspec.msgpack.encode(settings), StayingProcess(self._shipment))

    def end(self, process: ProcessId) -> None:
        self._hosting.end(process)

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        client = TaskManagerClient(route, self._secret)
        self._hosting.watch(client)
        return client

    def sender(self, process: ProcessId, address: str) -> SenderGateway:
        client = ResidentClient(process, address, self._secret)
        self._hosting.watch(client)
        return client

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        self._running = run.request.run
        job = SparkJob(self._run_group(run.request.run), f"{self._name}: {run.description}")
        try:
            with self._host.described(job):
                return self._run_level(run)
        finally:
            self._running = None

    def _run_level(self, run: LevelRun) -> list[UnitResult]:
        header = msgspec.msgpack.encode(msgspec.structs.replace(run, units=[]))
        by_leg: dict[int, list[Unit]] = {}
        in_python: list[Unit] = []
        for unit in run.units:
            if self._program.runs_in_python(self._program.legs[unit.leg]):
                in_python.append(unit)
            else:
                by_leg.setdefault(unit.leg, []).append(unit)
        results = self._run_in_python(header, in_python) if in_python else []
        for leg, units in by_leg.items():
            results += self._run_in_spark(header, leg, units)
        return sorted(results, key=lambda result: result.unit)

    def _dataframe_source(self, leg: Leg) -> DataFrameSource | None:
        source = self._program.sources[leg.origin.source] if isinstance(leg.origin, SourceOrigin) else None
        return source if isinstance(source, DataFrameSource) else None

    def _run_in_python(self, header: bytes, units: list[Unit]) -> list[UnitResult]:
        tasks = min(len(units), self._slots_left)
        groups = [msgspec.msgpack.encode(units[task::tasks]) for task in range(tasks)]
        encoded = self._host.run(groups, RunUnits(self._shipment, header))
        return [msgspec.msgpack.decode(result, type=UnitResult) for result in encoded]

    def _run_in_spark(self, header: bytes, number: int, units: list[Unit]) -> list[UnitResult]:
        leg = self._program.legs[number]
        source = self._dataframe_source(leg)
        if source is not None:
            return [result for unit in units for result in self._run_dataframe(header, number, source, unit)]
        results: list[UnitResult] = []
        for first in range(0, len(units), self._slots_beside_residents):
            some = units[first : first + self._slots_beside_residents]
            encoded = msgspec.msgpack.encode(some)
            origin = self._origin_schema(leg)
            rows = self._lanes_of(len(some)).mapInArrow(ReadUnit(self._shipment, header, encoded), spark_schema(origin))
            results += self._deliver(rows, number, DeliverUnit(self._shipment, header, encoded, False))
        return results

    def _run_dataframe(self, header: bytes, leg: int, source: DataFrameSource, unit: Unit) -> list[UnitResult]:
        results: list[UnitResult] = []
        for read in unit.reads:
            rows = declared_rows(source, source.dataframe_of(self._host.session, read))
            body = DeliverUnit(self._shipment, header, msgspec.msgpack.encode([unit]), True)
            results += self._deliver(rows.coalesce(self._slots_beside_residents), leg, body)
        return results

    def _lanes_of(self, count: int) -> DataFrame:
        if count not in self._lanes:
            self._lanes[count] = self._host.lanes(count)
        return self._lanes[count]

    def _deliver(self, rows: DataFrame, number: int, body: DeliverUnit) -> list[UnitResult]:
        leg = self._program.legs[number]
        try:
            with shipped_by_value(self._modules):
                for place, step in enumerate(leg.steps):
                    if isinstance(step, Transform):
                        rows = step.fn(rows)
                    else:
                        rows = rows.mapInArrow(body.step(number, place), spark_schema(step.schema))
                delivered = rows.mapInArrow(body, RESULT)
            encoded = self._host.own(delivered).collect()
        except Exception as error:
            raise step_failure(leg, error) from error
        return [msgspec.msgpack.decode(bytes(row[0]), type=UnitResult) for row in encoded]

    def _origin_schema(self, leg: Leg) -> pa.Schema:
        if isinstance(leg.origin, SourceOrigin):
            source = self._program.sources[leg.origin.source]
            schema = source.outputs().get(leg.origin.output) or source.schema()
            if leg.watermark is None or not leg.watermark.of_batches:
                return schema
            return schema.append(pa.field(leg.watermark.column, BATCH_TIME))
        return self._program.operators[leg.origin.operator].output_schema

    def cancel(self, run: RunNumber) -> None:
        if self._running == run:  # Spark warns of a group that has no jobs
            self._host.cancel(self._run_group(run))

    def stop(self) -> None:
        self._hosting.stop()
        self._claims.release(self._claim)
        if not self._host.has_ended():
            self._shipment.unpersist()
        self._host.close()

    def _run_group(self, run: RunNumber) -> str:
        return f"{self._group}-run-{run}"
