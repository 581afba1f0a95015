"""Code that runs in Spark's Python workers: units of work, and the TaskManager. All arguments arrive as plain bytes.

Singletons (program, store, links) live as long as the worker process and are made anew in a forked process.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress

import cloudpickle
import msgspec
import pyarrow as pa
from pyspark import TaskContext

from holdfast.errors import USER_ERRORS, BadRecord, JobRefused, ObjectNotFound
from holdfast.exchange.connections import Connections
from holdfast.exchange.delivery import deliver, expect_outputs, run_unit
from holdfast.exchange.links import FlightLinks
from holdfast.exchange.step import made
from holdfast.exchange.task import (
    UnitResult,
    UnitRows,
    UnitWork,
    bad_rows_of,
)
from holdfast.failure import failure_of
from holdfast.graph.plan import Unit
from holdfast.graph.program import MapBatches, Program
from holdfast.ids import of_partition
from holdfast.jobmaster.processes.cluster import LevelRun
from holdfast.journal.other_storages import open_job_store
from holdfast.sources.bad_reasons import counted_reasons
from holdfast.sources.base import BadRow
from holdfast.spark.host import Shipped
from holdfast.storage import names
from holdfast.storage.counted import counted, untold
from holdfast.storage.retrying import RetryingStore

TASKS_THAT_LOAD_MAX = 8
"""Number of tasks after which a worker has imported and compiled everything that tasks need."""

RESULT_SCHEMA = pa.schema([pa.field("result", pa.binary())])


class Shipment(msgspec.Struct, frozen=True):
    """Data that every task of a job needs. Spark broadcasts it once, and it is never stored."""

    job_id: str
    program: bytes
    storage_url: str
    storage_options: dict[str, str]
    secret: str


class _Worker:
    """A worker process's copy of a job."""

    def __init__(self, shipment: Shipment) -> None:
        self.pid = os.getpid()
        self.shipment = shipment
        self.tasks = 0
        self.program: Program = cloudpickle.loads(shipment.program)
        self.store = counted(RetryingStore(open_job_store(shipment.storage_url, shipment.storage_options)))

    def begin_task(self) -> None:
        """Count a task, and in the first tasks exclude all existing objects from garbage collection.

        Spark's worker otherwise searches all imported objects for garbage after every task: 50 ms, four times a batch.
        Only the first tasks do this, because cycles among the excluded objects are freed only when another job comes.
        """
        if 0 < self.tasks <= TASKS_THAT_LOAD_MAX:
            gc.freeze()
        self.tasks += 1


_workers: dict[str, _Worker] = {}


def worker_for(shipment: Shipped) -> _Worker:
    """Return the worker for a shipment. Only the worker of the last job is kept, so that processes do not grow."""
    raw = shipment.value
    decoded = msgspec.msgpack.decode(raw, type=Shipment)
    known = _workers.get(decoded.secret)
    if known is None or known.pid != os.getpid():
        _workers.clear()
        gc.unfreeze()
        known = _workers[decoded.secret] = _Worker(decoded)
    known.begin_task()
    return known


class RunUnits:
    """The body of a task whose bytes are its units, for legs with all their steps in Python."""

    def __init__(self, shipment: Shipped, run: bytes) -> None:
        self._shipment = shipment
        self._run = run

    def __call__(self, encoded: bytes) -> Iterator[bytes]:
        worker = worker_for(self._shipment)
        run = msgspec.msgpack.decode(self._run, type=LevelRun)
        with Connections(worker.shipment.secret) as connections:
            links = FlightLinks(run.routes, connections)
            units = msgspec.msgpack.decode(encoded, type=list[Unit])
            expect_outputs(units, run.request, worker.program, links)
            for unit in units:
                result = run_unit(unit, run.request, worker.program, links, worker.store)
                yield msgspec.msgpack.encode(result)


