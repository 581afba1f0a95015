"""Event time of whole jobs in process: watermarks whatever the batches, complete input, skew, refusals."""

import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_kit import SOON, Feed, new_job, new_storage, script, tuples

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.testing import run, start
from holdfast.testing.source import Abort, Eof, TestSource
from sampling import some
from waiting import until

EVENTS = "k BIGINT, at TIMESTAMP"
OUT = "k BIGINT, second BIGINT"


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def events(*seconds: float, k: int = 1):
    return [{"k": k, "at": at(second)} for second in seconds]


class EachTen(hf.ProcessFunction):
    """A timer at the end of the ten seconds that a row falls into."""

    def process(self, row, ctx):
        ctx.timers.register_event_time(at(row.at.timestamp() // 10 * 10 + 10))

    def on_timer(self, timestamp, ctx):
        yield ctx.key, round(timestamp.timestamp())


def timed(source, sink, storage=None, function=None, **settings):
    job = new_job(storage, **settings)
    stream = job.read(source).with_watermark("at", "5s")
    stream.key_by("k").process(function or EachTen(), OUT, name="timed").write(sink)
    return job


def write_file(path: Path, times: list[datetime]) -> None:
    pq.write_table(pa.table({"k": [1] * len(times), "at": pa.array(times, pa.timestamp("us", "UTC"))}), path)


@pytest.mark.parametrize("rows_max", some([7, 25, 60, 1000], 0, 2))
def test_the_same_timers_fire_whatever_the_size_of_batches(tmp_path: Path, rows_max: int) -> None:
    for number in range(4):
        write_file(tmp_path / f"{number}.parquet", [at(number * 15 + offset / 2) for offset in range(30)])
    sink = hf.MemorySink(name="out")
    run(timed(hf.FileSource(str(tmp_path)), sink, max_rows_per_batch=rows_max))
    assert [second for _, second in tuples(sink)] == [10, 20, 30, 40, 50]


def test_a_file_that_is_read_in_part_holds_the_watermark_back(tmp_path: Path) -> None:
    for number, first in enumerate((100, 0)):
        write_file(tmp_path / f"{number}.parquet", [at(first + second) for second in range(10)])
    job, sink = new_job(max_rows_per_batch=15), hf.MemorySink()
    stream = job.read(hf.FileSource(str(tmp_path))).with_watermark("at", 0)
    stream.key_by("k", hf.window("at", "1s")).aggregate(n=hf.count()).write(sink)
    query = start(job, hf.available_now(drain=True))
    query.awaitTermination()
    watermarks = [batch["sources"][0].get("watermark") for batch in query.recentProgress]
    assert watermarks[:2] == ["1970-01-01T00:00:04.000Z", "1970-01-01T00:01:49.000Z"]
    assert (len(sink.rows()), query.lastProgress["metrics"]["numLateRecordsDropped"]) == (20, 0)


def test_drained_input_fires_every_timer_once_and_refuses_what_comes_later() -> None:
    storage, sink = new_storage(), hf.MemorySink(name="out")

    class Again(EachTen):
        def on_timer(self, timestamp, ctx):
            ctx.timers.register_event_time(timestamp + timedelta(hours=1))
            yield from super().on_timer(timestamp, ctx)

    def job(*steps):
        return timed(TestSource(list(steps), EVENTS, name="in"), sink, storage, Again(), checkpoint=SOON)

    first = (events(1, 12, 25), Abort(), events(33))
    run(job(*first, Eof(drain=True)))
    fired = [10, 20, 30, 40, 3610, 3620]  # those of 10 and 20 came before the drain, and their next ones by it
    assert tuples(sink) == [(1, second) for second in fired]
    query = start(job(*first), hf.available_now(drain=True))
    query.awaitTermination()
    assert len(tuples(sink)) == len(fired)
    with pytest.raises(hf.QueryFailed, match=r"source 'in' has new rows .*available_now\(drain=True\)"):
        run(job(*first, events(50)))


def test_without_drain_timers_wait_for_the_next_start() -> None:
    storage, sink = new_storage(), hf.MemorySink(name="out")
    steps = [events(1, 12), events(33)]
    for length in (1, 2):
        run(timed(TestSource(steps[:length], EVENTS, name="in"), sink, storage))
    assert tuples(sink) == [(1, 10), (1, 20)]


def test_an_idle_split_lets_time_pass_though_no_rows_come() -> None:
    sink, clock, fast, slow = hf.MemorySink(), ManualClock(1000.0), Feed(EVENTS, name="fast"), Feed(EVENTS, name="slow")
    job = new_job(checkpoint=SOON)
    streams = [job.read(source).with_watermark("at", "5s", idle_timeout="60s") for source in (fast, slow)]
    streams[0].union(streams[1]).key_by("k").process(EachTen(), OUT).write(sink)
    fast.put(events(1, 33))
    slow.put(events(2))
    query = start(job, hf.processing_time(), clock=clock)
    try:
        query.processAllAvailable()
        assert tuples(sink) == []
        until(lambda: bool(tuples(sink)) or clock.advance(1) is not None)
        assert clock.now() >= 1060
    finally:
        query.stop()
    assert tuples(sink) == [(1, 10)]


def test_a_batch_is_shared_among_sources_by_what_each_has_left() -> None:
    feeds = [Feed(EVENTS, name="long"), Feed(EVENTS, name="short")]
    feeds[0].put(events(*range(400)))
    feeds[1].put(events(*range(0, 400, 10)))
    job = new_job(max_rows_per_batch=44)
    streams = [job.read(feed).with_watermark("at", "0s") for feed in feeds]
    streams[0].union(streams[1]).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    ends = [[source["endOffset"]["0"] for source in batch["sources"]] for batch in run(job).recentProgress]
    assert ends == [[40 * batch, 4 * batch] for batch in range(1, 11)]


def test_a_source_far_ahead_waits() -> None:
    behind, ahead = Feed(EVENTS, name="behind"), Feed(EVENTS, name="ahead")
    behind.put(events(*range(100)))
    ahead.put(events(*range(500, 520)))
    job = new_job(max_rows_per_batch=20, max_event_time_skew="1min")
    streams = [job.read(feed).with_watermark("at", "0s") for feed in (behind, ahead)]
    streams[0].union(streams[1]).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    ends = [[source["endOffset"]["0"] for source in batch["sources"]] for batch in run(job).recentProgress]
    waited = [ahead_end for behind_end, ahead_end in ends if behind_end < 100]
    assert len(set(waited)) == 1, ends
    assert ends[-1] == [100, 20]


@pytest.mark.parametrize("seed", some(range(4), 0, 1))
def test_no_source_is_read_that_is_further_ahead_than_allowed_and_windows_have_all_rows(seed: int) -> None:
    chance, sink = random.Random(seed), hf.MemorySink()
    skew, times = chance.choice([1, 10, 60]), dict[str, list[int]]()
    job = new_job(max_rows_per_batch=chance.choice([5, 30]), max_event_time_skew=skew, parallelism=2, task_managers=2)
    streams = []
    for name in "abc":
        step, first = chance.choice([1, 3, 9]), chance.choice([0, 40, 200])
        times[name] = [first + step * place for place in range(chance.choice([0, 20, 60]))]
        feed = Feed(EVENTS, name=name)
        feed.put(events(*times[name]))
        streams.append(job.read(feed).with_watermark("at", 0))
    united = streams[0].union(streams[1]).union(streams[2])
    united.key_by("k", hf.window("at", "20s")).aggregate(n=hf.count()).write(sink)
    query = start(job, hf.available_now(drain=True))
    query.awaitTermination()
    for batch in query.recentProgress:
        places = {
            source["description"]: (source["startOffset"]["0"], source["endOffset"]["0"]) for source in batch["sources"]
        }
        reached = {
            name: times[name][begin - 1] if begin else -math.inf
            for name, (begin, _) in places.items()
            if begin < len(times[name])
        }
        slowest = min(reached, key=reached.__getitem__, default="")
        read = {name for name, (begin, end) in places.items() if end > begin}
        assert bool(read) == bool(reached), "where rows are left, a batch reads some"
        assert all(name == slowest or reached[name] <= reached[slowest] + skew for name in read), reached
    found = {round(row["window_start"].timestamp()): row["n"] for row in sink.rows()}
    assert found == Counter(second // 20 * 20 for each in times.values() for second in each)
    assert query.lastProgress["metrics"]["numLateRecordsDropped"] == 0


def test_progress_shows_the_watermark_of_each_source_and_operator() -> None:
    job = timed(script(events(10), events(20), schema=EVENTS), hf.NoopSink())
    progress = run(job).lastProgress
    assert progress["sources"][0]["watermark"] == "1970-01-01T00:00:15.000Z"
    assert progress["eventTime"] == {"watermark": "1970-01-01T00:00:05.000Z"}
    assert progress["stateOperators"][0]["watermark"] == "1970-01-01T00:00:05.000Z"


def test_event_time_timers_without_a_watermark_are_refused() -> None:
    job = new_job()
    job.read(script(events(1), schema=EVENTS)).key_by("k").process(EachTen(), OUT).write(hf.NoopSink())
    with pytest.raises(hf.QueryFailed, match="needs a watermark, without which the timer would never fire"):
        run(job)


def test_a_timestamp_that_steps_have_renamed_says_why_it_is_gone() -> None:
    class See(hf.ProcessFunction):
        def process(self, row, ctx):
            yield row.k, round(ctx.timestamp.timestamp())

    job = new_job()
    stream = job.read(script(events(1), schema=EVENTS)).with_watermark("at", "5s")
    renamed = stream.map_batches(lambda batch: batch.rename_columns(["k", "when"]), "k BIGINT, when TIMESTAMP")
    renamed.key_by("k").process(See(), OUT).write(hf.NoopSink())
    with pytest.raises(hf.QueryFailed, match=r"the watermark's column \(at\), which its input no longer has \(k, when"):
        run(job)


def test_columns_without_a_zone_compare_with_watermark_and_timestamp() -> None:
    class See(hf.ProcessFunction):
        def process(self, row, ctx):
            assert ctx.timestamp == row.at
            yield row.k, -1 if ctx.watermark is None else (row.at - ctx.watermark).seconds
            ctx.timers.register_event_time(row.at)

        def on_timer(self, timestamp, ctx):
            assert timestamp <= ctx.watermark
            assert ctx.timestamp == timestamp

    sink, rows = hf.MemorySink(), [{"k": 1, "at": datetime(2026, 1, 1, 12, second)} for second in (0, 30)]
    job = new_job()
    stream = job.read(script(rows[:1], rows[1:], schema="k BIGINT, at TIMESTAMP_NTZ")).with_watermark("at", "5s")
    stream.key_by("k").process(See(), OUT).write(sink)
    run(job)
    assert tuples(sink) == [(1, -1), (1, 30 * 60 + 5)]


def test_windows_of_processing_time_close_by_the_time_of_batches() -> None:
    clock, feed, sink = ManualClock(start_s=1_000_000.0), Feed("k BIGINT"), hf.MemorySink()
    job = new_job(checkpoint=SOON)
    taken = job.read(feed).with_batch_time("taken")
    taken.key_by("k", hf.window("taken", "10s")).aggregate(n=hf.count()).write(sink)
    query = start(job, hf.processing_time("0s"), clock=clock)
    try:
        for second in (0, 3, 12):
            clock.advance(1_000_000 + second - clock.now())
            feed.put([{"k": 1}, {"k": 100 + second}])
            query.processAllAvailable()
        until(lambda: len(sink.rows()) == 5 or clock.advance(1) is not None)
    finally:
        query.stop()
    shown = [(row["k"], row["window_start"].timestamp() - 1_000_000, row["n"]) for row in sink.rows()]
    assert sorted(shown) == [(1, 0, 2), (1, 10, 1), (100, 0, 1), (103, 0, 1), (112, 10, 1)]


def test_the_time_of_batches_is_refused_where_it_does_not_belong() -> None:
    with pytest.raises(hf.JobRefused, match="it has a column of that name"):
        job = new_job()
        job.read(script(events(1), schema=EVENTS)).with_batch_time("at").write(hf.NoopSink())
        run(job)
    with pytest.raises(hf.JobRefused, match="belongs right after read"):
        new_job().read(script(events(1), schema=EVENTS)).with_watermark("at", "1s").with_batch_time("taken")
