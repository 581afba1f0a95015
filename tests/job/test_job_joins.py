"""Joins of whole jobs in process: failures, restarts, kills of a TaskManager, late rows, windows, refusals."""

import logging
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from job_kit import SOON, new_job, new_storage, script
from stored_joins_kit import OLD_COLUMNS, STATES, made, new_sinks, new_sources, unpack

import holdfast as hf
from holdfast.storage.store import open_store
from holdfast.testing import run
from holdfast.testing.source import Abort, Eof, TestSource
from sampling import some

SHOWN = "user BIGINT, shown TIMESTAMP, ad BIGINT"
CLICKED = "who BIGINT, at TIMESTAMP, link STRING"
BACKENDS = [hf.HashMapState(), hf.RocksDBState(cache_max_entries=2)]


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def shown(*rows: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"user": user, "shown": at(second), "ad": round(second)} for user, second in rows]


def clicked(*rows: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"who": user, "at": at(second), "link": f"/{round(second)}"} for user, second in rows]


@pytest.mark.parametrize("state", BACKENDS, ids=["hashmap", "cache"])
@pytest.mark.parametrize("how", some(["inner", "outer", "anti"], 1, 2))
def test_joins_are_exactly_once_over_failures_and_restarts(how, state) -> None:
    storage, sink = new_storage(), hf.MemorySink(name="out")
    ads = [[(user, 10 * number + user) for user in range(number % 2, 8)] for number in range(12)]
    clicks = [[(user, 10 * number + user + 4) for user in range(number % 3, 6)] for number in range(12)]
    left = [step for n, rows in enumerate(ads) for step in ([shown(*rows), Abort()] if n % 5 == 2 else [shown(*rows)])]
    right = [clicked(*rows) for rows in clicks]
    sources = [TestSource([*left, Eof()], SHOWN, name="ads"), TestSource([*right, Eof()], CLICKED, name="clicks")]
    lengths = [source.length for source in sources]
    for part, drain in ((0.5, False), (1.0, True)):
        job = new_job(storage, parallelism=3, task_managers=2, checkpoint=SOON, state=state, max_rows_per_batch=9)
        streams = []
        for source, length, column in zip(sources, lengths, ("shown", "at"), strict=True):
            source.length, source.drains = round(length * part), drain
            streams.append(job.read(source).with_watermark(column, "12s"))
        joined = streams[0].key_by("user").join(streams[1].key_by("who"), ("-3s", "15s"), how=how, name="joined")
        joined.write(sink)
        run(job)
    pairs = [
        ((user, shown_s), (who, click_s))
        for user, shown_s in (row for rows in ads for row in rows)
        for who, click_s in (row for rows in clicks for row in rows)
        if user == who and -3 <= click_s - shown_s <= 15
    ]
    alone = {row for rows in ads for row in rows} - {left for left, _ in pairs}
    unmet = {row for rows in clicks for row in rows} - {right for _, right in pairs}
    expected: Counter[Any] = Counter(pairs if how != "anti" else [])
    expected += Counter([(left, None) for left in alone] if how != "inner" else [])
    expected += Counter([(None, right) for right in unmet] if how == "outer" else [])

    def seen(row: dict[str, Any]) -> tuple[Any, Any]:
        left = None if row["user"] is None else (row["user"], row["shown"].timestamp())
        return left, None if row.get("who") is None else (row["who"], row["at"].timestamp())

    assert Counter(seen(row) for row in sink.rows()) == expected


