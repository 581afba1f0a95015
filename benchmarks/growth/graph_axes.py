"""Axes of declarations: sources, stages, operators, sinks, columns, splits, files."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import holdfast as hf
from benchmarks.growth.axis import WORK, Axis, timed
from benchmarks.growth.jobs import SCHEMA, later_batch_s, new_job, rows, whole_s
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.regions import explained
from holdfast.testing import TestSource, run

FEW = rows(np.arange(10), np.arange(10))
"""A batch of ten rows."""


def _counted(stream: hf.Stream, name: str = "counts") -> hf.Stream:
    return stream.key_by("k").aggregate(n=hf.count(), name=name)


def _sources(count: int, unite: Callable[[hf.Stream, hf.Stream, int], hf.Stream]) -> float:
    def declare(job: hf.Job) -> None:
        stream = job.read(TestSource([FEW], SCHEMA))
        for number in range(1, count):
            stream = unite(stream, job.read(TestSource([FEW], SCHEMA)), number)
        _counted(stream).write(hf.NoopSink())

    return whole_s(declare)


def _stages(count: int) -> float:
    def declare(job: hf.Job) -> None:
        stream = job.read(TestSource([FEW], SCHEMA))
        for _ in range(count):
            stream = stream.where(pc.field("k") < 5).union(stream.where(pc.field("k") >= 5))
        _counted(stream).write(hf.NoopSink())

    return whole_s(declare)


def _steps(count: int) -> float:
    def declare(job: hf.Job, stream: hf.Stream) -> None:
        for _ in range(count):
            stream = stream.where(pc.field("k") >= 0)
        stream.write(hf.NoopSink())

    return later_batch_s([FEW], FEW, declare)


def _in_a_row(count: int) -> float:
    def declare(job: hf.Job, stream: hf.Stream) -> None:
        for number in range(count):
            stream = _counted(stream, f"o{number}").select("k")
        stream.write(hf.NoopSink())

    return later_batch_s([FEW], FEW, declare)


def _side_by_side(count: int) -> float:
    def declare(job: hf.Job, stream: hf.Stream) -> None:
        for number in range(count):
            _counted(stream, f"o{number}").write(hf.NoopSink())

    return later_batch_s([FEW], FEW, declare)


def _sinks(count: int) -> float:
    def declare(job: hf.Job, stream: hf.Stream) -> None:
        for _ in range(count):
            stream.write(hf.NoopSink())

    return later_batch_s([FEW], FEW, declare)


def _columns(count: int) -> float:
    names = [f"c{number}" for number in range(count)]
    batch = pa.RecordBatch.from_pydict({"k": list(range(10)), **{name: [1] * 10 for name in names}})
    schema = ", ".join(["k BIGINT", *(f"{name} BIGINT" for name in names)])

    def declare(job: hf.Job, stream: hf.Stream) -> None:
        stream.key_by("k").aggregate(**{f"s_{name}": hf.sum(name) for name in names}).write(hf.NoopSink())

    return later_batch_s([batch], batch, declare, schema)


def _splits(count: int) -> float:
    def declare(job: hf.Job) -> None:
        _counted(job.read(hf.SequenceSource(rows=20_000, splits=count)).select(k=pc.field("value"))).write(
            hf.NoopSink()
        )

    return whole_s(declare)


def _files(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            pq.write_table(pa.table({"k": [number]}), Path(folder) / f"{number}.parquet")
        return whole_s(lambda job: _counted(job.read(hf.FileSource(folder))).write(hf.NoopSink()))


def _subtasks(count: int) -> float:
    return later_batch_s([FEW], FEW, lambda job, stream: _counted(stream).write(hf.NoopSink()), parallelism=count)


def _task_managers(count: int) -> float:
    return later_batch_s([FEW], FEW, lambda job, stream: _counted(stream).write(hf.NoopSink()), task_managers=count)


def _explained(count: int) -> float:
    job = new_job()
    stream = job.read(TestSource([FEW], SCHEMA))
    for number in range(count):
        stream = _counted(stream, f"o{number}").select("k")
    stream.write(hf.NoopSink())
    return timed(lambda: explained(build_program(job.declared, without_spark, None)))


def _files_listed(count: int) -> float:
    """A start over files that are all read already."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as storage:
        for number in range(count):
            pq.write_table(pa.table({"k": [number]}), Path(folder) / f"{number}.parquet")

        def job() -> hf.Job:
            made = hf.Job(None, name="growth", storage=f"file://{storage}")
            _counted(made.read(hf.FileSource(folder))).write(hf.NoopSink())
            return made

        run(job())
        return timed(lambda: run(job()))


AXES = [
    Axis("sources_united", WORK, (40, 160, 640), lambda n: _sources(n, lambda a, b, _: a.union(b))),
    Axis("sources_united_by_name", WORK, (40, 160, 640), lambda n: _sources(n, lambda a, b, _: a.union_by_name(b))),
    Axis("stages_of_divide_and_unite", WORK, (25, 100, 400), _stages),
    Axis("steps_in_a_row", WORK, (40, 400, 4_000), _steps),
    Axis("operators_in_a_row", WORK, (20, 80, 320), _in_a_row),
    Axis("operators_side_by_side", WORK, (20, 80, 320), _side_by_side),
    Axis("sinks", WORK, (64, 256, 1_024), _sinks),
    Axis("columns", WORK, (100, 400, 1_600), _columns),
    Axis("splits", WORK, (400, 1_600, 6_400), _splits),
    Axis("files", WORK, (200, 800, 3_200), _files),
    Axis("files_read_before", WORK, (200, 800, 3_200), _files_listed),
    Axis("subtasks", WORK, (64, 256, 1_024), _subtasks),
    Axis("task_managers", WORK, (2, 8, 32), _task_managers),
    Axis("explain", WORK, (20, 80, 320), _explained),
]
