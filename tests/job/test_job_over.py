"""Aggregates over the last rows of a key in whole jobs: those of DuckDB, over failures, restarts and rescaling."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest
from job_kit import SOON, new_job, new_storage, script, tuples

import holdfast as hf
from holdfast.schema import to_arrow_schema
from holdfast.testing import Abort, Eof, run

ROWS = "k STRING, at TIMESTAMP, v BIGINT, x DOUBLE"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
QUERY = """
SELECT k, "at", v, x, count(*) OVER w, count(*) FILTER (v > 5) OVER w, sum(v) OVER w, avg(v) OVER w, min(x) OVER w,
    max(x) OVER w
FROM t WINDOW w AS (PARTITION BY k ORDER BY "at", v NULLS FIRST, x NULLS FIRST ROWS 4 PRECEDING)
"""
SQL = """SELECT k, at, v, sum(v) OVER (PARTITION BY k ORDER BY at, v, x ROWS BETWEEN 4 PRECEDING AND CURRENT ROW) AS s
    FROM rows"""


def in_duckdb(rows: list[dict[str, Any]], query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute('CREATE TABLE t (k TEXT, "at" TIMESTAMPTZ, v BIGINT, x DOUBLE)')
        connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [list(row.values()) for row in rows])
        found = connection.sql(query).fetchall()
    return [tuple(each.astimezone(UTC) if isinstance(each, datetime) else each for each in row) for row in found]


@pytest.mark.parametrize("state", [hf.HashMapState(), hf.RocksDBState(cache_max_entries=3)], ids=["hashmap", "cache"])
def test_rows_have_the_aggregates_that_duckdb_gives_over_failures_restarts_and_rescaling(state: Any) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    steps: list[Any] = []
    for number in range(12):
        came = [
            {
                "k": chance.choice("abcdef"),
                "at": BEGIN + timedelta(milliseconds=4000 * number + chance.randrange(8000)),
                "v": chance.choice([None, *range(10)]),
                "x": chance.choice([None, 0.5, -1.0, 2.25]),
            }
            for _ in range(chance.choice([1, 4, 15]))
        ]
        rows += came
        steps += [came, Abort()] if chance.random() < 0.3 else [came]
    steps.append(Eof(drain=True))
    storage, sink, of_sql = new_storage(), hf.MemorySink(name="over"), hf.MemorySink(name="sql")
    for parallelism, length in ((2, len(steps) // 3), (3, 2 * len(steps) // 3), (1, len(steps))):
        job = new_job(storage, parallelism=parallelism, checkpoint=SOON, state=state)
        stream = job.read(script(*steps[:length], schema=ROWS, name="rows")).with_watermark("at", "10s")
        aggregates = {"n": hf.count(), "large": hf.count(where="v > 5"), "s": hf.sum("v"), "mean": hf.mean("v")}
        aggregates |= {"least": hf.min("x"), "most": hf.max("x")}
        stream.key_by("k").over(aggregates, by=("at", "v", "x"), rows=5, name="last").write(sink)
        job.sql(SQL, rows=stream).write(of_sql)
        run(job)
    order = {"key": lambda row: [(each is not None, each) for each in row]}
    assert sorted(tuples(sink), **order) == sorted(in_duckdb(rows, QUERY), **order)
    query = QUERY.replace(QUERY[: QUERY.index("FROM t")], 'SELECT k, "at", v, sum(v) OVER w ')
    assert sorted(tuples(of_sql), **order) == sorted(in_duckdb(rows, query), **order)


def test_another_number_of_rows_is_refused_at_a_restart() -> None:
    rows = [{"k": "a", "at": BEGIN, "v": 1, "x": None}]
    storage = new_storage()
    for last in (3, 4):
        job = new_job(storage, checkpoint=SOON)
        keyed = job.read(script(rows, schema=ROWS, name="rows")).with_watermark("at", "1s").key_by("k")
        keyed.over(by="at", rows=last, n=hf.count(), name="over").write(hf.NoopSink())
        if last == 3:
            run(job)
        else:
            with pytest.raises(hf.JobRefused, match="4 rows by at"):
                run(job)


def test_what_over_refuses() -> None:
    stream = new_job().read(script([], schema=to_arrow_schema(ROWS))).with_watermark("at", "5s")
    with pytest.raises(hf.SettingsError, match="over\\(\\) does not work behind a window"):
        stream.key_by("k", hf.window("at", "10s")).over(by="at", rows=3, n=hf.count())
    with pytest.raises(hf.SettingsError, match="rows= is a parameter of over"):
        stream.key_by("k").over(by="at", rows=hf.count())
    with pytest.raises(hf.SettingsError, match="the aggregates over rows are count, sum, mean, min, max"):
        stream.key_by("k").over(by="at", rows=3, first=hf.first("v"))