def test_a_join_by_windows_gives_their_bounds_and_goes_on_behind_windows() -> None:
    sink, both = hf.MemorySink(), hf.MemorySink()
    job = new_job(parallelism=2, task_managers=2)
    left = job.read(TestSource([shown((1, 3), (2, 4), (1, 12)), Eof(drain=True)], SHOWN)).with_watermark("shown", 0)
    right = job.read(TestSource([clicked((1, 9), (1, 15), (2, 19)), Eof(drain=True)], CLICKED)).with_watermark("at", 0)
    window = "10s"
    joined = left.key_by("user", hf.window("shown", window)).join(right.key_by("who", hf.window("at", window)))
    joined.write(sink)
    views = left.key_by("user", hf.window("shown", window)).aggregate(views=hf.count())
    clicks = right.key_by("who", hf.window("at", window)).aggregate(clicks=hf.count())
    keys = ("window_start", "window_end")
    views.key_by("user", *keys).join(clicks.key_by("who", *keys), how="outer").write(both)
    run(job)
    assert sorted((row["user"], row["ad"], row["link"], row["window_start"]) for row in sink.rows()) == [
        (1, 3, "/9", at(0)),
        (1, 12, "/15", at(10)),
    ]
    assert list(both.rows()[0]) == ["user", "window_start", "window_end", "views", "who", "clicks"]
    found = [(row["user"], row["who"], row["window_start"], row["views"], row["clicks"]) for row in both.rows()]
    assert sorted(found, key=lambda row: (*row[2:3], row[0] or 9)) == [
        (1, 1, at(0), 1, 1),
        (2, None, at(0), 1, None),
        (1, 1, at(10), 1, 1),
        (None, 2, at(10), None, 1),
    ]


def test_late_rows_of_joins_are_counted_and_put_aside_by_choice(tmp_path) -> None:
    for late, dropped in (("drop", 0), ("dead_letter", 2)):
        sink = hf.MemorySink()
        job = new_job(bad_records="dead_letter", dead_letters=f"file://{tmp_path}/letters")
        left = [shown((1, 40)), shown((1, 45)), shown((1, 46)), shown((1, 6), (1, 47)), shown((2, 7))]
        right = [clicked((1, 41)), clicked((1, 45)), clicked((1, 46)), clicked((1, 47)), clicked((1, 48))]
        streams = [
            job.read(script(*left, schema=SHOWN)).with_watermark("shown", "5s").key_by("user"),
            job.read(script(*right, schema=CLICKED)).with_watermark("at", "5s").key_by("who"),
        ]
        streams[0].join(streams[1], (0, 0), late=late).write(sink)
        query = run(job)
        assert sorted(row["ad"] for row in sink.rows()) == [45, 46, 47]
        assert query.lastProgress["metrics"]["numLateRecordsDropped"] == 2
        assert query.totals.bad_rows == dropped


@pytest.mark.parametrize("how", ["inner", "semi", "outer", "asof"])
def test_late_rows_of_both_sides_of_a_join_are_streams_by_choice(how) -> None:
    sink, late_left, late_right = hf.MemorySink(), hf.MemorySink(), hf.MemorySink()
    job = new_job(parallelism=2, task_managers=2)
    left = [shown((1, 40)), shown((1, 45)), shown((1, 46)), shown((1, 6), (1, 47)), shown((2, 7))]
    right = [clicked((1, 41)), clicked((1, 45)), clicked((1, 46)), clicked((1, 47), (3, 8)), clicked((1, 48))]
    streams = [
        job.read(script(*left, schema=SHOWN)).with_watermark("shown", "5s").key_by("user"),
        job.read(script(*right, schema=CLICKED)).with_watermark("at", "5s").key_by("who"),
    ]
    bound = {} if how == "asof" else {"within": (0, 0)}
    joined = streams[0].join(streams[1], how=how, late="stream", **bound)
    joined.write(sink)
    joined.late.write(late_left)
    joined.late_right.write(late_right)
    query = run(job)
    assert late_left.rows() == [*shown((1, 6)), *shown((2, 7))]
    assert late_right.rows() == clicked((3, 8))
    assert query.lastProgress["metrics"]["numLateRecordsDropped"] == 3
    assert {row["ad"] for row in sink.rows()} >= ({40} if how == "asof" else {45, 46, 47})


