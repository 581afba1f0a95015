"""Aggregates, greatest rows and windows have Spark SQL's types, nulls and values for the same rows."""

import math
from decimal import Decimal
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import TestSource, run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = [
    (1, 1.0, 1, "b", Decimal("1.50")),
    (1, math.nan, 2, "a", Decimal("-2.25")),
    (1, -0.0, 3, None, None),
    (1, 0.0, None, "b", Decimal("1.50")),
    (1, None, 5, "c", Decimal("0.00")),
    (2, None, None, None, None),
    (3, 7.0, None, "x", Decimal("99999999.99")),
    (4, 2.0, 1, "", Decimal("99999999.99")),
    (4, 3.5, 2, "y", Decimal("99999999.98")),
    (4, 8.25, 3, "y", Decimal("-0.01")),
]
AGGREGATES = {
    "count(*)": hf.count(),
    "count(s)": hf.count("s"),
    "min(v)": hf.min("v"),
    "max(v)": hf.max("v"),
    "min(s)": hf.min("s"),
    "max(d)": hf.max("d"),
    "sum(v)": hf.sum("v"),
    "sum(w)": hf.sum("w"),
    "sum(d)": hf.sum("d"),
    "avg(v)": hf.mean("v"),
    "avg(w)": hf.mean("w"),
    "CAST(avg(d) AS DOUBLE)": hf.mean("d"),
    "stddev(v)": hf.stddev("v"),
    "variance(v)": hf.variance("v"),
    "stddev(w)": hf.stddev("w"),
    "variance(d)": hf.variance("d"),
    "max_by(v, w)": hf.max_by("v", "w"),
    "min_by(s, w)": hf.min_by("s", "w"),
    "max_by(d, v)": hf.max_by("d", "v"),
    "sort_array(collect_list(s))": hf.collect_list("s"),
    "sort_array(collect_set(v))": hf.collect_set("v"),
    "sort_array(collect_set(d))": hf.collect_set("d"),
    "count(DISTINCT v)": hf.count_distinct("v"),
    "count(DISTINCT s)": hf.count_distinct("s"),
    "count(DISTINCT d)": hf.count_distinct("d"),
    "approx_count_distinct(v)": hf.approx_count_distinct("v"),
    "approx_count_distinct(d)": hf.approx_count_distinct("d"),
    "count_if(big)": hf.count(where="big"),
    "count(s) FILTER (WHERE big)": hf.count("s", where="big"),
    "sum(d) FILTER (WHERE big)": hf.sum("d", where="big"),
}
"""Spark SQL's expression and ours."""
SCHEMA = "k INT, v DOUBLE, w INT, s STRING, d DECIMAL(10, 2), big BOOLEAN, n INT"
TYPES = {"bigint": "int64", "double": "double", "string": "string", "decimal(10,2)": "decimal128(10, 2)"}
TYPES |= {"decimal(20,2)": "decimal128(20, 2)", "array<string>": "list<element: string not null>"}
TYPES |= {"array<double>": "list<element: double not null>"}
TYPES |= {"array<decimal(10,2)>": "list<element: decimal128(10, 2) not null>"}


def rows() -> list[dict[str, Any]]:
    """The rows with their number `n`, and whether their value is `big` as Spark compares."""
    names = ("k", "v", "w", "s", "d", "big", "n")
    return [
        dict(zip(names, (*row, None if row[1] is None else row[1] > 1 or math.isnan(row[1]), n), strict=True))
        for n, row in enumerate(ROWS)
    ]


def in_spark(spark: Any) -> None:
    """Make the view `given` of the rows."""
    spark.createDataFrame([tuple(row.values()) for row in rows()], SCHEMA).createOrReplaceTempView("given")


def keyed(batches: int, combine: bool, storage: str) -> tuple[hf.Job, Any]:
    """A job over the rows in so many batches."""
    job = hf.Job(None, name="aggregates", storage=f"memory://spark-{storage}-{batches}-{combine}", combine=combine)
    size = -(-len(ROWS) // batches)
    steps = [rows()[start : start + size] for start in range(0, len(ROWS), size)]
    return job, job.read(TestSource(steps, SCHEMA)).key_by("k")


def shown(value: Any) -> Any:
    """Comparable: NaN as a word, zero without a sign, nine digits of doubles, lists in order."""
    if isinstance(value, list):
        return sorted(map(shown, value), key=str)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.9g}") + 0.0
    return value


