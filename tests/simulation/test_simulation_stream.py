"""Checkpoints do not stop the stream: batches go on during an upload, and a cut does not wait for a batch."""

import threading
from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pyarrow as pa
import pytest
from simulation_kit import KEYED, MAX_PARALLELISM, keyed
from simulation_oracle import newest_checkpoint, stored_state

import holdfast as hf
from holdfast.graph.build import build_program
from holdfast.journal.records import CheckpointRecord
from holdfast.storage.store import ObjectStore, open_store
from holdfast.testing import SlowStore, start
from sampling import some
from waiting import until

KEYS = 7
ROWS = 10
PATIENCE_S = 20.0


class Gate:
    """Closed, it holds up whoever comes to it."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._opened.set()
        self.waiting = 0

    def close(self) -> None:
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        self.waiting += 1
        assert self._opened.wait(PATIENCE_S), "the gate stayed closed"
        self.waiting -= 1


gate = Gate()


def _gated(batch: pa.RecordBatch) -> pa.RecordBatch:
    gate.pass_through()
    return batch


@pytest.fixture(autouse=True)
def open_gate() -> Iterator[None]:
    yield
    gate.open()


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://stream/{uuid4().hex}")


def counting(store: ObjectStore) -> hf.Job:
    job = hf.Job(
        None,
        name="counting",
        storage=store.url,
        parallelism=2,
        task_managers=2,
        max_parallelism=MAX_PARALLELISM,
        max_rows_per_batch=ROWS,
        checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
    )
    rows = job.read(hf.SequenceSource(name="numbers")).map_batches(_gated, "value BIGINT")
    keyed_rows = rows.map_batches(partial(keyed, KEYS), KEYED)
    keyed_rows.key_by("k").aggregate(name="counts", n=hf.count()).write(hf.NoopSink())
    return job


def check_recorded(store: ObjectStore, record: CheckpointRecord) -> None:
    """The state that was stored is that of the recorded batch."""
    rows = record.offsets["numbers"]["0"]
    assert isinstance(rows, int) and rows == record.batch * ROWS
    program = build_program(counting(store).declared, lambda fn, schema: schema, None)
    expected = {key: len(range(key, rows, KEYS)) for key in range(min(KEYS, rows))}
    assert stored_state(store, program, "counts", "k", "n.count") == expected


def newest(store: ObjectStore) -> CheckpointRecord:
    found = newest_checkpoint(store)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("held", some(["gathered/", "journal/"], 1))
def test_batches_are_committed_while_a_checkpoint_is_held_up_in_the_store(store: ObjectStore, held: str) -> None:
    def hold(operation: str, name: str) -> float:
        if operation in ("put", "create") and name.startswith(held):
            gate_of_store.pass_through()
        return 0.0

    gate_of_store = Gate()
    slow = SlowStore(store, hold, lambda seconds: None)
    query = start(counting(store), hf.processing_time(0), store=slow)
    try:
        until(lambda: query.lastProgress, "a first batch")
        gate_of_store.close()
        checkpoint = query._master.trigger_checkpoint()
        until(lambda: gate_of_store.waiting, "an upload that waits")
        before = query.lastProgress["batchId"]  # type: ignore[index]
        until(lambda: query.lastProgress["batchId"] >= before + 50, "batches beside the upload")  # type: ignore[index]
        assert not checkpoint.done() and not query.totals.checkpoints
        gate_of_store.open()
        checkpoint.result(PATIENCE_S)
        record = newest(store)
        assert record.batch <= before
    finally:
        gate_of_store.open()
        query.stop()
    check_recorded(store, record)


def test_a_cut_is_taken_at_the_last_committed_batch_while_the_next_one_runs(store: ObjectStore) -> None:
    query = start(counting(store), hf.processing_time(0), store=store)
    try:
        until(lambda: query.lastProgress, "a first batch")
        gate.close()
        until(lambda: gate.waiting, "a batch that waits")
        committed = query.lastProgress["batchId"]  # type: ignore[index]
        query.trigger_checkpoint(PATIENCE_S)
        assert gate.waiting, "the next batch is still running"
        record = newest(store)
        assert record.batch == committed
    finally:
        gate.open()
        query.stop()
    check_recorded(store, record)


def test_a_second_checkpoint_goes_on_beside_one_that_is_held_up(store: ObjectStore) -> None:
    held: list[str] = []

    def hold(operation: str, name: str) -> float:
        if operation == "put" and name.startswith("dstl/") and (not held or name in held):
            held.append(name)
            first.pass_through()
        return 0.0

    first = Gate()
    first.close()
    slow = SlowStore(store, hold, lambda seconds: None)
    job = counting(store)
    alone = hf.ChangelogConfig(gathered_size_max=0, retries=hf.RetryPolicy(timeout=None))
    job.checkpoint = hf.CheckpointConfig(trigger=hf.manual(), max_concurrent=2, changelog=alone)
    query = start(job, hf.processing_time(0), store=slow)
    try:
        until(lambda: query.lastProgress, "a first batch")
        stuck = query._master.trigger_checkpoint()
        until(lambda: first.waiting, "a manifest that waits")
        before = query.lastProgress["batchId"]  # type: ignore[index]
        until(lambda: query.lastProgress["batchId"] > before, "progress")  # type: ignore[index]
        query.trigger_checkpoint(PATIENCE_S)
        assert stuck.result(PATIENCE_S), "the newer one answers for it"
        assert first.waiting
        record = newest(store)
        assert record.batch > before - 1
    finally:
        first.open()
        query.stop()
    check_recorded(store, record)
