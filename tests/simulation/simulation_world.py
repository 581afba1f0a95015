"""A simulated job: real JobMasters, TaskManagers, changelog, journal and sinks in this process, on a store that
misbehaves, through lives that end badly. What happens when is drawn from a seed; threads run as they like, so a
seed fixes what is done to the job and not the order in which threads come to it.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from simulation_oracle import LEVELS
from simulation_settings import MAX_PARALLELISM, Life, Settings

import holdfast as hf
from holdfast import errors, failpoints
from holdfast.changelog.attempts import RetryPolicy
from holdfast.graph.build import build_program
from holdfast.graph.program import Program
from holdfast.query import Query
from holdfast.settings import QueryTrigger
from holdfast.sinks.base import Sink
from holdfast.storage.store import open_store
from holdfast.testing import FaultyStore, SlowStore, start
from holdfast.testing.local import LocalCluster
from holdfast.testing.stores import CutOffStore, Fault

SPEED = 25.0
STARTS_MAX = 20
STEPS_THAT_FAIL = (
    "task.sent",
    "taskmanager.process.after",
    "jobmaster.level.before",
    "jobmaster.commit.before",
    "changelog.upload.before",
    "materialize.upload.before",
    "taskmanager.cut.uploaded",
    "taskmanager.cut.manifest",
    "jobmaster.record.stored",
    "jobmaster.record.before",
)
KEYED = pa.schema([("k", pa.int64()), ("value", pa.int64())])
LEVELLED = pa.schema([("level", pa.int64()), ("n", pa.int64())])


class HastyClock:
    """A second passes in the 25th part of one."""

    def __init__(self) -> None:
        self._begun_s = time.monotonic()

    def now(self) -> float:
        return 1_700_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return 1000.0 + (time.monotonic() - self._begun_s) * SPEED


@contextmanager
def short_waits() -> Iterator[None]:
    """What waits for a store that fails waits milliseconds, in this process."""
    policy = partial(RetryPolicy, next_attempt_delay_s=0.004)
    with (
        mock.patch("holdfast.journal.patience.DELAY_S_MAX", 0.004),
        mock.patch.dict("holdfast.storage.retrying.RetryingStore.__init__.__kwdefaults__", {"first_delay_s": 0.002}),
        mock.patch("holdfast.changelog.uploader.RetryPolicy", policy),
        mock.patch("holdfast.jobmaster.control.RESOLVE_PAUSE_S", 0.01),
        mock.patch("holdfast.taskmanager.checkpoints.FIRST_REPEAT_S", 0.005),
    ):
        yield


class Recorder:
    """What a `CallbackSink` calls: keeps each number once, as its contract asks for, and checks repetitions."""

    def __init__(self, rng: random.Random, errors_ratio: float) -> None:
        self._rng = rng
        self._errors_ratio = errors_ratio
        self._lock = threading.Lock()
        self.seen: dict[int, list[dict[str, Any]]] = {}
        self.wrong: list[str] = []

    def __call__(self, table: pa.Table, number: int) -> None:
        with self._lock:
            if self._rng.random() < self._errors_ratio:
                raise ConnectionError("the callback's target does not answer (injected)")
            rows = table.to_pylist()
            if number in self.seen:
                if self.seen[number] != rows:
                    self.wrong.append(f"number {number} came again with other rows")
                return
            if self.seen and number < max(self.seen):
                self.wrong.append(f"number {number} came first after {max(self.seen)}")
            self.seen[number] = rows

    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.seen) for row in self.seen[number]]


class World:
    """One seed's store, sinks and clock, over all lives of its job."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = HastyClock()
        self.rng = random.Random(settings.seed)
        self.storage = f"memory://simulation/{uuid4().hex}"
        self.inner = open_store(self.storage)
        self.faults = 0.0
        self.fault_kinds = list(Fault)
        self.delay_s = 0.0
        self.faulty = FaultyStore(SlowStore(self.inner, lambda *_: self.delay_s, self._wait), self._decide)
        self.sinks = {name: self._sink(name, kind) for name, kind in settings.sinks.items()}
        self.old: list[Query] = []
        self.unexpected: list[str] = []

    def _wait(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds)

    def _decide(self, operation: str, name: str) -> Fault | None:
        return self.rng.choice(self.fault_kinds) if self.rng.random() < self.faults else None

    def _sink(self, name: str, kind: str) -> Sink:
        if kind == "memory":
            return hf.MemorySink(name=f"{name}-out")
        if kind == "parquet":
            return hf.ParquetSink(f"memory://{uuid4().hex}", name=f"{name}-out")
        return hf.CallbackSink(Recorder(self.rng, self.settings.callback_errors), name=f"{name}-out")

    def job(self, life: Life) -> hf.Job:
        settings = self.settings
        job = hf.Job(
            None,
            name="simulated",
            storage=self.storage,
            parallelism=life.parallelism,
            max_parallelism=MAX_PARALLELISM,
            task_managers=life.task_managers,
            max_rows_per_batch=life.rows_per_batch,
            checkpoint=hf.CheckpointConfig(
                trigger=hf.every(life.checkpoint_every_s),
                max_concurrent=life.max_concurrent,
                tolerable_failed_checkpoints=2,
                log_handles_max=life.log_handles_max,
                materialization_interval=life.materialization_interval_s,
            ),
        )
        source = hf.SequenceSource(
            stop=life.stop, splits=settings.splits, rows_per_second=life.rows_per_second, name="numbers"
        )
        numbers = job.read(source)
        with_keys = numbers.map_batches(partial(keyed, settings.keys), KEYED)
        emit: Any = "every" if settings.chained else settings.emit
        counts = with_keys.key_by("k").aggregate(emit=emit, name="counts", n=hf.count())
        counts.write(self.sinks["counts"])
        if settings.chained:
            levelled = counts.map_batches(_levelled, LEVELLED).key_by("level")
            levelled.aggregate(emit=settings.emit, name="levels", n=hf.count()).write(self.sinks["levels"])  # type: ignore[arg-type]
        if settings.passed_through:
            numbers.write(self.sinks["raw"])
        return job

    def program(self) -> Program:
        job = self.job(self.settings.lives[-1])
        return build_program(job.declared, lambda fn, schema: schema, None, {})

    def live(self, life: Life) -> bool:
        """One life until something ends it; whether the job came to its end."""
        happening = self._begin(life)
        query: Query | None = None
        try:
            query = self._start(life, happening, hf.available_now())
            while not query.awaitTermination(0.002) and happening.fate is None:
                continue
            ended = not query.isActive and happening.fate is None
        except errors.HoldfastError as error:
            ended = False
            self._judge(error, happening)
        finally:
            failpoints.listen(None)
        if query is not None and not ended:
            self._part(query, happening)
        return ended

    @contextmanager
    def living(self, life: Life) -> Iterator[Query]:
        """A life that goes on until it is stopped."""
        happening = self._begin(life)
        for attempt in range(STARTS_MAX):
            try:
                query = self._start(life, happening, hf.processing_time(0))
                break
            except errors.StorageError:
                assert self.faults and attempt < STARTS_MAX - 1
        try:
            yield query
        finally:
            failpoints.listen(None)
            query.stop()

    def _begin(self, life: Life) -> "Happening":
        self.faults, self.delay_s = life.faults, life.delay_s
        happening = Happening(self, life)
        failpoints.listen(happening.hit)
        return happening

    def _start(self, life: Life, happening: "Happening", trigger: QueryTrigger) -> Query:
        happening.store = CutOffStore(self.faulty)
        happening.query = start(
            self.job(life), trigger, store=happening.store, clock=self.clock, on_cluster=happening.on_cluster
        )
        return happening.query

    def _part(self, query: Query, happening: "Happening") -> None:
        if happening.fate == "replace" and query.isActive:
            self.old.append(query)
        else:
            query.stop()
            happening.store.cut()

    def _judge(self, error: errors.HoldfastError, happening: "Happening") -> None:
        cause = error.__cause__ if isinstance(error, errors.QueryFailed) else error
        storage = isinstance(cause, errors.StorageError | errors.CheckpointFailed)
        if not (happening.fate or (storage and (self.faults or happening.failed))):
            self.unexpected.append(f"{type(cause).__name__}: {cause}")

    def bury(self) -> None:
        """End JobMasters that were replaced and are still alive; let everything late arrive."""
        for query in self.old:
            query.stop()
            cause = query._master.error
            if cause is not None and not isinstance(cause, errors.Fenced | errors.StorageError | errors.PublishFailed):
                self.unexpected.append(f"replaced JobMaster: {type(cause).__name__}: {cause}")
        self.old = []
        self.faulty.land()


