"""Windows of whole jobs in process: failures and restarts, complete input, late rows, refusals."""

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from job_kit import SOON, new_job, new_storage, script

import holdfast as hf
from holdfast.testing import run
from holdfast.testing.source import Abort, Eof, TestSource
from sampling import some

EVENTS = "k BIGINT, at TIMESTAMP"
BACKENDS = [hf.HashMapState(), hf.RocksDBState(cache_max_entries=2)]
WINDOWS = {
    "tumbling": hf.window("at", "10s"),
    "sliding": hf.window("at", "10s", "4s"),
    "session": hf.session_window("at", "2s"),
}


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def events(*pairs: tuple[int, float]):
    return [{"k": k, "at": at(second)} for k, second in pairs]


def counted(sink: hf.MemorySink) -> list[tuple[int, int, int]]:
    return [(row["k"], round(row["window_start"].timestamp()), row["n"]) for row in sink.rows()]


@pytest.mark.parametrize("combine", [True, False])
@pytest.mark.parametrize("state", some(BACKENDS, 0), ids=["hashmap", "cache"])
@pytest.mark.parametrize("slide", [None, "2s"], ids=["tumbling", "sliding"])
def test_windows_are_exactly_once_over_failures_and_restarts(state, slide, combine) -> None:
    storage, sink = new_storage(), hf.MemorySink(name="out")
    batches = [[(key, 4 * number + key) for key in range(number % 3, 9)] for number in range(12)]
    steps = [
        step
        for number, batch in enumerate(batches)
        for step in ([events(*batch), Abort()] if number % 4 == 2 else [events(*batch)])
    ]
    source = TestSource([*steps, Eof()], EVENTS, name="events")
    length = source.length
    for source.length, trigger in ((length // 2, False), (length, True)):
        source.drains = trigger
        job = new_job(
            storage, parallelism=3, task_managers=2, checkpoint=SOON, state=state, combine=combine, max_rows_per_batch=5
        )
        stream = job.read(source).with_watermark("at", "12s")
        stream.key_by("k", hf.window("at", "10s", slide)).aggregate(n=hf.count(), name="counts").write(sink)
        run(job)
    width = 10 if slide is None else 2
    expected = Counter(
        (key, start)
        for batch in batches
        for key, second in batch
        for start in range(second // width * width, second // width * width - 10, -width)
    )
    assert sorted(counted(sink)) == sorted((key, start, count) for (key, start), count in expected.items())


@pytest.mark.parametrize("state", some(BACKENDS, 1), ids=["hashmap", "cache"])
def test_sessions_are_exactly_once_over_failures_and_restarts(state) -> None:
    storage, sink = new_storage(), hf.MemorySink(name="out")
    batches = [
        [(key, 30 * (number // 3) + 2 * (number % 3) + key) for key in range(number % 3, 9)] for number in range(12)
    ]
    steps = [
        step
        for number, batch in enumerate(batches)
        for step in ([events(*batch), Abort()] if number % 4 == 2 else [events(*batch)])
    ]
    source = TestSource([*steps, Eof()], EVENTS, name="events")
    length = source.length
    for source.length, source.drains in ((length // 2, False), (length, True)):
        job = new_job(storage, parallelism=3, task_managers=2, checkpoint=SOON, state=state, max_rows_per_batch=5)
        stream = job.read(source).with_watermark("at", "12s")
        stream.key_by("k", hf.session_window("at", "10s")).aggregate(n=hf.count(), name="counts").write(sink)
        run(job)
    expected = Counter((key, (second - key) // 30 * 30) for batch in batches for key, second in batch)
    assert Counter({(key, start - start % 30): n for key, start, n in counted(sink)}) == expected


EVERY = {
    **{name: getattr(hf, name)("v") for name in ("sum", "mean", "min", "max", "stddev", "variance", "first", "last")},
    **{name: getattr(hf, name)("s") for name in ("count", "count_distinct", "approx_count_distinct", "collect_list")},
    "collect_set": hf.collect_set("v"),
    "max_by": hf.max_by("s", "n"),
    "min_by": hf.min_by("v", "n"),
    "some": hf.sum("v", where=pc.field("v") > 3),
}


def aggregated(rows: list[dict[str, Any]], *windows: Any) -> list[dict[str, Any]]:
    """Every aggregate of rows by `k` and the window; `numbers` says which rows they were."""
    job, sink = new_job(parallelism=2, task_managers=2), hf.MemorySink()
    source = TestSource(
        [rows[:20], rows[20:40], rows[40:], Eof(drain=True)], "k BIGINT, at TIMESTAMP, v BIGINT, s STRING, n BIGINT"
    )
    keyed = job.read(source).with_watermark("at", "1min").key_by("k", *windows)
    keyed.aggregate(**EVERY, numbers=hf.collect_list("n")).write(sink)
    run(job)
    return [{name: comparable(name, value) for name, value in row.items()} for row in sink.rows()]


def comparable(name: str, value: Any) -> Any:
    if name == "collect_set":
        return sorted(value)
    return round(value, 9) if isinstance(value, float) else value


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_every_aggregate_of_a_window_is_that_of_its_rows(window: Any) -> None:
    chance = random.Random(1)
    rows = [
        {
            "k": n % 3,
            "at": at(chance.randrange(60)),
            "v": chance.choice([None, *range(7)]),
            "s": chance.choice("abc") if n % 4 else None,
            "n": n,
        }
        for n in range(60)
    ]
    found = aggregated(rows, window)
    again = [{**rows[n], "k": place} for place, row in enumerate(found) for n in row["numbers"]]
    newest = {row["k"]: row for row in aggregated(again)}
    for place, row in enumerate(found):
        assert {name: row[name] for name in EVERY} == {name: newest[place][name] for name in EVERY}


@pytest.mark.parametrize("emit", ["final", "changes"])
def test_windows_that_overlap_and_are_the_only_key_are_whole_at_any_parallelism(emit: str) -> None:
    counted, top = hf.MemorySink(), hf.MemorySink()
    job = new_job(parallelism=3)
    stream = job.read(script(events(*((n, n) for n in range(40))), schema=EVENTS)).with_watermark("at", "0s")
    windows = stream.key_by(hf.window("at", "20s", slide="5s"))
    windows.aggregate(n=hf.count(), emit=emit).write(counted)
    windows.top(1, by="k").write(top)
    run(job)
    starts = range(-15, 40, 5)
    whole = {at(start): min(start + 20, 40) - max(start, 0) for start in starts if emit == "changes" or start < 20}
    assert sorted((row["window_start"], row["n"]) for row in counted.rows()) == sorted(whole.items())
    closed = [(at(start), start + 19) for start in starts if start < 20]
    assert sorted((row["window_start"], row["k"]) for row in top.rows()) == closed


def test_a_window_alone_is_a_key_and_its_column_keeps_its_place() -> None:
    alone, first = hf.MemorySink(), hf.MemorySink()
    job = new_job()
    stream = job.read(script(events((1, 3), (2, 8), (1, 13)), schema=EVENTS)).with_watermark("at", "1s")
    stream.key_by(hf.window("at", "10s")).aggregate(n=hf.count()).write(alone)
    stream.key_by(hf.window("at", "10s"), "k").aggregate(n=hf.count(), emit="changes").write(first)
    run(job)
    assert alone.rows() == [{"window_start": at(0), "window_end": at(10), "n": 2}]
    assert sorted(tuple(row.values()) for row in first.rows()) == [
        (at(0), at(10), 1, 1),
        (at(0), at(10), 2, 1),
        (at(10), at(20), 1, 1),
    ]
    assert list(first.rows()[0]) == ["window_start", "window_end", "k", "n"]


def test_late_rows_are_counted_and_put_aside_by_choice(tmp_path) -> None:
    letters = f"file://{tmp_path}/letters"
    batches = [events((1, 5)), events((1, 40)), events((1, 45)), events((1, 6), (1, 46)), events((2, 7))]
    for late, dropped in (("drop", 0), ("dead_letter", 2)):
        sink = hf.MemorySink()
        job = new_job(bad_records="dead_letter", dead_letters=letters)
        stream = job.read(script(*batches, schema=EVENTS)).with_watermark("at", "5s")
        stream.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count(), late=late).write(sink)
        query = run(job)
        assert counted(sink) == [(1, 0, 1)]
        assert query.lastProgress["metrics"]["numLateRecordsDropped"] == 2
        assert query.totals.bad_rows == dropped


def test_late_rows_are_a_stream_by_choice() -> None:
    batches = [events((1, 5)), events((1, 40)), events((1, 45)), events((1, 6), (1, 46)), events((2, 7))]
    sink, late = hf.MemorySink(), hf.MemorySink()
    job = new_job(parallelism=2, task_managers=2)
    stream = job.read(script(*batches, schema=EVENTS)).with_watermark("at", "5s")
    counts = stream.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count(), late="stream")
    counts.write(sink)
    counts.late.write(late)
    run(job)
    assert counted(sink) == [(1, 0, 1)]
    assert late.rows() == events((1, 6), (2, 7))


def test_late_belongs_to_windows_that_give_it() -> None:
    job = new_job()
    stream = job.read(script(events((1, 5)), schema=EVENTS)).with_watermark("at", "5s")
    with pytest.raises(hf.JobRefused, match=r"\.late belongs right behind"):
        _ = stream.late
    counts = stream.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count())
    counts.write(hf.NoopSink())
    counts.late.write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match="its late rows are no stream; declare it with late='stream'"):
        run(job)
    job = new_job()
    stream = job.read(script(events((1, 5)), schema=EVENTS)).with_watermark("at", "5s")
    stream.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count(), late="stream").write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match="the output of operator 'aggregate-1/late' is used nowhere"):
        run(job)


@pytest.mark.parametrize("lateness", [0, "20s"])
def test_windows_of_windows_close_with_them(lateness) -> None:
    batches = [events(*((key, 4 * number + key) for key in range(5))) for number in range(12)]
    sink, minutes, chained = hf.MemorySink(), hf.MemorySink(), hf.MemorySink()
    job = new_job(parallelism=3, task_managers=2)
    stream = job.read(TestSource([*batches, Eof(drain=True)], EVENTS)).with_watermark("at", "2s")
    counts = stream.key_by("k", hf.window("at", "10s", "5s")).aggregate(n=hf.count(), allowed_lateness=lateness)
    tops = counts.key_by("window_start").aggregate(keys=hf.count(), most=hf.max("n"), late="stream")
    tops.write(sink)
    tops.late.write(chained)
    counts.key_by(hf.window("window_start", "1min")).aggregate(n=hf.sum("n")).write(minutes)
    query = run(job)
    found = {round(row["window_start"].timestamp()): (row["keys"], row["most"]) for row in sink.rows()}
    by_key = Counter(
        (key, start)
        for batch in batches
        for key, second in [(row["k"], round(row["at"].timestamp())) for row in batch]
        for start in (second // 5 * 5, second // 5 * 5 - 5)
    )
    starts = {start for _, start in by_key}
    of_start = {start: [count for (_, other), count in by_key.items() if other == start] for start in starts}
    assert found == {start: (len(counts), max(counts)) for start, counts in of_start.items()}
    assert len(sink.rows()) == len(found)
    assert sum(row["n"] for row in minutes.rows()) == 2 * 60
    assert query.lastProgress["metrics"]["numLateRecordsDropped"] == 0


def test_the_hottest_keys_of_each_window_in_one_line() -> None:
    """Nexmark's query 5."""
    bids = [
        events(*((key, 3 * number + key) for key in range(5) for _ in range(1 + key * number % 4)))
        for number in range(9)
    ]
    sink = hf.MemorySink()
    job = new_job(parallelism=3, task_managers=2, max_rows_per_batch=4)
    stream = job.read(TestSource([*bids, Eof(drain=True)], EVENTS)).with_watermark("at", "4s")
    counts = stream.key_by("k", hf.window("at", "10s", "2s")).aggregate(n=hf.count())
    counts.key_by("window_start").top(1, by="n", ties=True).write(sink)
    run(job)
    counted = Counter(
        (start, row["k"])
        for batch in bids
        for row in batch
        for start in range(round(row["at"].timestamp()) // 2 * 2, round(row["at"].timestamp()) // 2 * 2 - 10, -2)
    )
    most = {start: max(n for (other, _), n in counted.items() if other == start) for start, _ in counted}
    expected = sorted((start, key, n) for (start, key), n in counted.items() if n == most[start])
    assert sorted((round(row["window_start"].timestamp()), row["k"], row["n"]) for row in sink.rows()) == expected
    assert list(sink.rows()[0]) == ["window_start", "k", "window_end", "n"]


def test_allowed_lateness_keeps_windows_open_and_changes_correct_them() -> None:
    sink = hf.MemorySink()
    job = new_job()
    batches = [events((1, 5)), events((1, 40)), events((1, 6)), events((1, 100)), events((1, 7))]
    stream = job.read(script(*batches, schema=EVENTS)).with_watermark("at", "5s").key_by("k", hf.window("at", "10s"))
    stream.aggregate(n=hf.count(), emit="changes", allowed_lateness="1min").write(sink)
    run(job)
    assert counted(sink) == [(1, 0, 1), (1, 40, 1), (1, 0, 2), (1, 100, 1), (1, 0, 3)]


def test_a_row_without_a_time_is_a_bad_record() -> None:
    job = new_job()
    stream = job.read(script([{"k": 1, "at": None}], schema=EVENTS)).with_watermark("at", "5s")
    stream.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count()).write(hf.NoopSink())
    with pytest.raises(hf.QueryFailed, match=r"null in a key column \(k, at\) of operator 'aggregate-1'"):
        run(job)


def test_a_window_of_another_size_does_not_meet_the_old_ones_state() -> None:
    storage = new_storage()

    def job(size: str):
        made = new_job(storage)
        stream = made.read(script(events((1, 5)), schema=EVENTS, name="in")).with_watermark("at", "5s")
        stream.key_by("k", hf.window("at", size)).aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="out"))
        return made

    run(job("10s"))
    with pytest.raises(hf.JobRefused, match=r"keyed by \(k, window\(at, 10s\)\), the job declares key_by\(k, window"):
        run(job("20s"))


def test_windows_that_stay_for_ever_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    job = new_job()
    stream = job.read(script(events((1, 5)), events((1, 6)), schema=EVENTS))
    stream.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count(), emit="changes", name="w").write(hf.NoopSink())
    stream.key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    run(job)
    (said,) = [record.getMessage() for record in caplog.records if "for ever" in record.getMessage()]
    assert "operator 'w'" in said and "with_watermark" in said


def test_what_windows_refuse() -> None:
    stream = new_job().read(script(events((1, 5)), schema=EVENTS)).with_watermark("at", "5s")
    window = hf.window("at", "10s")
    with pytest.raises(hf.SettingsError, match="has 2 windows"):
        stream.key_by(window, hf.window("at", "20s"))
    with pytest.raises(hf.SettingsError, match="emit='every' is not allowed behind a window"):
        stream.key_by("k", window).aggregate(n=hf.count(), emit="every")
    with pytest.raises(hf.SettingsError, match="belong to windows"):
        stream.key_by("k").aggregate(n=hf.count(), late="dead_letter")
    with pytest.raises(hf.SettingsError, match="needs Job"):
        stream.key_by("k", window).aggregate(n=hf.count(), late="dead_letter")


def test_complete_input_closes_windows_that_end_after_the_last_time_that_python_has() -> None:
    sinks = {name: hf.MemorySink(name=name) for name in ("windows", "sessions", "greatest")}
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    job = new_job()
    source = TestSource([[{"k": 1, "at": at(5)}, {"k": 2, "at": last}], Eof(drain=True)], EVENTS)
    stream = job.read(source).with_watermark("at", "1s")
    days = stream.key_by("k", hf.window("at", "1d"))
    days.aggregate(n=hf.count()).write(sinks["windows"])
    stream.key_by("k", hf.session_window("at", "1h")).aggregate(n=hf.count()).write(sinks["sessions"])
    days.top(1, by="at").write(sinks["greatest"])
    run(job)
    for sink in sinks.values():
        assert sorted(sink.table().column("k").to_pylist()) == [1, 2], sink.name


def test_days_begin_at_midnight_of_a_zone_east_of_utc() -> None:
    sink = hf.MemorySink(name="out")
    job = new_job()
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("ms", "Europe/Berlin"))])
    stream = job.read(TestSource([events((1, 23 * 3600)), Eof(drain=True)], schema)).with_watermark("at", "1s")
    stream.key_by(hf.window("at", "1d", start="-1h")).aggregate(n=hf.count()).write(sink)
    run(job)
    assert [f"{row['window_start']:%d %H:%M}" for row in sink.rows()] == ["02 00:00"]


