"""Windows on Spark: with and without a transform before them, in a row, with a TaskManager killed."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from spark_kit import kill_task_manager, new_job, write_rows

import holdfast as hf
from holdfast.sinks.memory import MemorySink
from sampling import quick
from waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOWS = {"fixed": hf.window("at", "10s"), "session": hf.session_window("at", "1500ms")}
OFTEN = hf.CheckpointConfig(trigger=hf.every("100ms"))


def events(seed: int, first: int) -> list[dict]:
    """Half a minute of rows, out of order by up to three seconds."""
    chance = random.Random(seed)
    return [
        {"k": chance.randrange(7), "at": START + timedelta(seconds=first + number / 10 - chance.random() * 3)}
        for number in range(300)
    ]


def counted(files: list[list[dict]], size: int, slide: int) -> Counter:
    found: Counter = Counter()
    for row in (row for rows in files for row in rows):
        second = (row["at"] - START).total_seconds()
        start = second // slide * slide
        while start + size > second:
            found[START + timedelta(seconds=start), row["k"]] += 1
            start -= slide
    return found


@pytest.mark.parametrize("transformed", quick("spark-sql", of={"python": False, "spark-sql": True}))
def test_the_busiest_keys_of_sliding_windows_are_what_a_recomputation_says(spark, tmp_path, transformed) -> None:
    files = [events(number, 30 * number) for number in range(3)]
    for number, rows in enumerate(files):
        write_rows(tmp_path / "in" / f"{number}.parquet", rows)
    counts_sink, top_sink = MemorySink(), MemorySink()
    job = new_job(spark, tmp_path, task_managers=2, max_rows_per_batch=100)
    stream = job.read(hf.FileSource(str(tmp_path / "in"))).with_watermark("at", "5s")
    if transformed:
        stream = stream.transform(lambda df: df.where("k >= 0"))
    counts = stream.key_by("k", hf.window("at", "10s", "2s")).aggregate(n=hf.count())
    counts.write(counts_sink)
    counts.key_by("window_start").top(1, by="n", ties=True).write(top_sink)
    query = job.start(hf.available_now(drain=True))
    query.awaitTermination()
    expected = counted(files, 10, 2)
    assert {(row["window_start"], row["k"]): row["n"] for row in counts_sink.rows()} == expected
    assert len(counts_sink.rows()) == len(expected)
    most = {start: max(n for (other, _), n in expected.items() if other == start) for start, _ in expected}
    best = sorted((start, k, n) for (start, k), n in expected.items() if n == most[start])
    assert sorted((row["window_start"], row["k"], row["n"]) for row in top_sink.rows()) == best
    assert query.lastProgress["metrics"]["numLateRecordsDropped"] == 0


@pytest.mark.long
@pytest.mark.parametrize("declared", WINDOWS.values(), ids=WINDOWS)
def test_windows_come_once_though_a_task_manager_is_killed(spark, tmp_path, declared) -> None:
    files = [events(number, 30 * number) for number in range(3)]
    late = [{"k": 1, "at": START}, {"k": 1, "at": START + timedelta(days=1)}]
    (tmp_path / "in").mkdir()
    sink, late_sink = MemorySink(), MemorySink()
    job = new_job(spark, tmp_path, task_managers=2, checkpoint=OFTEN, max_rows_per_batch=60)
    schema = "k BIGINT, at TIMESTAMP"
    stream = job.read(hf.FileSource(str(tmp_path / "in"), schema=schema, format="parquet")).with_watermark("at", "5s")
    windows = stream.key_by("k", declared).aggregate(n=hf.count(), late="stream")
    windows.write(sink)
    windows.late.write(late_sink)
    query = job.start()
    try:
        for number, rows in enumerate(files):
            write_rows(tmp_path / "in" / f"{number}.parquet", rows)
            query.processAllAvailable()
            if number == 0:
                kill_task_manager(query, 1)
        write_rows(tmp_path / "in" / "late.parquet", late)
        query.processAllAvailable()
        until(lambda: sum(row["n"] for row in sink.rows()) == 900)
    finally:
        query.stop()
    keys = [(row["k"], row["window_start"], row["window_end"]) for row in sink.rows()]
    assert len(keys) == len(set(keys))
    assert [(row["k"], row["at"]) for row in late_sink.rows()] == [(1, START)]
    if isinstance(declared, type(hf.window("at", "10s"))):
        assert {(row["window_start"], row["k"]): row["n"] for row in sink.rows()} == counted(files, 10, 10)
