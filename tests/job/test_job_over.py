"""Aggregates over the last rows of a key in whole jobs: those of DuckDB, over failures, restarts and rescaling."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
            with pytest.raises(hf.JobRefused, match=r"4 rows by at.*keep 3 rows by at, give"):
                run(job)


WINDOW = "(PARTITION BY k ORDER BY at ROWS 2 PRECEDING)"


def rows_at(*rows: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"k": "a", "at": BEGIN + timedelta(minutes=at), "v": v, "w": 100 * v} for at, v in rows]


def in_sql(item: str, *batches: Any, storage: str | None = None, window: str = WINDOW) -> list[tuple[Any, ...]]:
    """The rows of a query with an item OVER a window, over the state of an earlier query."""
    job, sink = new_job(storage, checkpoint=SOON), hf.MemorySink(name="sink")
    rows = job.read(script(*batches, schema="k STRING, at TIMESTAMP, v BIGINT, w BIGINT", name="rows"))
    text = f"SELECT k, {item.replace('OVER', f'OVER {window}')} FROM rows"
    job.sql(text, rows=rows.with_watermark("at", "0s")).write(sink)
    run(job)
    return tuples(sink)


def test_in_sql_another_value_begins_from_nothing_and_another_order_is_refused() -> None:
    storage = new_storage()
    batches = [rows_at((0, 1), (1, 2), (2, 3)), rows_at((3, 4)), rows_at((4, 5), (5, 6))]
    assert in_sql("sum(v) OVER AS s", batches[0], storage=storage) == [("a", 1), ("a", 3)]
    assert in_sql("sum((v)) OVER AS s", *batches[:2], storage=storage) == [("a", 6)]
    assert in_sql("sum(w) OVER AS s", *batches, storage=storage) == [("a", None), ("a", 500)]
    with pytest.raises(hf.JobRefused, match=r"keyed by \(k, 3 rows by at\)"):
        in_sql("sum(w) OVER AS s", *batches, storage=storage, window=WINDOW.replace("at", "date_trunc('day', at)"))


@pytest.mark.parametrize(
    ("item", "given"),
    [
        ("count_if(v > 1) OVER AS s", [0, 1, 2]),
        ("count_if(v > 1) FILTER (WHERE w < 300) OVER AS s", [0, 1, 1]),
        ("count(*) FILTER (WHERE v > 1) OVER AS s", [0, 1, 2]),
        ("count(1) OVER", [1, 2, 3]),
        ("sum(w) FILTER (WHERE v <> 2) OVER AS s", [100, 100, 400]),
        ("sum(v * 1.5D) OVER", [1.5, 4.5, 9.0]),
        ("sum(v * 2) OVER AS `a.b`", [2, 6, 12]),
        ("avg(v) OVER AS __mean", [1.0, 1.5, 2.0]),
        ("v + 1 AS v, w AS at, sum(v) OVER AS s", [1, 3, 6]),
    ],
)
def test_in_sql_a_value_may_be_any_expression_and_have_any_name(item: str, given: list[Any]) -> None:
    assert [row[-1] for row in in_sql(item, rows_at((1, 2), (0, 1), (2, 3)), Eof(drain=True))] == given


@pytest.mark.parametrize(
    ("item", "window", "problem"),
    [
        ("sum(v) IGNORE NULLS OVER AS s", WINDOW, "IGNORE NULLS and RESPECT NULLS are not supported"),
        ("sum(v ORDER BY at) OVER AS s", WINDOW, "DISTINCT and ORDER BY are not supported"),
        ("v, sum(v) OVER AS v", WINDOW, "two columns have the same name"),
        ("sum(k) OVER AS s", WINDOW, r"aggregate 's' is sum\(k\), and column 'k' has type string"),
        ("sum(v) OVER AS s", WINDOW.replace("2", "1.5"), "expected a whole number of rows, up to 10,000"),
        (
            "sum(v) OVER AS s",
            WINDOW.replace("2 PRECEDING", "BETWEEN 2 PRECEDING AND CURRENT ROW EXCLUDE CURRENT ROW"),
            "EXCLUDE is not supported",
        ),
    ],
)
def test_what_sql_does_not_take_over_rows_is_refused_by_name(item: str, window: str, problem: str) -> None:
    with pytest.raises(hf.JobRefused, match=problem):
        in_sql(item, rows_at((0, 1)), window=window)


def test_a_waiting_row_whose_sum_does_not_fit_can_be_put_aside_at_a_later_start(tmp_path: Path) -> None:
    storage, rows = new_storage(), rows_at((0, 2**62), (1, 2**62), (2, 1))
    steps: list[Any] = [[{**row, "w": None} for row in rows], Eof(drain=True)]

    def started(*steps: Any, **settings: Any) -> list[tuple[Any, ...]]:
        job, sink = new_job(storage, checkpoint=SOON, **settings), hf.MemorySink(name="sink")
        read = job.read(script(*steps, schema="k STRING, at TIMESTAMP, v BIGINT, w BIGINT", name="rows"))
        read.with_watermark("at", "1h").key_by("k").over(by="at", rows=2, s=hf.sum("v"), name="over").write(sink)
        run(job)
        return tuples(sink)

    assert started(steps[0]) == []
    for _ in range(2):
        with pytest.raises(hf.QueryFailed, match=r"does not fit int64 .*, k a, at 2026-01-01T00:01"):
            started(*steps)
    letters = {"bad_records": "dead_letter", "dead_letters": f"file://{tmp_path}/letters"}
    assert [row[-1] for row in started(*steps, **letters)] == [2**62, 2**62 + 1]


def test_what_over_refuses() -> None:
    stream = new_job().read(script([], schema=to_arrow_schema(ROWS))).with_watermark("at", "5s")
    with pytest.raises(hf.SettingsError, match="over\\(\\) does not work behind a window"):
        stream.key_by("k", hf.window("at", "10s")).over(by="at", rows=3, n=hf.count())
    with pytest.raises(hf.SettingsError, match=r"over\(by=\(None,\)\): expected the name of a timestamp column"):
        stream.key_by("k").over(by=None, rows=3, n=hf.count())  # type: ignore[arg-type]
    with pytest.raises(hf.SettingsError, match=r"over\(\) got nothing to compute"):
        stream.key_by("k").over(by="at", rows=3)
    with pytest.raises(hf.SettingsError, match="rows= is a parameter of over"):
        stream.key_by("k").over(by="at", rows=hf.count())
    with pytest.raises(hf.SettingsError, match="the aggregates over rows are count, sum, mean, min, max"):
        stream.key_by("k").over(by="at", rows=3, first=hf.first("v"))