def test_late_rows_of_a_join_behind_windows_are_streams_of_both_sides() -> None:
    late_left, late_right = hf.MemorySink(), hf.MemorySink()
    job = new_job()
    left = [shown((1, 40)), shown((1, 41)), shown((1, 6), (1, 42))]
    right = [clicked((1, 41)), clicked((1, 42)), clicked((1, 43), (1, 7))]
    views = job.read(script(*left, schema=SHOWN)).with_watermark("shown", 0).key_by("user", hf.window("shown", "10s"))
    clicks = job.read(script(*right, schema=CLICKED)).with_watermark("at", 0).key_by("who", hf.window("at", "10s"))
    joined = views.join(clicks, late="stream")
    joined.write(hf.NoopSink())
    joined.late.write(late_left)
    joined.late_right.write(late_right)
    run(job)
    assert (late_left.rows(), late_right.rows()) == (shown((1, 6)), clicked((1, 7)))


def test_a_join_with_a_stream_of_late_rows_wants_both_sides_of_it_read() -> None:
    job = new_job()
    left = job.read(script(shown((1, 1)), schema=SHOWN)).with_watermark("shown", 0).key_by("user")
    right = job.read(script(clicked((1, 1)), schema=CLICKED)).with_watermark("at", 0).key_by("who")
    with pytest.raises(hf.SettingsError, match=r"join\(late='wait'\): allowed are 'drop' \(counted\), 'dead_letter'"):
        left.join(right, (0, 0), late="wait")
    joined = left.join(right, (0, 0), late="stream")
    joined.write(hf.NoopSink())
    joined.late.write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match=r"\.late_right belongs right behind the join\(\)"):
        _ = joined.key_by("user").last(by="shown").late_right
    with pytest.raises(hf.JobRefused, match="the output of operator 'join-1/late-right' is used nowhere"):
        run(job)


def test_a_row_without_an_event_time_is_a_bad_record() -> None:
    job = new_job()
    left = job.read(script([{"user": 1, "shown": None, "ad": 1}], schema=SHOWN)).with_watermark("shown", 0)
    right = job.read(script(clicked((1, 1)), schema=CLICKED)).with_watermark("at", 0)
    left.key_by("user").join(right.key_by("who"), (0, 1)).write(hf.NoopSink())
    with pytest.raises(hf.QueryFailed, match=r"null in a key column \(user, shown\) of operator 'join-1'"):
        run(job)


def test_start_warns_once_of_a_join_that_keeps_its_rows_for_ever(caplog) -> None:
    sink, job = hf.MemorySink(), new_job()
    left, right = job.read(script(shown((1, 1)), schema=SHOWN)), job.read(script(clicked((1, 900)), schema=CLICKED))
    left.key_by("user").join(right.key_by("who"), name="visits").write(sink)
    with caplog.at_level(logging.WARNING):
        run(job)
    assert [row["link"] for row in sink.rows()] == ["/900"]
    (said,) = [record.getMessage() for record in caplog.records if "for ever" in record.getMessage()]
    assert "operator 'visits': the join keeps every row of both sides for ever: give it a bound" in said


def test_another_kind_of_join_does_not_meet_the_old_ones_state() -> None:
    storage = new_storage()

    def job(how: str, latest: int):
        made = new_job(storage)
        left = made.read(script(shown((1, 1)), schema=SHOWN, name="ads")).with_watermark("shown", 0)
        right = made.read(script(clicked((1, 1)), schema=CLICKED, name="clicks")).with_watermark("at", 0)
        joined = left.key_by("user").join(right.key_by("who"), (0, latest), how=how, name="joined")  # type: ignore[arg-type]
        joined.write(hf.NoopSink(name="out"))
        return made

    run(job("inner", 5))
    with pytest.raises(hf.JobRefused, match=r"keyed by \(user, inner join of who within 0 to 5s\), the job declares"):
        run(job("inner", 6))
    with pytest.raises(hf.JobRefused, match=r"declares key_by\(user, left join of who"):
        run(job("left", 5))