class ReadUnit:
    """First half of a leg with Spark steps: in each partition it reads a unit into the JVM.

    Facts that cannot travel with the rows (their number, dead letters, a failure) are stored as a note in the job's
    storage, under the name of this Spark task attempt. The second half runs in the same attempt and finds the note.
    """

    def __init__(self, shipment: Shipped, run: bytes, units: bytes) -> None:
        self._shipment = shipment
        self._run = run
        self._units = units

    def __call__(self, nothing: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in nothing:  # Spark ends a worker that leaves input unread; a new worker takes seconds for its imports.
            continue
        worker = worker_for(self._shipment)
        run = msgspec.msgpack.decode(self._run, type=LevelRun)
        unit = msgspec.msgpack.decode(self._units, type=list[Unit])[_partition()]
        connections = Connections(worker.shipment.secret)
        links = FlightLinks(run.routes, connections)
        work = UnitWork(unit, run.request, worker.program, links, worker.store)
        rows = UnitRows(work)
        failure = None
        try:
            with connections:
                yield from rows
        except GeneratorExit:
            raise
        except USER_ERRORS as error:
            failure = failure_of(error)
        letters = work.stage_dead_letters(rows.bad)
        note = UnitResult(
            unit.unit,
            unit.leg,
            "",
            rows.count,
            dead_letters=tuple(letters),
            bad_rows=len(rows.bad),
            bad_reasons=counted_reasons(rows.bad),
            failure=failure,
            event_times=rows.event_times,
            requests=untold(worker.store),
        )
        worker.store.put(_note_name(worker, run, unit.unit), msgspec.msgpack.encode(note))


class StepBatches:
    """A step in Python between Spark's steps: a `map_batches`, or expressions.

    If it refuses rows, a note in the job's storage lists them, like the note of `ReadUnit`.
    """

    def __init__(self, shipment: Shipped, run: bytes, units: bytes, read_by_spark: bool, leg: int, place: int) -> None:
        self._shipment = shipment
        self._run = run
        self._units = units
        self._read_by_spark = read_by_spark
        self._leg = leg
        self._place = place

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker = worker_for(self._shipment)
        step = worker.program.legs[self._leg].steps[self._place]
        assert isinstance(step, MapBatches), "other steps are Spark's own"
        unit = _unit_of(self._units, self._read_by_spark)
        if unit is None:  # DeliverUnit refuses the transform that changed the partitions.
            return
        run = msgspec.msgpack.decode(self._run, type=LevelRun)
        connections = Connections(worker.shipment.secret)
        work = UnitWork(unit, run.request, worker.program, FlightLinks(run.routes, connections), worker.store)
        bad: list[BadRow] = []
        failure = None

        def refuse(rows: pa.RecordBatch, reasons: Mapping[int, str], _: bool) -> None:
            bad.extend(bad_rows_of(rows, reasons, work, self._place + 1, None))

        try:
            with connections:
                for batch in batches:
                    yield from made(step, batch, lambda: f"partition {_partition()}", refuse, work.call_place)
        except BadRecord as error:
            failure = failure_of(error)
            for _ in batches:  # Spark ends a worker that leaves input unread.
                continue
        if bad or failure is not None:
            note = UnitResult(
                unit.unit,
                unit.leg,
                "",
                dead_letters=tuple(work.stage_dead_letters(bad)),
                bad_rows=len(bad),
                bad_reasons=counted_reasons(bad),
                failure=failure,
                requests=untold(worker.store),
            )
            worker.store.put(_note_name(worker, run, unit.unit, self._place), msgspec.msgpack.encode(note))


class DeliverUnit:
    """Second half of a leg with Spark steps: it delivers the resulting rows to the leg's target.

    Each partition returns a single row, the encoded result.
    """

    def __init__(self, shipment: Shipped, run: bytes, units: bytes, read_by_spark: bool) -> None:
        self._shipment = shipment
        self._run = run
        self._units = units
        self._read_by_spark = read_by_spark

    def step(self, leg: int, place: int) -> StepBatches:
        """Return the function for an earlier step of the same units."""
        return StepBatches(self._shipment, self._run, self._units, self._read_by_spark, leg, place)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker = worker_for(self._shipment)
        run = msgspec.msgpack.decode(self._run, type=LevelRun)
        unit = _unit_of(self._units, self._read_by_spark)
        if unit is None:
            yield _encoded(UnitResult(-1, -1, "", failure=failure_of(JobRefused(_OTHER_PARTITIONS))))
            return
        connections = Connections(worker.shipment.secret)
        links = FlightLinks(run.routes, connections)
        work = UnitWork(unit, run.request, worker.program, links, worker.store)
        rows = _Counted(batches, work.leg.outputs[0].schema)
        try:
            with connections:
                result = deliver(((0, batch) for batch in rows), work)
        except USER_ERRORS as error:
            result = work.failed(error)
        result = self._with_note(result, worker, run, unit, rows.rows)
        yield _encoded(_joined(UnitResult(unit.unit, unit.leg, "", requests=untold(worker.store)), result))

    def _with_note(self, result: UnitResult, worker: _Worker, run: LevelRun, unit: Unit, rows: int) -> UnitResult:
        """Add the contents of the notes of the first half and of earlier steps."""
        for place, step in enumerate(worker.program.legs[unit.leg].steps):
            if isinstance(step, MapBatches):
                with suppress(ObjectNotFound):
                    result = _joined(_taken(worker, _note_name(worker, run, unit.unit, place)), result)
        if self._read_by_spark:
            return msgspec.structs.replace(result, rows=rows)
        try:
            note = _taken(worker, _note_name(worker, run, unit.unit))
        except ObjectNotFound:
            return msgspec.structs.replace(result, failure=result.failure or failure_of(JobRefused(_OTHER_PARTITIONS)))
        return msgspec.structs.replace(_joined(note, result), rows=note.rows, event_times=note.event_times)


def _unit_of(units: bytes, read_by_spark: bool) -> Unit | None:
    """Return the unit of this partition; None if there are more partitions than units."""
    found = msgspec.msgpack.decode(units, type=list[Unit])
    if read_by_spark:
        return msgspec.structs.replace(found[0], unit=of_partition(found[0].unit, _partition()))
    return found[_partition()] if _partition() < len(found) else None


def _taken(worker: _Worker, name: str) -> UnitResult:
    """Read a note, and delete it. Raises `ObjectNotFound` if there is none."""
    note = msgspec.msgpack.decode(worker.store.get(name), type=UnitResult)
    worker.store.delete([name])
    return note


def _joined(note: UnitResult, result: UnitResult) -> UnitResult:
    """Return a result that also has the dead letters, the failure and the requests of another part of the leg."""
    return msgspec.structs.replace(
        result,
        dead_letters=(*note.dead_letters, *result.dead_letters),
        bad_rows=note.bad_rows + result.bad_rows,
        bad_reasons=(*note.bad_reasons, *result.bad_reasons),
        failure=note.failure or result.failure,
        requests=dict(Counter(note.requests) + Counter(result.requests)),
    )


_OTHER_PARTITIONS = (
    "a transform now changes the partitions of a batch, which it did not when it was analysed: does it join a table "
    "that has become too large to broadcast? Say functions.broadcast(table), or raise "
    "spark.sql.autoBroadcastJoinThreshold"
)


def _encoded(result: UnitResult) -> pa.RecordBatch:
    return pa.record_batch([pa.array([msgspec.msgpack.encode(result)], pa.binary())], schema=RESULT_SCHEMA)


class _Counted:
    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch if batch.schema.equals(self._schema) else batch.cast(self._schema)


def _partition() -> int:
    return int(_context().partitionId())


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "runs inside a Spark task only"
    return context


def _note_name(worker: _Worker, run: LevelRun, unit: int, place: int | None = None) -> str:
    """Return the name of this task attempt's note about a unit: about its reading, or about its step at `place`."""
    attempt = _context().taskAttemptId()
    folder = names.staging_folder(worker.shipment.job_id, run.request.epoch, run.request.run)
    step = "" if place is None else f"-{place}"
    return f"{folder}/notes/{run.request.batch}-{run.request.level}-{unit}-{attempt}{step}"
