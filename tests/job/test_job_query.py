"""The query handle: PySpark's names, checkpoints on request, settings that change, the effect of a slow sink."""

import threading

import pytest
from job_kit import Feed, new_job, new_storage, newest, pairs, script, tuples

import holdfast as hf
from holdfast.testing import ManualClock, run, start
from waiting import until

ROWS = pairs((1, 10), (2, 20), (1, 5))


@pytest.fixture
def fed():
    """(query, feed, sink) of a running count; stopped at the end."""
    job, feed, sink = new_job(), Feed(name="feed"), hf.MemorySink(name="out")
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="per-key").write(sink)
    query = start(job, hf.processing_time())
    yield query, feed, sink
    query.stop()


def test_a_running_query_says_what_pyspark_says(fed):
    query, feed, _ = fed
    assert query.isActive and query.exception() is None and query.lastProgress is None
    assert query.status == {
        "message": "Processing",
        "isDataAvailable": False,
        "isTriggerActive": True,
        "splitsBehind": [],
        "keptSettings": {},
        "standbyTaskManagers": 0,
        "autoscale": None,
        "rescale": None,
        "exactlyOnce": True,
        "materializedBy": None,
    }
    feed.put(ROWS)
    query.processAllAvailable()
    progress = query.lastProgress
    assert (progress["id"], progress["runId"], progress["name"]) == (query.id, query.runId, "test")
    assert progress["numInputRows"] == 3 and progress["batchId"] >= 1
    assert progress["inputRowsPerSecond"] > 0 and progress["processedRowsPerSecond"] > 0
    (operator,) = progress["stateOperators"]
    assert operator["operatorName"] == "per-key" and operator["numRowsTotal"] == 2 and operator["memoryUsedBytes"] > 0
    source = progress["sources"][0]
    assert (source["description"], source["startOffset"], source["endOffset"]) == ("feed", {"0": 0}, {"0": 3})
    assert source["lag"] == {"0": 0} and source["numInputRows"] == 3
    assert progress["sink"] == {"description": "out", "numOutputRows": 2}
    assert query.recentProgress[-1] == progress
    assert query.awaitTermination(0.01) is False
    query.stop()
    assert not query.isActive and query.exception() is None and query.awaitTermination(0.01) is True
    assert query.status == {
        "message": "Stopped",
        "isDataAvailable": False,
        "isTriggerActive": False,
        "splitsBehind": [],
        "keptSettings": {},
        "standbyTaskManagers": 0,
        "autoscale": None,
        "rescale": None,
        "exactlyOnce": True,
        "materializedBy": None,
    }


def test_process_all_available_returns_when_everything_is_published(fed):
    query, feed, sink = fed
    query.processAllAvailable()
    feed.put(ROWS)
    query.processAllAvailable()
    assert newest(sink.rows(), "k") == {1: {"n": 2}, 2: {"n": 1}}
    feed.put(ROWS)
    query.processAllAvailable()
    assert newest(sink.rows(), "k") == {1: {"n": 4}, 2: {"n": 2}}


def test_nothing_is_visible_before_a_checkpoint_and_everything_after_one(fed):
    query, feed, sink = fed
    assert query.trigger_checkpoint(30) is None, "there is nothing to record yet"
    feed.put(ROWS)
    until(lambda: query.lastProgress is not None)
    assert sink.rows() == [] and query.totals.checkpoints == []
    number = query.trigger_checkpoint(30)
    assert [stats.number for stats in query.totals.checkpoints] == [number]
    until(lambda: newest(sink.rows(), "k") == {1: {"n": 2}, 2: {"n": 1}})
    assert query.trigger_checkpoint(30) == number, "no progress, no new record"


def test_a_stopped_query_repeats_what_was_done_since_its_last_checkpoint():
    storage, sink = new_storage(), hf.MemorySink(name="out")
    for batches in (1, 2):
        job = new_job(storage)
        job.read(script(*[ROWS] * batches, name="script")).key_by("k").aggregate(n=hf.count()).write(sink)
        query = start(job, hf.processing_time())
        until(lambda query=query: query.lastProgress is not None)
        if batches == 1:
            query.stop()
            assert sink.rows() == []
    query.processAllAvailable()
    query.stop()
    assert newest(sink.rows(), "k") == {1: {"n": 4}, 2: {"n": 2}}


def test_the_trigger_of_checkpoints_can_be_changed_while_the_query_runs(fed):
    query, feed, sink = fed
    feed.put(ROWS)
    until(lambda: query.lastProgress is not None)
    assert query.totals.checkpoints == []
    query.update(checkpoint=hf.CheckpointConfig(trigger=hf.every("10ms")))
    until(lambda: len(sink.rows()) == 2)
    assert len(query.totals.checkpoints) == 1


