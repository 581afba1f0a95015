"""Aggregates have Spark SQL's types, nulls and values for the same rows."""

import math
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import TestSource, run

ROWS = [
    (1, 1.0, 1, "b"),
    (1, math.nan, 2, "a"),
    (1, -0.0, 3, None),
    (1, 0.0, None, "b"),
    (1, None, 5, "c"),
    (2, None, None, None),
    (3, 7.0, None, "x"),
    (4, 2.0, 1, ""),
    (4, 3.5, 2, "y"),
    (4, 8.25, 3, "y"),
]
SQL = {
    "n": "count(*)",
    "least": "min(v)",
    "most": "max(v)",
    "mean": "avg(v)",
    "dev": "stddev(v)",
    "var": "variance(v)",
    "dev_w": "stddev(w)",
    "best": "max_by(v, w)",
    "worst": "min_by(s, w)",
    "every": "sort_array(collect_list(s))",
    "some": "sort_array(collect_set(v))",
    "distinct": "count(distinct v)",
    "distinct_s": "count(distinct s)",
    "big": "count_if(v > 1)",
}
AGGREGATES = {
    "n": hf.count(),
    "least": hf.min("v"),
    "most": hf.max("v"),
    "mean": hf.mean("v"),
    "dev": hf.stddev("v"),
    "var": hf.variance("v"),
    "dev_w": hf.stddev("w"),
    "best": hf.max_by("v", "w"),
    "worst": hf.min_by("s", "w"),
    "every": hf.collect_list("s"),
    "some": hf.collect_set("v"),
    "distinct": hf.count_distinct("v"),
    "distinct_s": hf.count_distinct("s"),
    "big": hf.count(where="big"),
}
SCHEMA = "k INT, v DOUBLE, w INT, s STRING"


def shown(value: Any) -> Any:
    """Comparable: NaN as a word, zero without a sign, lists in order."""
    if isinstance(value, list):
        return sorted(map(shown, value), key=str)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else round(value, 12) + 0.0
    return value


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_they_are_those_of_spark_sql(spark: Any) -> None:
    expressions = ", ".join(f"{text} AS {name}" for name, text in SQL.items())
    spark.createDataFrame(ROWS, SCHEMA).createOrReplaceTempView("rows_of_aggregates")
    frame = spark.sql(f"SELECT k, {expressions} FROM rows_of_aggregates GROUP BY k ORDER BY k")
    rows = [
        {"k": k, "v": v, "w": w, "s": s, "big": None if v is None else v > 1 or math.isnan(v)} for k, v, w, s in ROWS
    ]
    sink = hf.MemorySink()
    job = hf.Job(None, name="aggregates", storage="memory://spark-aggregates")
    stream = job.read(TestSource([rows], f"{SCHEMA}, big BOOLEAN"))
    stream.key_by("k").aggregate(**AGGREGATES).write(sink)
    run(job)
    found = sorted(sink.rows(), key=lambda row: row["k"])
    expected = [row.asDict() for row in frame.collect()]
    assert [{name: shown(value) for name, value in row.items()} for row in found] == [
        {name: shown(value) for name, value in row.items()} for row in expected
    ]
    types = {"long": "int64", "double": "double", "string": "string"}
    for field in frame.schema.fields[1:]:
        of_sink = sink.table().schema.field(field.name)
        if field.dataType.typeName() in types:
            assert str(of_sink.type) == types[field.dataType.typeName()], field.name


@pytest.mark.spark
@pytest.mark.timeout(300)
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