def test_a_time_that_no_calendar_has_is_a_bad_record_and_moves_no_watermark(tmp_path) -> None:
    sink = hf.MemorySink(name="out")
    job = new_job(bad_records="dead_letter", dead_letters=tmp_path.as_uri())
    milliseconds_as_seconds = pa.array([5_000_000, 1_700_000_000_000, 6], pa.int64()).cast(pa.timestamp("s"))
    rows = pa.record_batch({"k": [1, 2, 3], "at": milliseconds_as_seconds})
    late = pa.record_batch({"k": [4], "at": pa.array([5_000_001], pa.timestamp("s"))})
    stream = job.read(TestSource([rows, late, Eof(drain=True)], rows.schema, name="in")).with_watermark("at", "1s")
    stream.key_by("k", hf.window("at", "10s")).aggregate(n=hf.count()).write(sink)
    run(job)
    assert sorted(row["k"] for row in sink.rows()) == [1, 3, 4]
    (letter,) = pq.read_table(next(tmp_path.rglob("*.parquet"))).to_pylist()
    assert "outside the years 1 to 9999" in letter["reason"]
    assert "1700000000000" in letter["payload"]


class Path(hf.ProcessFunction):
    """The seconds of a session's rows."""

    def process(self, rows, ctx):
        yield ctx.key.k, sorted(round(row.at.timestamp()) for row in rows)


def test_a_function_gets_the_rows_of_whole_sessions_over_a_loss_and_a_rescale() -> None:
    storage, sink = new_storage(), hf.MemorySink(name="out")
    steps = [events((1, 0), (2, 3)), events((1, 20), (2, 50)), Abort(), events((1, 10)), events((2, 44), (1, 90))]
    source = TestSource([*steps, Eof()], EVENTS, name="events")
    length = source.length
    for source.length, source.drains, parallelism in ((3, False, 1), (length, True, 3)):
        job = new_job(storage, parallelism=parallelism, checkpoint=SOON)
        stream = job.read(source).with_watermark("at", "1min")
        sessions = stream.key_by("k", hf.session_window("at", "10s"))
        sessions.process(Path(), "k BIGINT, seconds ARRAY<BIGINT>", name="paths").write(sink)
        run(job)
    found = sorted((row["k"], row["seconds"]) for row in sink.rows())
    assert found == [(1, [0, 10, 20]), (1, [90]), (2, [3]), (2, [44, 50])]
