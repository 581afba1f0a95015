"""`drop_duplicates` and `last` of whole jobs in process, over failures and restarts."""

from datetime import UTC, datetime
from typing import Any

import pytest
from job_kit import SOON, new_job, new_storage, script

import holdfast as hf
from holdfast.testing import run
from holdfast.testing.source import Abort, Eof, TestSource
from sampling import some

EVENTS = "id BIGINT, at TIMESTAMP, v STRING"


def events(*rows: tuple[int, float, str]) -> list[dict[str, Any]]:
    return [{"id": key, "at": datetime.fromtimestamp(second, UTC), "v": value} for key, second, value in rows]


@pytest.mark.parametrize(
    "state", some([hf.HashMapState(), hf.RocksDBState(cache_max_entries=2)], 1), ids=["hashmap", "cache"]
)
def test_first_and_last_rows_are_exactly_once_over_failures_and_restarts(state) -> None:
    storage, first, last = new_storage(), hf.MemorySink(name="first"), hf.MemorySink(name="last")
    batches = [[(key, 10 * number + key, f"{number}") for key in range(number % 3, 7)] for number in range(12)]
    steps = [
        step
        for number, rows in enumerate(batches)
        for step in ([events(*rows), Abort()] if number % 4 == 2 else [events(*rows)])
    ]
    source = TestSource([*steps, Eof()], EVENTS, name="events")
    length = source.length
    for source.length in (length // 2, length):
        job = new_job(storage, parallelism=3, task_managers=2, checkpoint=SOON, state=state, max_rows_per_batch=5)
        stream = job.read(source).with_watermark("at", "12s")
        stream.drop_duplicates("id", within="25s", name="distinct").write(first)
        stream.key_by("id").last(by="at", name="newest").write(last)
        run(job)
    expected, kept = [], dict[int, int]()
    for key, second, value in (row for rows in batches for row in rows):
        if key not in kept or second > kept[key] + 25:
            kept[key] = second
            expected.append((key, value))
    assert sorted((row["id"], row["v"]) for row in first.rows()) == sorted(expected)
    newest = {row["id"]: row["v"] for row in last.rows()}
    assert newest == {key: value for rows in batches for key, _, value in rows}
    assert len(last.rows()) == sum(len(rows) for rows in batches)


def test_late_duplicates_are_a_stream_by_choice() -> None:
    sink, late = hf.MemorySink(), hf.MemorySink()
    job = new_job()
    batches = [events((1, 40, "a")), events((1, 45, "b")), events((1, 41, "c"), (2, 46, "d")), events((3, 20, "e"))]
    stream = job.read(script(*batches, schema=EVENTS)).with_watermark("at", "1s")
    distinct = stream.drop_duplicates("id", within="1min", late="stream")
    distinct.write(sink)
    distinct.late.write(late)
    run(job)
    assert [row["v"] for row in sink.rows()] == ["a", "d"]
    assert [row["v"] for row in late.rows()] == ["e"]


def test_what_first_and_last_refuse() -> None:
    stream = new_job().read(script(events((1, 5, "a")), schema=EVENTS)).with_watermark("at", "5s")
    with pytest.raises(hf.SettingsError, match=r"use \.top\(1, by=…\)"):
        stream.key_by("id", hf.window("at", "10s")).last(by="at")
    with pytest.raises(hf.SettingsError, match="allowed are 'drop', 'dead_letter' and 'stream', with within="):
        stream.drop_duplicates("id", late="stream")
    with pytest.raises(hf.SettingsError, match="needs Job"):
        stream.drop_duplicates("id", within=1, late="dead_letter")