def test_a_clock_turned_by_hand_decides_when_checkpoints_are_due():
    clock, feed, sink = ManualClock(), Feed(), hf.MemorySink()
    job = new_job(checkpoint=hf.CheckpointConfig(trigger=hf.every("10s")))
    job.read(feed).write(sink)
    query = start(job, hf.processing_time(), clock=clock)
    feed.put(ROWS)
    until(lambda: query.lastProgress is not None)
    assert query.totals.checkpoints == []
    clock.advance(10)
    until(lambda: len(sink.rows()) == 3)
    query.stop()


def test_batches_of_a_processing_time_trigger_start_no_sooner_than_the_interval():
    clock, feed = ManualClock(), Feed()
    job = new_job(max_rows_per_batch=1)
    job.read(feed).write(hf.NoopSink())
    feed.put(ROWS)
    query = start(job, hf.processing_time("10s"), clock=clock)
    for batches in range(1, 4):
        until(lambda batches=batches: len(query.recentProgress) == batches)
        clock.advance(10)
    until(lambda: query.status["isDataAvailable"] is False)
    query.stop()
    times = [entry["timestamp"] for entry in query.recentProgress]
    assert len(set(times)) == len(times) == 3


def test_available_now_ends_with_what_was_there_at_the_start():
    job, feed, sink = new_job(max_rows_per_batch=2), Feed(), hf.MemorySink()
    feed.put(ROWS)

    def more(table, number):
        feed.put(pairs((9, 9)))

    stream = job.read(feed)
    stream.write(sink)
    stream.write(hf.CallbackSink(more))
    query = start(job, hf.available_now())
    assert query.awaitTermination(60)
    assert tuples(sink) == [(1, 10), (2, 20), (1, 5)]
    assert not query.isActive and query.exception() is None
    assert len(query.recentProgress) == 2


def test_available_now_takes_a_final_checkpoint_under_any_policy():
    for trigger in (hf.manual(), hf.every("1h"), hf.cron("0 0 1 1 *")):
        job, sink = new_job(checkpoint=hf.CheckpointConfig(trigger=trigger)), hf.MemorySink()
        job.read(script(ROWS)).write(sink)
        (final,) = run(job).totals.checkpoints
        assert final.batch == 1
        assert len(sink.rows()) == 3


def test_available_now_is_refused_for_a_source_without_an_end():
    job = new_job()
    job.read(hf.SequenceSource(name="numbers")).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match=r"source 'numbers' has no end.*rows=.*processing_time"):
        start(job, hf.available_now())


def test_planning_waits_for_a_sink_that_lags_and_the_status_names_it():
    gate, feed, seen = threading.Event(), Feed(), []

    def slow(table, number):
        if not gate.is_set():
            raise ConnectionError("not now")
        seen.extend(table["v"].to_pylist())

    job = new_job(checkpoint=hf.CheckpointConfig(trigger=hf.manual(), unpublished_max=2))
    job.read(feed).write(hf.CallbackSink(slow, name="slow"))
    query = start(job, hf.processing_time())
    for batches in (1, 2):
        feed.put(pairs((0, batches)))
        until(lambda batches=batches: len(query.recentProgress) == batches)
        query.trigger_checkpoint(30)
    until(lambda: not query.status["isTriggerActive"])
    assert query.status["message"] == "Waiting for sink slow, which has too many groups to publish"
    feed.put(pairs((0, 3)))
    assert len(query.recentProgress) == 2
    gate.set()
    query.processAllAvailable()
    assert seen == [1, 2, 3]
    assert query.status["message"] == "Processing"
    query.stop()


def test_a_query_that_ended_with_an_error_says_so_everywhere(fed):
    query, feed, _ = fed
    feed.put(["not a row"])
    with pytest.raises(hf.QueryFailed, match=r"query 'test' ended: BadRecord: source 'feed'.*position 0") as caught:
        query.processAllAvailable()
    assert isinstance(caught.value.__cause__, hf.BadRecord)
    until(lambda: not query.isActive)
    assert query.status["message"].startswith("Ended with an error: BadRecord: source 'feed'")
    assert isinstance(query.exception(), hf.QueryFailed)
    with pytest.raises(hf.QueryFailed):
        query.awaitTermination()
    with pytest.raises(hf.QueryFailed):
        query.processAllAvailable()
    with pytest.raises((hf.CheckpointFailed, hf.QueryFailed)):
        query.trigger_checkpoint(30)


def test_asking_a_stopped_query_for_more_says_that_it_was_stopped(fed):
    query, _, _ = fed
    query.stop()
    query.stop()
    with pytest.raises(hf.QueryFailed, match="stopped"):
        query.processAllAvailable()
    with pytest.raises(hf.CheckpointFailed, match="ended"):
        query.trigger_checkpoint(30)
