"""Watermarks and timers of whole jobs in process: empty batches, failures, restarts, refusals."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from job_kit import SOON, WAIT_S_MAX, Feed, new_job, new_storage, script, tuples

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.testing import run, start
from holdfast.testing.source import Abort, TestSource
from sampling import quick
from waiting import until

EVENTS = "k BIGINT, at TIMESTAMP"
OUT = "k BIGINT, second BIGINT, n BIGINT"


def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def events(*pairs: tuple[int, int]):
    return [{"k": k, "at": at(second)} for k, second in pairs]


class Quiet(hf.ProcessFunction):
    """Says when a key had no row for ten seconds of event time, and how many it had had."""

    n = hf.ValueState(pa.int64(), default=0)
    bell = hf.ValueState(pa.timestamp("us", tz="UTC"))

    def process(self, row, ctx):
        assert ctx.timestamp == row.at
        if self.bell.value() is not None:
            ctx.timers.delete_event_time(self.bell.value())
        self.n.update(self.n.value() + 1)
        self.bell.update(row.at + timedelta(seconds=10))
        ctx.timers.register_event_time(row.at + timedelta(seconds=10))

    def on_timer(self, timestamp, ctx):
        assert ctx.watermark >= timestamp
        yield ctx.key, int(timestamp.timestamp()), self.n.value()
        self.n.clear()
        self.bell.clear()


class Later(hf.ProcessFunction):
    """A timer ten seconds after each row, whatever batches rows come in; counts how many fired for the key."""

    fired = hf.ValueState(pa.int64(), default=0)

    def process(self, row, ctx):
        ctx.timers.register_event_time(row.at + timedelta(seconds=10))

    def on_timer(self, timestamp, ctx):
        self.fired.update(self.fired.value() + 1)
        yield ctx.key, int(timestamp.timestamp()), self.fired.value()


class Remind(hf.ProcessFunction):
    """A minute of processing time after each row."""

    def process(self, row, ctx):
        ctx.timers.register_processing_time(ctx.batch_time + timedelta(seconds=60))

    def on_timer(self, timestamp, ctx):
        yield ctx.key, int(timestamp.timestamp()), 0


def watched(function, source, sink, storage=None, **settings):
    job = new_job(storage, **settings)
    stream = job.read(source).with_watermark("at", "5s").key_by("k").process(function, OUT, name="watched")
    stream.write(sink)
    return job


def test_due_timers_start_a_batch_without_rows():
    sink = hf.MemorySink(name="out")
    run(watched(Quiet(), script(events((1, 0), (2, 8), (1, 3)), events((3, 20)), schema=EVENTS), sink))
    assert tuples(sink) == [(1, 13, 2)]


def test_the_watermark_of_a_batch_comes_from_earlier_batches_only():
    class See(hf.ProcessFunction):
        def process(self, row, ctx):
            yield row.k, -1 if ctx.watermark is None else int(ctx.watermark.timestamp()), 0

    sink = hf.MemorySink()
    job = new_job()
    source = script(events((1, 30), (2, 50)), events((3, 20)), events((4, 60)), schema=EVENTS)
    job.read(source).with_watermark("at", "10s").key_by("k").process(See(), OUT).write(sink)
    run(job)
    assert tuples(sink) == [(1, -1, 0), (2, -1, 0), (3, 40, 0), (4, 40, 0)]


BACKENDS = [hf.HashMapState(), hf.RocksDBState(), hf.RocksDBState(cache_max_entries=2)]


@pytest.mark.parametrize("state", quick("cache", of=dict(zip(["hashmap", "rocksdb", "cache"], BACKENDS, strict=True))))
def test_timers_and_their_output_are_exactly_once_over_failures_and_restarts(state):
    storage, sink = new_storage(), hf.MemorySink(name="out")
    batches = [events(*((key, 4 * number + key) for key in range(number % 3, 9))) for number in range(12)]
    rows = [(row["k"], round(row["at"].timestamp())) for batch in batches for row in batch]
    reached = max(second for _, second in rows) - 5
    expected = [
        (key, second + 10, count)
        for key in range(9)
        for count, second in enumerate(sorted(second for k, second in rows if k == key), 1)
        if second + 10 <= reached
    ]
    steps = [
        step for number, batch in enumerate(batches) for step in ([batch, Abort()] if number % 4 == 2 else [batch])
    ]
    source = TestSource(steps, EVENTS, name="events")
    length = source.length
    for source.length in (length // 2, length):
        run(watched(Later(), source, sink, storage, parallelism=3, task_managers=2, checkpoint=SOON, state=state))
    assert sorted(tuples(sink)) == expected


def test_processing_time_timers_fire_when_the_clock_has_come_to_them_also_after_a_restart():
    storage, sink, clock, feed = (
        new_storage(),
        hf.MemorySink(name="out"),
        ManualClock(1000.0),
        Feed(EVENTS, name="feed"),
    )

    def job():
        made = new_job(storage, checkpoint=SOON)
        made.read(feed).key_by("k").process(Remind(), OUT, name="remind").write(sink)
        return made

    feed.put(events((7, 0)))
    run(job(), clock=clock)
    clock.advance(59)
    run(job(), clock=clock)
    assert tuples(sink) == []
    query = start(job(), hf.processing_time(), clock=clock)
    try:
        clock.advance(1)
        until(lambda: bool(tuples(sink)) or clock.advance(0.05) is not None)
    finally:
        query.stop()
    assert tuples(sink) == [(7, 1060, 0)]


class Ageing(hf.ProcessFunction):
    """All it knows lives for a minute."""

    last = hf.ValueState(pa.int64(), ttl="1min")
    seen = hf.MapState(pa.int64(), ttl="1min")
    log = hf.ListState(pa.int64(), ttl="1min")

    def process(self, row, ctx):
        yield row.k, len(self.log.get()), len(self.seen.keys())
        self.last.update(row.k)
        self.seen.put(row.k, "x")
        self.log.add(row.k)


def state_rows(query):
    return query.lastProgress["stateOperators"][0]["numRowsTotal"]


@pytest.mark.parametrize("state", BACKENDS, ids=["hashmap", "rocksdb", "cache"])
def test_expired_state_goes_though_nothing_comes_any_more_and_stays_gone_after_a_restart(state):
    storage, sink, clock, feed = new_storage(), hf.MemorySink(name="out"), ManualClock(1000.0), Feed(EVENTS, name="in")

    def job():
        made = new_job(storage, checkpoint=SOON, state=state, parallelism=2, task_managers=2)
        made.read(feed).key_by("k").process(Ageing(), OUT, name="ageing").write(sink)
        return made

    feed.put(events(*((k, 0) for k in range(20))))
    query = start(job(), hf.processing_time(), clock=clock)
    try:
        query.processAllAvailable()
        assert state_rows(query) == 20 * 4
        clock.advance(40)
        feed.put(events((0, 1)))
        query.processAllAvailable()
        clock.advance(25)
        until(lambda: state_rows(query) == 4 or clock.advance(0.01) is not None)
        assert clock.now() < 1000 + 60 + 2 * 15, "two rounds after it had expired"
        query.trigger_checkpoint(timeout=WAIT_S_MAX)
    finally:
        query.stop()
    feed.put(events((0, 2), (1, 2)))
    run(job(), clock=clock)
    assert sorted(tuples(sink)[-2:]) == [(0, 1, 1), (1, 0, 0)]


def test_available_now_does_not_await_timers_that_are_not_due():
    sink = hf.MemorySink()
    job = new_job()
    job.read(script(events((1, 0)), schema=EVENTS)).key_by("k").process(Remind(), OUT).write(sink)
    run(job)
    assert tuples(sink) == []


def test_a_watermark_belongs_right_after_read_and_on_a_timestamp_of_the_source():
    job = new_job()
    stream = job.read(script(events((1, 0)), schema=EVENTS))
    with pytest.raises(hf.JobRefused, match="right after read"):
        stream.map_batches(lambda batch: batch, EVENTS).with_watermark("at", "1s")
    with pytest.raises(hf.SettingsError, match="delay='soon'"):
        stream.with_watermark("at", "soon")
    stream.with_watermark("k", "1s").key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match="its columns are k int64, at timestamp"):
        run(job)


def test_streams_with_and_without_a_watermark_do_not_unite():
    job = new_job()
    with_one = job.read(script(events((1, 0)), schema=EVENTS)).with_watermark("at", "1s")
    without = job.read(script(events((1, 0)), schema=EVENTS))
    with_one.union(without).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match="with and without a watermark"):
        run(job)
