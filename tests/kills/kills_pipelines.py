"""The jobs that are killed: counts of numbers by key, whose result is known without running them.

    every     key_by(k) → count, a row for each input row          appended to Delta, Parquet or Kafka, or to a callback
    changes   key_by(k) → count, a row a key and batch             upserted to Delta: the last count of each key
    chain     every → key_by(n) → count                            upserted to Delta: how many keys have an nth row

A job may write to several sinks, as "delta-kafka". None of these depends on where batches begin and end, or on the
order between splits.
"""

import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable

import holdfast as hf
from holdfast.sinks.base import Sink

SINKS = {"every": ("delta", "parquet", "callback"), "changes": ("delta",), "chain": ("delta",)}
BROKER = "HOLDFAST_KILLS_KAFKA"
"""Variable with the broker of a driver that is started as a program, whose test has made the topic."""
SCATTER = 7919
"""Keys of neighbouring rows are far apart."""

FEW_BATCHES = 8

COLUMNS = {"every": ("k", "n"), "changes": ("k", "n"), "chain": ("n", "keys")}


@dataclass(frozen=True)
class Shape:
    """A pipeline, small enough to be run many times; travels as JSON."""

    emit: str = "every"
    sink: str = "parquet"
    rows: int = 3000
    keys: int = 7
    splits: int = 2
    rows_per_batch: int = 300
    parallelism: int = 2
    task_managers: int = 2
    interval_s: float = 0.2
    log_handles_max: int = 5
    max_concurrent: int = 2
    gathered_size_max: int | str = "64KB"
    """The size up to which logs and manifests travel to the driver. 0: each TaskManager stores its own."""
    source: str = "sequence"
    """Kind of input. "stream": the numbers in files that a streaming DataFrame reads, an epoch a file."""

    def json(self) -> str:
        return json.dumps(asdict(self))

    def with_rows(self, rows: int) -> "Shape":
        """The same job with more to come."""
        return replace(self, rows=rows)

    def in_few_batches(self) -> "Shape":
        """The same job in larger batches, for a start that only has to come to the end."""
        return replace(self, rows_per_batch=max(self.rows_per_batch, self.rows // FEW_BATCHES))


def random_shape(rng: random.Random, rows: int = 3000, batches: int = 10) -> Shape:
    emit = rng.choice(list(SINKS))
    parallelism = rng.randint(1, 4)
    return Shape(
        emit=emit,
        sink=rng.choice(SINKS[emit]),
        rows=rows,
        keys=rng.choice([1, 7, 200]),
        splits=rng.randint(1, 3),
        rows_per_batch=max(1, rows // batches),
        parallelism=parallelism,
        task_managers=rng.randint(1, min(2, parallelism)),
        interval_s=rng.choice([0.1, 0.3, 1.0]),
        log_handles_max=rng.choice([1, 5, 64]),
        max_concurrent=rng.choice([1, 3]),
        gathered_size_max=rng.choice(["64KB", "64KB", 0, 1_500]),
    )


KILLED_OFTEN = hf.FailoverConfig(restarts_max=1000, losses_max=1000, backoff_first="10ms", backoff_max="50ms")
"""Kills come faster here than the budgets of a job expect."""


def build(shape: Shape, folder: Path, spark: Any = None, storage: str | None = None, **more: Any) -> hf.Job:
    """The job, with its storage and its output below `folder`."""
    job = hf.Job(
        spark,
        name=f"{shape.emit}-{shape.sink}",
        storage=storage or (folder / "storage").as_uri(),
        parallelism=shape.parallelism,
        task_managers=shape.task_managers,
        max_rows_per_batch=shape.rows_per_batch,
        checkpoint=hf.CheckpointConfig(
            trigger=hf.every(shape.interval_s),
            max_concurrent=shape.max_concurrent,
            tolerable_failed_checkpoints=1000,
            changelog=hf.ChangelogConfig(
                log_handles_max=shape.log_handles_max, gathered_size_max=shape.gathered_size_max
            ),
        ),
        failover=KILLED_OFTEN,
        **more,
    )
    keyed = _numbers(job, shape, folder).map_batches(_keys(shape.keys), "k BIGINT").key_by("k")
    counts = keyed.aggregate("changes" if shape.emit == "changes" else "every", n=hf.count())
    if shape.emit == "chain":
        counts = counts.key_by("n").aggregate(keys=hf.count())
    for sink in shape.sink.split("-"):
        counts.write(_sink(sink, shape, folder))
    return job


def _numbers(job: hf.Job, shape: Shape, folder: Path) -> hf.Stream:
    """All numbers below `shape.rows`, in a single column."""
    if shape.source == "sequence":
        return job.read(hf.SequenceSource(rows=shape.rows, splits=shape.splits))
    assert job.spark is not None
    files = folder / "in"
    files.mkdir(parents=True, exist_ok=True)
    for first in range(0, shape.rows, shape.rows_per_batch):
        path = files / f"{first:09d}.parquet"
        if not path.exists():
            stop = min(shape.rows, first + shape.rows_per_batch)
            pq.write_table(pa.table({"value": pa.array(range(first, stop), pa.int64())}), files / f"_{path.name}")
            (files / f"_{path.name}").rename(path)
    stream = job.spark.readStream.schema("value BIGINT").option("maxFilesPerTrigger", 1).parquet(str(files))
    return job.read(hf.StreamingDataFrameSource(stream, name="numbers"))


def _keys(keys: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def key(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pa.array(rows.column(0).to_numpy() * SCATTER % keys)], names=["k"])

    return key


def _sink(sink: str, shape: Shape, folder: Path) -> Sink:
    out = folder / "out"
    if sink == "delta":
        return hf.DeltaSink(out.as_uri(), mode="append" if shape.emit == "every" else "upsert")
    if sink == "parquet":
        return hf.ParquetSink(out.as_uri())
    if sink == "kafka":
        if BROKER in os.environ:
            return hf.KafkaSink(os.environ[BROKER], topic_name(folder), key="k")
        import kafka_kit  # only in the tests' own process: drivers that are started as programs do not find it

        return hf.KafkaSink(kafka_kit.address(), topic_of(folder), key="k")
    return hf.CallbackSink(Calls(out).note)


def topic_name(folder: Path) -> str:
    """Name of the topic of a job's output."""
    return "out-" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def topic_of(folder: Path) -> str:
    """Name of the topic of a job's output, which is made when it is first asked for."""
    import kafka_kit

    topic = topic_name(folder)
    if topic not in kafka_kit.admin(kafka_kit.address()).list_topics().topics:
        kafka_kit.new_topic(2, topic)
    return topic


class Calls:
    """A callback's memory that survives its process: a file for each call, named by the number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def note(self, table: pa.Table, number: int) -> None:
        call = self._folder / f"{number}.{uuid4().hex}"
        call.with_suffix(".part").write_text(json.dumps(table.to_pylist()))
        call.with_suffix(".part").rename(call.with_suffix(".json"))

    def rows(self) -> list[dict[str, Any]]:
        """Each number once, after making sure that its repetitions were the same."""
        by_number: dict[str, str] = {}
        for call in sorted(self._folder.glob("*.json")):
            text = call.read_text()
            number = call.name.split(".")[0]
            assert by_number.setdefault(number, text) == text, f"number {number} came again with other rows"
        return [row for text in by_number.values() for row in json.loads(text)]


def expected(shape: Shape) -> list[tuple[int, ...]]:
    """Rows that an undisturbed run shows, sorted; computed directly."""
    counts = Counter(value * SCATTER % shape.keys for value in range(shape.rows))
    if shape.emit == "changes":
        return sorted(counts.items())
    every = [(k, n) for k, count in counts.items() for n in range(1, count + 1)]
    if shape.emit == "every":
        return sorted(every)
    return sorted(Counter(n for _, n in every).items())


def found(shape: Shape, folder: Path, sink: str) -> list[tuple[int, ...]]:
    """Rows that a sink shows now, sorted: a multiset."""
    out = folder / "out"
    if sink == "delta":
        rows = DeltaTable(out).to_pyarrow_table().to_pylist()
    elif sink == "parquet":
        schema = pa.schema([(name, pa.int64()) for name in COLUMNS[shape.emit]])
        rows = ds.dataset(out, schema=schema).to_table().to_pylist()
    elif sink == "kafka":
        import kafka_kit

        rows = [json.loads(value or b"") for _, value in kafka_kit.committed(topic_of(folder), 2)]
        for key in {row["k"] for row in rows}:
            counts = [row["n"] for row in rows if row["k"] == key]
            assert counts == sorted(counts), f"rows of key {key} are out of order"
    else:
        rows = Calls(out).rows()
    return sorted(tuple(row[name] for name in COLUMNS[shape.emit]) for row in rows)


def check(shape: Shape, folder: Path) -> None:
    """Check that each sink equals that of an undisturbed run; name the differences."""
    for sink in shape.sink.split("-"):
        wanted, shown = Counter(expected(shape)), Counter(found(shape, folder, sink))
        missing, surplus = wanted - shown, shown - wanted
        assert not missing and not surplus, (
            f"{shape}, {sink}: {sum(missing.values())} rows are missing, {sum(surplus.values())} too many; "
            f"missing {sorted(missing.items())[:5]}, too many {sorted(surplus.items())[:5]}"
        )
