"""Output that was published before an orderly end is not published again by the next start."""

from typing import Any

import pytest
from job_kit import Feed, new_job, new_storage, pairs, script, store_of

import holdfast as hf
from holdfast.maintenance.verify import verify
from holdfast.testing import run, start
from waiting import until

ROWS = pairs((1, 10), (2, 20), (1, 30))


class Calls:
    """A callback's."""

    def __init__(self, failing: bool = False) -> None:
        self.failing = failing
        self.numbers: list[int] = []

    def __call__(self, table: object, number: int) -> None:
        if self.failing:
            raise ConnectionError("not now")
        self.numbers.append(number)


def scripted(storage: str, calls: Calls, **settings: Any) -> hf.Job:
    job = new_job(storage, **settings)
    job.read(script(ROWS, ROWS, name="rows")).key_by("k").aggregate(n=hf.count(), name="counts").write(
        hf.CallbackSink(calls, name="out")
    )
    return job


@pytest.mark.parametrize("changelog", [True, False], ids=["changelog", "tables"])
def test_a_job_that_processed_all_there_was_leaves_nothing_to_publish_again(changelog: bool) -> None:
    storage, calls = new_storage(), Calls()
    settings = {"checkpoint": hf.CheckpointConfig(changelog=changelog)}
    run(scripted(storage, calls, **settings))
    published = list(calls.numbers)
    assert published and published == sorted(set(published))
    for _ in range(2):
        run(scripted(storage, calls, **settings))
    assert calls.numbers == published
    assert verify(store_of(scripted(storage, calls))).ok


def test_a_start_without_new_rows_publishes_what_a_failure_left_and_the_next_one_does_not() -> None:
    storage, calls, feed = new_storage(), Calls(), Feed(name="feed")

    def made() -> hf.Job:
        job = new_job(storage)
        job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.CallbackSink(calls, name="out"))
        return job

    query = start(made(), hf.processing_time())
    feed.put(ROWS)
    query.processAllAvailable()
    feed.put(["no row"])
    with pytest.raises(hf.QueryFailed, match="is text"):
        query.awaitTermination(60)
    del feed.rows[len(ROWS) :]
    (number,) = calls.numbers
    for _ in range(3):
        run(made())
    assert calls.numbers == [number, number]
    assert verify(store_of(made())).ok
    feed.put(ROWS)
    query = run(made())
    assert query.lastProgress["stateOperators"][0]["numRowsTotal"] == 2
    assert len(calls.numbers) == 3 and calls.numbers[-1] > number


@pytest.mark.parametrize("state", [hf.HashMapState(), hf.RocksDBState()], ids=["memory", "rocksdb"])
def test_nor_does_one_that_was_stopped_with_nothing_left_to_record(state: hf.HashMapState | hf.RocksDBState) -> None:
    storage, calls, feed = new_storage(), Calls(), Feed(name="feed")
    for starts in range(1, 4):
        job = new_job(storage, state=state)
        job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.CallbackSink(calls, name="out"))
        query = start(job, hf.processing_time())
        feed.put(ROWS)
        query.processAllAvailable()
        (operator,) = query.lastProgress["stateOperators"]
        assert operator["numRowsTotal"] == 2
        query.stop()
        assert query.exception() is None
        assert len(calls.numbers) == len(set(calls.numbers)) == starts


def test_what_is_not_published_at_the_end_is_published_by_the_next_start() -> None:
    storage, calls, feed = new_storage(), Calls(failing=True), Feed(name="feed")
    job = new_job(storage)
    job.read(feed).write(hf.CallbackSink(calls, name="out"))
    query = start(job, hf.processing_time())
    feed.put(ROWS)
    until(lambda: query.lastProgress is not None)
    query.trigger_checkpoint(30)
    query.stop()
    calls.failing = False
    job = new_job(storage)
    job.read(feed).write(hf.CallbackSink(calls, name="out"))
    query = start(job, hf.processing_time())
    until(lambda: len(calls.numbers) == 1)
    query.stop()


def test_what_no_checkpoint_holds_is_not_recorded_by_the_end() -> None:
    storage, calls, feed = new_storage(), Calls(), Feed(name="feed")
    job = new_job(storage)
    job.read(feed).write(hf.CallbackSink(calls, name="out"))
    query = start(job, hf.processing_time())
    feed.put(ROWS)
    query.processAllAvailable()
    recorded = len(query.totals.checkpoints)
    feed.put(ROWS)
    until(lambda: query.totals.rows == 6)
    query.stop()
    assert len(query.totals.checkpoints) == recorded and len(calls.numbers) == 1
    job = new_job(storage)
    job.read(feed).write(hf.CallbackSink(calls, name="out"))
    run(job)
    assert len(calls.numbers) == len(set(calls.numbers)) == 2
