"""Sinks of every kind, each with a job around it: made by functions that take a folder and the job's storage."""

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import cloudpickle
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

import kafka_kit
from holdfast.sinks import parquet as parquet_module
from holdfast.sinks import staging as staging_module
from holdfast.sinks.base import PublishContext, Sink, SinkContext, StageContext
from holdfast.sinks.callback import CallbackSink
from holdfast.sinks.delta import delta_sink as delta_module
from holdfast.sinks.delta.delta_sink import DeltaSink
from holdfast.sinks.kafka import kafka_sink as kafka_module
from holdfast.sinks.kafka.kafka_sink import KafkaSink
from holdfast.sinks.memory import MemorySink
from holdfast.sinks.noop import NoopSink
from holdfast.sinks.parquet import ParquetSink
from holdfast.storage.store import ObjectStore, open_store

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
JOB = "0123456789abcdef0123456789abcdef"
LARGE = 1_000
"""Rows enough to outgrow a committable, and to make no small file, so that an object is staged."""
CELL_BYTES = 400
"""Random bytes in a row of these; a digit of their text takes half a byte in a file."""


def rows(*pairs: tuple[int | None, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in pairs], schema=SCHEMA)


def large(start: int) -> pa.RecordBatch:
    return rows(*((k, os.urandom(CELL_BYTES).hex()) for k in range(start, start + LARGE)))


@dataclass
class Bench:
    """A sink with a job around it; `again()` is the same sink in another JobMaster."""

    sink: Sink
    store: ObjectStore
    visible: Callable[[], list[dict[str, Any]]]
    again: Callable[[], Sink]
    staged_in: list[ObjectStore]
    job: str = JOB

    def __post_init__(self) -> None:
        self.sink.prepare(SCHEMA, SinkContext(self.job, "out", self.store, ("k",)))

    @property
    def context(self) -> PublishContext:
        return PublishContext(self.job, "out", self.store, SCHEMA, ("k",))

    def stage(self, *batches: pa.RecordBatch, batch: int = 1, unit: int = 0, epoch: int = 1) -> list[bytes]:
        shipped = pickle.loads(cloudpickle.dumps(self.sink))
        context = StageContext(self.job, "out", epoch, 1, batch, unit, uuid4().hex, self.store)
        return shipped.stage(iter(batches), context)

    def publish(self, number: int, committables: list[bytes], sink: Sink | None = None) -> None:
        (sink or self.sink).publish(number, committables, self.context)

    def staged_objects(self) -> list[str]:
        return [i.name for s in self.staged_in for folder in ("staging/", "_staging/") for i in s.list(folder)]


def noop(tmp_path: Path, store: ObjectStore) -> Bench:
    return Bench(NoopSink(), store, list, NoopSink, [store])


def memory(tmp_path: Path, store: ObjectStore) -> Bench:
    sink = MemorySink()
    return Bench(sink, store, sink.rows, lambda: sink, [store])


def callback(tmp_path: Path, store: ObjectStore) -> Bench:
    seen: dict[int, list[dict[str, Any]]] = {}

    def take(table: pa.Table, number: int) -> None:
        """Keeps to the contract: a number that comes again must bring the same rows."""
        assert seen.setdefault(number, table.to_pylist()) == table.to_pylist()

    return Bench(
        CallbackSink(take), store, lambda: [r for n in seen for r in seen[n]], lambda: CallbackSink(take), [store]
    )


def parquet_bench(url: str, read: Callable[[], list[dict[str, Any]]], store: ObjectStore) -> Bench:
    return Bench(ParquetSink(url), store, read, lambda: ParquetSink(url), [open_store(url), store])


def parquet(tmp_path: Path, store: ObjectStore) -> Bench:
    folder = tmp_path / "out"
    return parquet_bench(folder.as_uri(), lambda: ds.dataset(folder, schema=SCHEMA).to_table().to_pylist(), store)


def parquet_in_memory(tmp_path: Path, store: ObjectStore) -> Bench:
    url = f"memory://out-{uuid4().hex}"
    target = open_store(url)

    def read() -> list[dict[str, Any]]:
        names = [info.name for info in target.list("") if not info.name.startswith("_")]
        return [r for name in names for r in pa.parquet.read_table(pa.BufferReader(target.get(name))).to_pylist()]

    return parquet_bench(url, read, store)


def delta(tmp_path: Path, store: ObjectStore, mode: Any = "append") -> Bench:
    url = (tmp_path / "table").as_uri()
    return Bench(
        DeltaSink(url, mode=mode),
        store,
        lambda: DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist(),
        lambda: DeltaSink(url, mode=mode),
        [store],
    )


def kafka(tmp_path: Path, store: ObjectStore) -> Bench:
    topic = kafka_kit.new_topic(2)

    def visible() -> list[dict[str, Any]]:
        return [json.loads(value or b"") for _, value in kafka_kit.committed(topic, 2)]

    declare = lambda: KafkaSink(kafka_kit.address(), topic, key="k")  # noqa: E731
    return Bench(declare(), store, visible, declare, [store], job=uuid4().hex)


def parquet_of_files(tmp_path: Path, store: ObjectStore) -> Bench:
    parquet_module.SMALL_BYTES_MAX = -1
    return parquet(tmp_path, store)


def delta_of_files(tmp_path: Path, store: ObjectStore) -> Bench:
    delta_module.SMALL_BYTES_MAX = -1
    return delta(tmp_path, store)


def delta_upsert(tmp_path: Path, store: ObjectStore) -> Bench:
    return delta(tmp_path, store, "upsert")


def in_portions(make: Any) -> Any:
    """A sink that has a single committable in memory at a time while it publishes."""

    def made(tmp_path: Path, store: ObjectStore) -> Bench:
        staging_module.PORTION_BYTES_MAX = 1
        return make(tmp_path, store)

    made.__name__ = f"{make.__name__}_in_portions"
    return made


parquet_in_portions = in_portions(parquet)
delta_in_portions = in_portions(delta)
upsert_in_portions = in_portions(delta_upsert)
parquet_files_in_portions = in_portions(parquet_of_files)


def kafka_in_portions(tmp_path: Path, store: ObjectStore) -> Bench:
    kafka_module.TRANSACTION_BYTES_MAX = 1
    return kafka(tmp_path, store)


KEEPING = [
    memory,
    callback,
    parquet,
    parquet_of_files,
    parquet_in_memory,
    delta,
    delta_of_files,
    delta_upsert,
    parquet_in_portions,
    parquet_files_in_portions,
    delta_in_portions,
    upsert_in_portions,
    kafka,
    kafka_in_portions,
]
