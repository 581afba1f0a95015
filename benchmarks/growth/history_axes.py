"""Axes of a job's history: checkpoints, publications, savepoints, failovers, bad and late rows, size of the state."""

import tempfile
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

import holdfast as hf
from benchmarks.growth.axis import REST, WORK, Axis, timed
from benchmarks.growth.jobs import SCHEMA, later_batch_s, new_job, rows
from holdfast.sinks.base import Sink
from holdfast.storage.store import open_store
from holdfast.testing import Abort, TestSource, run, start

FEW = rows(np.arange(10), 5)
MEASURED = 8
"""Checkpoints whose mean cost is measured, after those of the axis."""
COUNTS = (20, 80, 320)
_OFTEN = hf.FailoverConfig(losses_max=10_000, restarts_max=10_000, backoff_first="1ms", backoff_max="1ms")


def _counted(job: hf.Job, stream: hf.Stream, sink: Sink) -> None:
    stream.key_by("k").aggregate(n=hf.count(), name="counts").write(sink)


def _after(
    count: int,
    measure: Callable[[hf.Query, TestSource], Any],
    sink: Callable[[], Sink] = hf.NoopSink,
    each: Callable[[hf.Query], Any] = lambda query: query.trigger_checkpoint(),
    **checkpoint: Any,
) -> float:
    """The processor time of some work on a query, once it has done `each` so many times, a batch before each."""
    source = TestSource([FEW] * (count + MEASURED + 2), SCHEMA)
    source.length = 1
    job = new_job(checkpoint=hf.CheckpointConfig(trigger=hf.manual(), **checkpoint))
    _counted(job, job.read(source), sink())
    query = start(job, hf.processing_time("0s"))
    try:
        for _ in range(count):
            query.processAllAvailable()
            each(query)
            source.length += 1
        return timed(lambda: measure(query, source)) / MEASURED
    finally:
        query.stop()


def _checkpoints(query: hf.Query, source: TestSource) -> None:
    for _ in range(MEASURED):
        source.length += 1
        query.processAllAvailable()
        query.trigger_checkpoint()


def _pages(query: hf.Query, source: TestSource) -> None:
    for _ in range(MEASURED):
        _ = (query.view, query.status, query.lastProgress, repr(query), query.checkpoints)


def _parquet(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return _after(count, _checkpoints, lambda: hf.ParquetSink(f"file://{folder}"))


def _savepoints(count: int) -> float:
    def save(query: hf.Query) -> None:
        query.savepoint(f"memory://savepoint-{uuid4().hex}")

    return _after(count, lambda query, source: [save(query) for _ in range(MEASURED)], each=save)


def _restarted(keys: int, checkpoints: int) -> float:
    """A start from a record, with nothing new to read."""
    store = open_store(f"memory://restart-{time.monotonic_ns()}")

    def job() -> hf.Job:
        made = new_job()
        source = TestSource([rows(np.arange(keys), 5), *[FEW] * checkpoints], SCHEMA, name="rows")
        _counted(made, made.read(source), hf.NoopSink(name="out"))
        return made

    query = start(job(), hf.processing_time("0s"), store=store)
    query.processAllAvailable()
    for _ in range(checkpoints):
        query.trigger_checkpoint()
    query.stop()
    return timed(lambda: run(job(), store=store))


def _failovers(count: int) -> float:
    """Batches with a checkpoint each, behind each of which all TaskManagers are lost."""
    source = TestSource([step for _ in range(count) for step in (FEW, Abort())], SCHEMA)
    job = new_job(failover=_OFTEN)
    _counted(job, job.read(source), hf.NoopSink())
    source.length = 0
    query = start(job, hf.processing_time("0s"))

    def fail_over() -> None:
        for _ in range(count):
            source.length += 1
            query.processAllAvailable()
            query.trigger_checkpoint()
            source.length += 1
        query.processAllAvailable()

    try:
        return timed(fail_over)
    finally:
        query.stop()


def _bad_rows(count: int) -> float:
    """A batch, after others whose rows all are dead letters."""
    bad = pa.RecordBatch.from_pydict({"k": pa.array([None] * 10, pa.int64()), "v": [1] * 10})
    good = pa.RecordBatch.from_pydict({"k": list(range(10)), "v": [1] * 10})
    with tempfile.TemporaryDirectory() as folder:
        return later_batch_s(
            [bad] * count,
            good,
            lambda job, stream: _counted(job, stream, hf.NoopSink()),
            "k BIGINT, v BIGINT",
            bad_records="dead_letter",
            dead_letters=f"file://{folder}",
        )


def _late_rows(count: int) -> float:
    """A batch of late rows only; the axis is their number."""
    newest, late = rows(0, np.array([1_000_000])), rows(np.arange(count), 0)

    def declare(job: hf.Job, stream: hf.Stream) -> None:
        timed_rows = stream.with_watermark("at", 0)
        timed_rows.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count()).write(hf.NoopSink())

    return later_batch_s([newest, newest], late, declare)


def _batches(count: int) -> float:
    return later_batch_s([FEW] * count, FEW, lambda job, stream: _counted(job, stream, hf.NoopSink()))


AXES = [
    Axis("batches_before", REST, COUNTS, _batches),
    Axis("checkpoints_before", REST, (100, 1_000, 10_000), lambda n: _after(n, _checkpoints), 0),
    Axis("checkpoints_retained", REST, (30, 300, 3_000), lambda n: _after(n, _checkpoints, retained=n)),
    Axis("checkpoints_with_publications", REST, COUNTS, _parquet),
    Axis("page_after_checkpoints", REST, COUNTS, lambda n: _after(n, _pages)),
    Axis("page_with_retained_checkpoints", REST, COUNTS, lambda n: _after(n, _pages, retained=n)),
    Axis("restart_after_checkpoints", REST, COUNTS, lambda n: _restarted(10, n)),
    Axis("state_at_restore", WORK, (100_000, 1_000_000, 10_000_000), lambda n: _restarted(n, 1)),
    Axis("savepoints_before", REST, (20, 200, 2_000), _savepoints),
    Axis("failovers", WORK, (10, 40, 160), _failovers),
    Axis("dead_letters_before", REST, COUNTS, _bad_rows),
    Axis("late_rows", WORK, (20_000, 200_000, 2_000_000), _late_rows),
]
