"""Axes of sinks: a publication of ten rows after many, by the sink alone; and the journal after many records."""

import atexit
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, Schema

import holdfast as hf
from benchmarks.growth.axis import REST, WORK, Axis, timed
from examples.kafka.broker import QUICK_JAVA, kafka
from holdfast.ids import BatchNumber, CheckpointId, Epoch, RunNumber
from holdfast.journal.fence import read_retained, take_over
from holdfast.journal.journal import Journal
from holdfast.journal.records import CheckpointRecord
from holdfast.sinks.base import PublishContext, Sink, SinkContext, StageContext
from holdfast.storage.names import manifest
from holdfast.storage.store import open_store

ROWS = pa.RecordBatch.from_pydict({"k": list(range(10)), "n": [1] * 10})
MEASURED = 16
"""Publications whose mean cost is measured, after those of the axis."""
COUNTS = (100, 1_000, 10_000)
JOB, NAME = "growth", "out"


class Publishing:
    """Stages and publishes rows to a sink, as a job does at each checkpoint."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._store, self._number = sink, open_store(f"memory://{uuid4().hex}"), 0
        sink.prepare(ROWS.schema, SinkContext(JOB, NAME, self._store))

    def publish(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            number, attempt = BatchNumber(self._number), str(self._number)
            place = StageContext(JOB, NAME, Epoch(1), RunNumber(1), number, 0, attempt, self._store)
            staged = self._sink.stage(iter([ROWS]), place)
            self._sink.publish(self._number, staged, PublishContext(JOB, NAME, self._store, ROWS.schema))


def _published(sink: Callable[[str], Sink], before: Callable[[str, int], int] | None = None) -> Callable[[int], float]:
    """Measure publications of a sink into a folder. `before` writes some of the earlier publications into it, and
    returns their number."""

    def measure(count: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            made = before(folder, count) if before is not None else 0
            publishing = Publishing(sink(Path(folder).as_uri()))
            publishing.publish(count - made)
            return timed(lambda: publishing.publish(MEASURED)) / MEASURED

    return measure


def _delta_commits(folder: str, count: int) -> int:
    """A table with a commit for each publication, as the sink commits them, and the table's checkpoint."""
    table = DeltaTable.create(folder, Schema.from_arrow(ROWS.schema))
    for number in range(1, count):
        add = {
            "path": f"{number}.parquet",
            "partitionValues": {},
            "size": 900,
            "modificationTime": 1,
            "dataChange": True,
        }
        actions = [{"add": add}, {"txn": {"appId": "of another job", "version": number}}]
        lines = [msgspec.json.encode(action).decode() for action in actions]
        (Path(folder) / "_delta_log" / f"{number:020d}.json").write_text("\n".join(lines))
    table.update_incremental()
    table.create_checkpoint()
    return count - 1


def _kafka(count: int) -> float:
    topic = f"growth-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": _broker()})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    return _published(lambda _: hf.KafkaSink(_broker(), topic))(count)


@cache
def _broker() -> str:
    """The address of a broker that ends with this process."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    return until_exit.enter_context(kafka(options=QUICK_JAVA))


def _nothing(*given: Any) -> None:
    """Take published rows."""


def _record(epoch: Epoch, number: int, retains: list[int]) -> CheckpointRecord:
    checkpoint = CheckpointId(number)
    manifests = [manifest(epoch, number, 0)]
    return CheckpointRecord(
        epoch, checkpoint, BatchNumber(number), RunNumber(1), number, {}, {}, manifests, {}, {}, 1, 128, retains=retains
    )


def _taken_over(count: int, retained: bool) -> float:
    """A driver that takes over a journal of many checkpoints, all of which are retained, or the newest alone."""
    store = open_store(f"memory://{time.monotonic_ns()}")
    journal = Journal(store, take_over(store).epoch)
    older: list[int] = []
    for number in range(1, count + 1):
        is_last = number == count
        older.append(journal.append(_record(Epoch(1), number, older if retained and is_last else [])))
        if not retained and len(older) > 1:
            journal.expire([older.pop(0)])  # type: ignore[list-item]

    def start() -> None:
        taken = take_over(store)
        assert len(read_retained(store, taken.base)) == (count - 1 if retained else 0)

    return timed(start)


AXES = [
    Axis("publications_parquet", REST, COUNTS, _published(hf.ParquetSink)),
    Axis("publications_delta", REST, COUNTS, _published(hf.DeltaSink, _delta_commits)),
    Axis("publications_kafka", REST, (50, 200, 800), _kafka),
    Axis("publications_callback", REST, COUNTS, _published(lambda _: hf.CallbackSink(_nothing))),
    Axis("publications_memory", REST, COUNTS, _published(lambda _: hf.MemorySink())),
    Axis("takeover_after_checkpoints", REST, (500, 5_000, 50_000), lambda n: _taken_over(n, False), 0),
    Axis("takeover_with_retained_checkpoints", WORK, (500, 5_000, 50_000), lambda n: _taken_over(n, True), 0),
]
