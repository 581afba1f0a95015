"""Axes of memory: output and state that are larger than the memory of their TaskManager."""

from collections.abc import Callable, Iterator
from math import isqrt

import numpy as np
import pyarrow as pa

import holdfast as hf
from benchmarks.growth.axis import REST, WORK, Axis
from benchmarks.growth.jobs import BOUND_MB, SCHEMA, bounded, later_batch_s, rows, whole_s
from holdfast.testing import TestSource

FEW = rows(np.arange(10), 5)
JUMP = rows(0, np.array([1_000_000]))
"""A row that lets all windows close."""
PANES = 1_000
"""Windows that each row is in."""
REPEATED = 1_000
"""Rows out of each row."""


def _join(output: int) -> float:
    """Rows of one key on either side, all pairs of which meet in a batch."""
    side = rows(0, np.arange(isqrt(output)))

    def declare(job: hf.Job) -> None:
        left, right = (job.read(TestSource([side], SCHEMA)).key_by("k") for _ in range(2))
        left.join(right, suffix="_r").write(hf.NoopSink())

    return whole_s(declare, **bounded())


def _whole(batches: list[pa.RecordBatch], declare: Callable[[hf.Stream], hf.Stream]) -> float:
    return whole_s(lambda job: declare(job.read(TestSource(batches, SCHEMA))).write(hf.NoopSink()), **bounded())


def _sliding(count: int) -> float:
    window = hf.window("at", f"{PANES}s", "1s")
    return _whole(
        [rows(np.arange(count), np.arange(count)), JUMP, JUMP],
        lambda stream: stream.with_watermark("at", 0).key_by("k", window).aggregate(n=hf.count()),
    )


def _repeat(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for _ in range(REPEATED):
        yield batch


def _flat_map(count: int) -> float:
    return _whole(
        [rows(np.arange(count), 5)],
        lambda stream: stream.map_batches(_repeat, SCHEMA).key_by("k").aggregate(n=hf.count()),
    )


def _closing(count: int) -> float:
    return _whole(
        [rows(np.arange(count), 5), JUMP, JUMP],
        lambda stream: stream.with_watermark("at", 0).key_by("k", hf.window("at", "10s")).aggregate(n=hf.count()),
    )


def _rocksdb(keys: int) -> float:
    return later_batch_s(
        [rows(part, 5) for part in np.array_split(np.arange(keys), 8)],
        FEW,
        lambda job, stream: stream.key_by("k").last(by="v").write(hf.NoopSink()),
        checkpoints=True,
        state=hf.RocksDBState(),
        **bounded(),
    )


AXES = [
    Axis("output_of_a_join", WORK, (1_000_000, 4_000_000, 16_000_000), _join, BOUND_MB),
    Axis("rows_of_sliding_windows", WORK, (250, 1_000, 4_000), _sliding, BOUND_MB),
    Axis("rows_of_a_flat_map", WORK, (4_000, 16_000, 64_000), _flat_map, BOUND_MB),
    Axis("keys_whose_windows_close_at_once", WORK, (25_000, 100_000, 400_000), _closing, BOUND_MB),
    Axis("keys_in_rocksdb", REST, (40_000, 160_000, 640_000), _rocksdb, BOUND_MB),
]
