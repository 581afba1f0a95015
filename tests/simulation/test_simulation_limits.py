"""Limits of a running job: sinks that lag or refuse, checkpoints that fail or take too long, batches tried again."""

import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import errors, failpoints
from holdfast.storage.store import open_store
from holdfast.testing import FaultyStore, ManualClock, SlowStore, TestSource, start
from holdfast.testing.local import LocalCluster
from holdfast.testing.stores import Fault

PATIENCE_S = 20.0
Rows = list[dict[str, int]]


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def no_failpoint_stays_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def storage() -> str:
    return f"memory://limits/{uuid4().hex}"


def counting(storage: str, source: hf.SequenceSource | TestSource, sink: object, **config: object) -> hf.Job:
    config.setdefault("trigger", hf.manual())
    job = hf.Job(
        None,
        name="counting",
        storage=storage,
        parallelism=2,
        max_rows_per_batch=10,
        checkpoint=hf.CheckpointConfig(**config),  # type: ignore[arg-type]
    )
    rows = job.read(source).map_batches(_keyed, "k BIGINT")
    rows.key_by("k").aggregate(n=hf.count()).write(sink)  # type: ignore[arg-type]
    return job


def _keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    keys = pa.array(batch.column(0).to_numpy() % 3)
    return pa.RecordBatch.from_arrays([keys], names=["k"])


to_fail: list[Exception] = []
"""What the next batches raise that pass through `_fail`."""


def _fail(batch: pa.RecordBatch) -> pa.RecordBatch:
    if to_fail:
        raise to_fail.pop()
    return batch


def totals(rows: Rows) -> dict[int, int]:
    return {row["k"]: row["n"] for row in rows}


def test_a_task_manager_that_ends_while_a_batch_is_undone_is_a_failover_and_no_end(storage: str) -> None:
    clusters: list[LocalCluster] = []
    to_fail[:] = [errors.StorageError("once")]

    def kill_at_abort(name: str) -> None:
        if name == "taskmanager.abort" and clusters:
            clusters.pop().kill(0)

    failpoints.listen(kill_at_abort)
    sink = hf.MemorySink()
    job = hf.Job(None, name="undone", storage=storage, checkpoint=hf.CheckpointConfig(trigger=hf.manual()))
    rows = job.read(hf.SequenceSource(30)).map_batches(_fail, "value BIGINT").map_batches(_keyed, "k BIGINT")
    rows.key_by("k").aggregate(n=hf.count()).write(sink)
    query = start(job, hf.available_now(), on_cluster=clusters.append)
    query.awaitTermination()
    assert not clusters and len(query.restarts) == 1
    assert totals(sink.rows()) == {0: 10, 1: 10, 2: 10}
