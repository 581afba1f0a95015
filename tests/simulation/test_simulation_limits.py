"""Limits of a running job: sinks that lag or refuse, checkpoints that fail or take too long, batches tried again."""

import threading
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest
from simulation_kit import HastyClock, short_waits
from simulation_oracle import unreferenced

import holdfast as hf
from holdfast import errors, failpoints
from holdfast.sinks.base import Sink
from holdfast.storage import names
from holdfast.storage.store import open_store
from holdfast.testing import Fault, FaultyStore, SlowStore, run, start
from holdfast.testing.local import LocalCluster
from waiting import until

PATIENCE_S = 20.0
Rows = list[dict[str, int]]
to_fail: list[Exception] = []
"""Errors that the next batches raise in `_fail`."""


@pytest.fixture(autouse=True)
def no_failpoint_stays_armed() -> Iterator[None]:
    with short_waits():
        yield
    failpoints.disarm()


@pytest.fixture
def storage() -> str:
    return f"memory://limits/{uuid4().hex}"


def counting(storage: str, rows: int | None, sink: Sink, config: hf.CheckpointConfig) -> hf.Job:
    job = hf.Job(None, name="counting", storage=storage, parallelism=2, max_rows_per_batch=9, checkpoint=config)
    numbers = job.read(hf.SequenceSource(rows, name="numbers"))
    keyed = numbers.map_batches(_fail, "value BIGINT").map_batches(_keyed, "k BIGINT")
    keyed.key_by("k").aggregate(n=hf.count()).write(sink)
    return job


def _fail(batch: pa.RecordBatch) -> pa.RecordBatch:
    if to_fail:
        raise to_fail.pop()
    return batch


def _keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    keys = pa.array(batch.column(0).to_numpy() % 3)
    return pa.RecordBatch.from_arrays([keys], names=["k"])