def all_shown(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: shown(value) for name, value in row.items()} for row in given]


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("combine", [True, False], ids=["combined", "as they are"])
def test_they_are_those_of_spark_sql(spark: Any, combine: bool, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.functions.aggregates.combining.SAMPLE_ROWS", 2)
    in_spark(spark)
    named = {f"a{place}": text for place, text in enumerate(AGGREGATES)}
    expressions = ", ".join(f"{text} AS {name}" for name, text in named.items())
    frame = spark.sql(f"SELECT k, {expressions} FROM given GROUP BY k ORDER BY k")
    sink = hf.MemorySink()
    job, stream = keyed(batches, combine, "aggregates")
    stream.aggregate(**{name: AGGREGATES[text] for name, text in named.items()}).write(sink)
    run(job)
    newest = {row["k"]: row for row in sink.rows()}
    found = [newest[k] for k in sorted(newest)]
    expected = [row.asDict() for row in frame.collect()]
    assert all_shown(found) == all_shown(expected), named
    for field in frame.schema.fields[1:]:
        of_sink = sink.table().schema.field(field.name)
        assert str(of_sink.type) == TYPES[field.dataType.simpleString()], named[field.name]


@pytest.mark.parametrize("column", ["v", "w", "s", "d"])
@pytest.mark.parametrize("combine", [True, False], ids=["combined", "as they are"])
def test_the_greatest_and_the_last_rows_are_those_of_spark_sql(
    spark: Any, combine: bool, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.functions.aggregates.combining.SAMPLE_ROWS", 2)
    in_spark(spark)
    job, stream = keyed(2, combine, f"greatest-{column}")
    greatest, last = hf.MemorySink(), hf.MemorySink()
    stream.top(2, by=column).write(greatest)
    stream.last(by=column).write(last)
    run(job)
    ranked = "row_number() OVER (PARTITION BY k ORDER BY {} DESC, n {}) AS rank"
    for sink, order, most in ((greatest, "ASC", 2), (last, "DESC", 1)):
        frame = spark.sql(f"SELECT k, rank, n FROM (SELECT *, {ranked.format(column, order)} FROM given) q")
        newest = {(row["k"], row.get("rank", 1)): row["n"] for row in sink.rows()}
        assert newest == {(row.k, row.rank): row.n for row in frame.collect() if row.rank <= most}


@pytest.mark.parametrize("kind, value", [("BIGINT", 2**63 - 1), ("DECIMAL(38, 0)", Decimal(10**38 - 1))])
def test_a_sum_that_spark_sql_refuses_is_refused(spark: Any, kind: str, value: Any) -> None:
    given = [{"k": 1, "v": value}, {"k": 1, "v": value}]
    frame = spark.createDataFrame([tuple(row.values()) for row in given], f"k INT, v {kind}")
    with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
        frame.groupBy("k").sum("v").collect()
    job = hf.Job(None, name="overflow", storage=f"memory://spark-overflow-{kind[:3]}")
    job.read(TestSource([given], f"k INT, v {kind}")).key_by("k").aggregate(total=hf.sum("v")).write(hf.NoopSink())
    with pytest.raises(hf.QueryFailed, match=r"aggregate 'total' = sum\(v\) does not fit"):
        run(job)


@pytest.mark.parametrize("window", ["window(at, '10 seconds', '4 seconds')", "session_window(at, '10 seconds')"])
def test_windows_are_those_of_spark_sql(spark: Any, window: str) -> None:
    seconds = [0, 3, 9.999999, 10, 20, 21, 31.5, 100, 110, 120.000001]
    values = ", ".join(
        f"({number % 2}, TIMESTAMP'1970-01-01 00:00:00Z' + INTERVAL {second} SECONDS)"
        for number, second in enumerate(seconds)
    )
    frame = spark.sql(
        f"SELECT k, w.start AS window_start, w.end AS window_end, count(*) AS n "
        f"FROM (SELECT k, {window} AS w FROM VALUES {values} AS rows(k, at)) GROUP BY k, w"
        if window.startswith("window")
        else f"SELECT k, session_window.start AS window_start, session_window.end AS window_end, count(*) AS n "
        f"FROM VALUES {values} AS rows(k, at) GROUP BY k, {window}"
    )
    declared = hf.window("at", "10s", "4s") if window.startswith("window") else hf.session_window("at", "10s")
    from holdfast.testing import Eof

    rows = [row.asDict() for row in spark.sql(f"SELECT * FROM VALUES {values} AS rows(k, at)").collect()]
    for row in rows:
        row["at"] = row["at"].astimezone()
    sink = hf.MemorySink()
    job = hf.Job(None, name="windows", storage=f"memory://spark-{declared}".replace(" ", ""))
    stream = job.read(TestSource([rows[:4], rows[4:], Eof(drain=True)], "k INT, at TIMESTAMP")).with_watermark(
        "at", "1h"
    )
    stream.key_by("k", declared).aggregate(n=hf.count()).write(sink)
    run(job)
    found = sorted(
        (row["k"], row["window_start"].timestamp(), row["window_end"].timestamp(), row["n"]) for row in sink.rows()
    )
    expected = sorted(
        (row.k, row.window_start.timestamp(), row.window_end.timestamp(), row.n) for row in frame.collect()
    )
    assert found == expected