class Happening:
    """Counts the hits of failpoints during one life, and does what was drawn for them."""

    def __init__(self, world: World, life: Life) -> None:
        self.fate: str | None = None
        self.query: Query | None = None
        self.store: CutOffStore
        self._world = world
        self._events = list(life.events)
        self._hits = 0
        self._to_fail = 0
        self.failed = False
        self._lock = threading.Lock()
        self._cluster: LocalCluster | None = None

    def on_cluster(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def hit(self, name: str) -> None:
        due: list[Callable[[], None]] = []
        with self._lock:
            self._hits += 1
            while self._events and self._events[0].hit <= self._hits:
                due.append(partial(self._act, self._events.pop(0)))
            fails = self._to_fail > 0 and name in STEPS_THAT_FAIL
            self._to_fail -= fails
            self.failed |= fails
        for act in due:
            act()
        if fails:
            raise errors.StorageError(f"{name} failed (injected)")

    def _act(self, event: Any) -> None:
        match event.action:
            case "kill" if self._cluster is not None:
                self._cluster.kill(event.task_manager)
            case "fail":
                self._to_fail += 1
            case "land":
                self._world.faulty.land()
            case "checkpoint" if self.query is not None:
                self.query._master.trigger_checkpoint()
            case "crash":
                self.store.cut()
                self.fate = "crash"
            case "replace" | "stop":
                self.fate = event.action


def keyed(keys: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column("value")
    groups = pa.array(values.to_numpy() % keys)
    return pa.RecordBatch.from_arrays([groups, values], schema=KEYED)


def _levelled(batch: pa.RecordBatch) -> pa.RecordBatch:
    counts = batch.column("n")
    return pa.RecordBatch.from_arrays(
        [pa.array(counts.to_numpy() % LEVELS), pc.cast(counts, pa.int64())], schema=LEVELLED
    )