class Target:
    """The target that a `CallbackSink` writes to."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.rows: Rows = []
        self.answers = threading.Event()
        self.answers.set()
        self.called = threading.Event()
        self.errors: list[Exception] = []

    def __call__(self, table: pa.Table, number: int) -> None:
        self.called.set()
        assert self.answers.wait(PATIENCE_S), "the target never answered"
        if self.errors:
            raise self.errors.pop()
        if number not in self.numbers:
            self.numbers.append(number)
            self.rows += table.to_pylist()


def totals(rows: Rows) -> dict[int, int]:
    return {row["k"]: row["n"] for row in rows}


def often(**config: object) -> hf.CheckpointConfig:
    return hf.CheckpointConfig(trigger=hf.every("1s"), **config)  # type: ignore[arg-type]


def manual(**config: object) -> hf.CheckpointConfig:
    return hf.CheckpointConfig(trigger=hf.manual(), **config)  # type: ignore[arg-type]


def test_a_task_manager_that_ends_while_a_batch_is_undone_is_a_failover_and_no_end(storage: str) -> None:
    clusters: list[LocalCluster] = []
    to_fail[:] = [errors.StorageError("once")]

    def kill_at_abort(name: str) -> None:
        if name == "taskmanager.abort" and clusters:
            clusters.pop().kill(0)

    failpoints.listen(kill_at_abort)
    sink = hf.MemorySink()
    query = start(counting(storage, 30, sink, manual()), hf.available_now(), on_cluster=clusters.append)
    query.awaitTermination()
    assert not clusters and len(query.restarts) == 1
    assert totals(sink.rows()) == {0: 10, 1: 10, 2: 10}


def test_a_batch_that_fails_for_the_store_is_tried_again_and_counts_once(storage: str) -> None:
    to_fail[:] = [errors.StorageError("once"), errors.StorageError("twice")]
    sink = hf.MemorySink()
    query = run(counting(storage, 30, sink, manual()))
    assert not query.restarts and not to_fail
    assert totals(sink.rows()) == {0: 10, 1: 10, 2: 10}


def test_planning_stops_while_a_sink_has_too_many_groups_to_publish_and_goes_on_afterwards(storage: str) -> None:
    target = Target()
    target.answers.clear()
    job = counting(storage, None, hf.CallbackSink(target, name="slow"), manual(unpublished_max=3))
    query = start(job, hf.processing_time(0))
    try:
        for _ in range(3):
            number = query.totals.batch_ms
            until(lambda number=number: len(query.totals.batch_ms) > len(number), "a batch")  # type: ignore[misc]
            query.trigger_checkpoint(PATIENCE_S)
        until(lambda: query.status["message"].startswith("Waiting for sink slow"), "planning that pauses")
        assert not query.status["isTriggerActive"]
        assert not target.rows
        target.answers.set()
        paused = len(query.totals.batch_ms)
        until(lambda: len(query.totals.batch_ms) > paused + 1, "planning that goes on, beyond a batch in flight")
        assert query.status["message"] == "Processing"
        query.trigger_checkpoint(PATIENCE_S)
    finally:
        target.answers.set()
        query.stop()
    assert target.numbers == sorted(target.numbers)
    assert [row["n"] for row in target.rows if row["k"] == 0] == sorted({row["n"] for row in target.rows})


def test_a_sink_that_fails_with_an_io_error_is_tried_again_while_the_job_goes_on(storage: str) -> None:
    target = Target()
    target.errors = [ConnectionError("away"), TimeoutError("slow"), OSError("full")]
    query = start(counting(storage, None, hf.CallbackSink(target), manual()), hf.processing_time(0), clock=HastyClock())
    try:
        until(lambda: query.totals.rows, "a batch")
        query.trigger_checkpoint(PATIENCE_S)
        until(target.called.is_set, "a first attempt")
        before = query.totals.rows
        until(lambda: query.totals.rows > before, "batches beside it")
        until(lambda: target.rows, "publication in the end")
        assert not target.errors and query.isActive
    finally:
        query.stop()
    assert query.exception() is None


def test_a_sink_that_refuses_fails_the_query_and_gets_the_same_rows_at_the_next_start(storage: str) -> None:
    target = Target()
    target.errors = [ValueError("never")]
    with pytest.raises(errors.QueryFailed, match=r"PublishFailed: sink 'out' refuses group .*ValueError.*never"):
        run(counting(storage, 30, hf.CallbackSink(target, name="out"), manual()))
    assert not target.rows
    run(counting(storage, 30, hf.CallbackSink(target, name="out"), manual()))
    assert totals(target.rows) == {0: 10, 1: 10, 2: 10}
    assert len(target.rows) == len({(row["k"], row["n"]) for row in target.rows})


def test_too_many_failed_checkpoints_restart_the_job_from_the_last_one_with_the_right_result(storage: str) -> None:
    broken = threading.Event()

    def refuse(operation: str, name: str) -> Fault | None:
        return Fault.FAIL if broken.is_set() and operation == "put" and name.startswith("gathered/") else None

    target = Target()
    config = often(tolerable_failed_checkpoints=1)
    job = counting(storage, None, hf.CallbackSink(target), config)
    store = FaultyStore(open_store(storage), refuse)
    query = start(job, hf.processing_time(0), store=store, clock=HastyClock())
    try:
        until(lambda: query.totals.checkpoints, "a first checkpoint")
        broken.set()
        until(lambda: query.restarts, "a restart")
        assert "2 checkpoints failed in a row" in query.restarts[0]
        assert query.totals.failed_checkpoints >= 2
        broken.clear()
        before = len(query.totals.checkpoints)
        until(lambda: len(query.totals.checkpoints) > before, "a checkpoint after it")
    finally:
        broken.clear()
        query.stop()
    counts = [row["n"] for row in target.rows if row["k"] == 0]
    assert counts == sorted(set(counts)), "what was published before the restart does not come again"


def test_a_checkpoint_that_takes_too_long_is_given_up_and_the_next_one_completes(storage: str) -> None:
    held, opened = threading.Event(), threading.Event()

    def hold(operation: str, name: str) -> float:
        if operation == "put" and name.startswith("dstl/") and not held.is_set():
            held.set()
            assert opened.wait(PATIENCE_S), "held for too long"
        return 0.0

    inner = open_store(storage)
    store = SlowStore(inner, hold, lambda seconds: None)
    alone = hf.ChangelogConfig(gathered_size_max=0, retries=hf.RetryPolicy(timeout=None))
    config = often(timeout="5s", tolerable_failed_checkpoints=3, changelog=alone)
    target = Target()
    query = start(
        counting(storage, 900, hf.CallbackSink(target), config),
        hf.processing_time(0),
        store=store,
        clock=HastyClock(),
    )
    try:
        until(lambda: query.totals.failed_checkpoints, "a checkpoint that is given up")
        until(lambda: query.totals.checkpoints, "one that completes beside what is held up")
        opened.set()
        query.processAllAvailable()
        assert not query.restarts
    finally:
        opened.set()
        query.stop()
    assert totals(target.rows) == {0: 300, 1: 300, 2: 300}
    run(counting(storage, 900, hf.CallbackSink(target), config), store=inner)
    until(lambda: not unreferenced(inner), "the late manifest goes with the next start")


def test_a_query_that_comes_to_its_end_has_cleaned_up_after_older_epochs(storage: str) -> None:
    def slow_listing(operation: str, name: str) -> float:
        return 0.2 if operation == "list" and name == names.SHARED else 0.0

    inner = open_store(storage)
    job = counting(storage, 30, hf.MemorySink(), manual())
    run(job)
    orphan = names.shared_object(1, 1)
    inner.put(orphan, b"nobody needs it")
    run(job, store=SlowStore(inner, slow_listing))
    assert orphan not in {info.name for info in inner.list(names.SHARED)}