@pytest.mark.parametrize("backend", STATES)
def test_joins_go_on_from_state_that_was_stored_with_times_in_columns_of_their_own(backend: str) -> None:
    savepoint, sinks = new_storage(), new_sinks()
    unpack(backend, savepoint)
    assert all(column in open_store(savepoint).get("savepoint") for column in OLD_COLUMNS)
    job = made(new_storage(), new_sources(), sinks, state=STATES[backend], parallelism=2, start_from=savepoint)
    run(job)
    found = {
        name: Counter((row["ad"], row["visit"]) for row in sinks[name].rows()) for name in sinks if name != "counts"
    }
    assert found == {
        "within": Counter(
            [(113, 122), (126, 130), (128, 124), (131, 141), (140, None), (145, None), (150, None), (None, 127)]
        ),
        "between": Counter([(126, None), (128, 102), (128, 124), (131, 124), (140, None), (145, None), (150, 105)]),
        "asof": Counter([(125, 124), (126, 111), (128, 124), (131, 124), (140, None), (145, 108), (150, 127)]),
    }
    counts = Counter((row["user"], row["window_start"], row["n"]) for row in sinks["counts"].rows())
    assert counts == Counter([(1, at(120), 3), (3, at(120), 1), (2, at(140), 1), (4, at(140), 1), (6, at(140), 1)])


def test_kept_rows_whose_event_time_is_in_another_column_are_refused() -> None:
    storage = new_storage()

    def job(schema: str, time: str) -> hf.Job:
        made = new_job(storage)
        left = made.read(script([], schema=schema, name="shown")).with_watermark(time, 0)
        right = made.read(script([], schema=CLICKED, name="clicked")).with_watermark("at", 0)
        joined = left.key_by("user").join(right.key_by("who"), within=(0, "5s"), name="joined")
        joined.write(hf.NoopSink(name="out"))
        return made

    run(job(SHOWN, "shown"))
    run(job(SHOWN + ", seen TIMESTAMP", "shown"))
    for schema in (SHOWN + ", seen TIMESTAMP", SHOWN.replace("shown", "seen")):
        with pytest.raises(hf.JobRefused, match=r"left rows is the column 'seen', and that of its stored .* 'shown'"):
            run(job(schema, "seen"))


def test_joins_refuse_what_they_cannot_bound() -> None:
    job = new_job()
    left = job.read(script(shown((1, 1)), schema=SHOWN)).with_watermark("shown", 0)
    right = job.read(script(clicked((1, 1)), schema=CLICKED)).with_watermark("at", 0)
    with pytest.raises(hf.SettingsError, match="expected a keyed stream"):
        left.key_by("user").join(right)  # type: ignore[arg-type]
    with pytest.raises(hf.JobRefused, match="different jobs"):
        left.key_by("user").join(new_job().read(script(clicked((1, 1)), schema=CLICKED)).key_by("who"))
    for other, match in [
        (right.key_by("who", hf.window("at", "20s")), "they have window.shown, 10s. and window.at, 20s."),
        (right.key_by("who"), "a side has no window"),
        (right.key_by("who", hf.session_window("at", "20s")), "a side has session_window"),
    ]:
        job.declared.operators.clear()
        job.declared.sinks.clear()
        left.key_by("user", hf.window("shown", "10s")).join(other).write(hf.NoopSink())
        with pytest.raises(hf.JobRefused, match=match):
            run(job)


def test_complete_input_gives_rows_that_met_none_though_they_are_valid_for_ever() -> None:
    sink, ever = hf.MemorySink(name="out"), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    job = new_job()
    prices = [{"item": 2, "since": at(1), "until": ever}, {"item": 1, "since": at(1), "until": ever}]
    sold = job.read(TestSource([clicked((1, 5)), Eof(drain=True)], CLICKED)).with_watermark("at", "1s")
    priced = job.read(TestSource([prices, Eof(drain=True)], "item BIGINT, since TIMESTAMP, until TIMESTAMP"))
    priced = priced.with_watermark("since", "1s")
    sold.key_by("who").join(priced.key_by("item"), between=("since", "until"), how="outer").write(sink)
    run(job)
    assert [(row["who"], row["item"]) for row in sink.rows()] == [(1, 1), (None, 2)]
