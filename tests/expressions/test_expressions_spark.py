"""Expressions give the same answers as Spark: each of the table is compared with Spark over generated values."""

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from expression_cases_kit import cases, quick_cases
from expression_spark_model import comparable, differences, here, in_spark, plain
from expression_values_kit import generated

from holdfast.expressions.declared import SqlExpression, declared
from holdfast.expressions.nodes import SqlSettings

pytestmark = pytest.mark.spark
ROWS = 60
ROWS_QUICK = 24
FAILED_ROWS = 3
"""Rows that fail, of an expression, for which Spark is asked, each by a query of its own."""
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""SqlSettings with which Spark does not compile hundreds of expressions, which takes it longer than all the rest."""


@pytest.fixture
def session(spark: Any) -> Iterator[Any]:
    """A session of its own, whose settings no other test sees."""
    own = spark.newSession()
    for name, value in INTERPRETED.items():
        own.conf.set(name, value)
    yield own


def compared(session: Any, some: list[tuple[str, str]], rows: int, settings: SqlSettings) -> list[str]:
    table = generated(rows)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    frame = session.createDataFrame(table).repartition(1)
    session.conf.unset("spark.sql.timestampType")
    session.conf.set("spark.sql.session.timeZone", settings.zone)
    session.conf.set("spark.sql.ansi.enabled", str(settings.ansi).lower())
    found = {text: here(text, table, settings) for _, text in some}
    refused = [f"{text}: {each.refused}" for text, each in found.items() if each.refused]
    answers = in_spark(frame, {text: each for text, each in found.items() if not each.refused})
    wrong = [differences(name, text, found[text], answers[text], table) for name, text in some if text in answers]
    return [*refused, *(each[0] for each in wrong if each)]


def test_functions_and_operators_give_the_answers_of_spark(session: Any) -> None:
    assert compared(session, quick_cases(), ROWS_QUICK, SqlSettings(True, "Europe/Berlin")) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("ansi", [True, False])
def test_all_expressions_give_the_answers_of_spark(session: Any, ansi: bool, zone: str) -> None:
    assert compared(session, cases(), ROWS, SqlSettings(ansi, zone)) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_rows_that_fail_here_fail_in_spark(session: Any) -> None:
    table, settings = generated(ROWS), SqlSettings(True, "UTC")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.ansi.enabled", "true")
    frame = session.createDataFrame(table.drop_columns(["y"])).repartition(1).cache()
    wrong = []
    for _, text in cases():
        failed = here(text, table, settings).failed
        # Bytes that are no UTF-8 fail here; Spark keeps them, and writes them as they are.
        if text == "cast(g as string)" or "y" in text.replace("year", "").replace("try", ""):
            continue
        refused_by_name = {row for row, reason in failed.items() if "not supported in expressions" in reason}
        for row in sorted(failed.keys() - refused_by_name)[:FAILED_ROWS]:
            try:
                given = frame.where(f"id = {row}").selectExpr(f"{text} as made").collect()
                wrong.append(f"{text}: {failed[row]} here, {given} in Spark")
            except Exception as error:
                assert "PARSE" not in str(error), text
    assert "\n".join(wrong) == ""


def columns_of(F: Any) -> list[Any]:
    """Columns made by the functions of a module: of the session with a JVM, or of Spark Connect's client."""
    return [
        (F.col("i") * 0.908).alias("a"),
        F.when(F.col("i") > 1, "it's \\ \n").otherwise(F.lit(None)).alias("b"),
        F.col("r").getField("x").alias("c"),
        F.col("m")["k"].alias("d"),
        F.transform("arr", lambda each: each + F.col("i")).alias("e"),
        F.col("i").cast("decimal(10,2)").alias("f"),
        (F.col("i").isin(1, 3) & ~F.col("s").like("a%")).alias("g"),
        F.concat_ws("-", "s", F.upper("s")).alias("h"),
        F.expr("i + 1 as j"),
        F.col("i").between(1, 2**40).alias("k"),
        F.lit(1.5).alias("l"),
        F.try_divide("i", F.lit(0)).alias("n"),
        F.col("`a.b`").alias("o"),
        F.col("r.x").alias("p"),
        (F.lit(dt.date(2024, 2, 29)) > F.lit(dt.date(1969, 12, 31))).alias("q"),
        F.lit(dt.datetime(2024, 2, 29, 1, 2, 3, 456)).alias("t"),
        F.lit(b"\x00\xff").alias("u"),
        F.lit(2**40).alias("v"),
        (-F.col("i")).alias("w"),
        F.col("s").isNull().alias("x"),
        F.col("i").eqNullSafe(F.lit(3)).alias("y"),
        F.aggregate("arr", F.lit(0), lambda a, b: a + b, lambda a: a * 2).alias("z"),
        F.lit(float("nan")).alias("aa"),
        F.col("s").substr(1, 2).alias("ab"),
        F.col("i").try_cast("string").alias("ac"),
        F.coalesce(F.lit(None).cast("int"), F.col("arr")[0]).alias("ad"),
        (F.col("i") % 2 == 1).alias("ae"),
        F.filter("arr", lambda each: each > 1).alias("af"),
        F.lit(Decimal("1.50")).alias("ag"),
        F.lit(True).alias("ah"),
        F.col("s").startswith("it").alias("ai"),
        F.call_function("upper", F.col("s")).alias("aj"),
        F.lit(-5).alias("ak"),
    ]


def test_columns_of_pyspark_are_the_same_expressions(spark: Any) -> None:
    from pyspark.sql import functions
    from pyspark.sql.connect import functions as of_connect

    row = {"i": 3, "s": "it's", "arr": [1, 2], "r": {"x": 5}, "m": [("k", 1)], "a.b": "dot"}
    kinds = {"i": pa.int64(), "s": pa.string(), "arr": pa.list_(pa.int32()), "r": pa.struct([("x", pa.int32())])}
    kinds |= {"m": pa.map_(pa.string(), pa.int32()), "a.b": pa.string()}
    rows = pa.RecordBatch.from_pylist([row], schema=pa.schema(list(kinds.items())))
    frame = spark.createDataFrame(pa.Table.from_batches([rows]))
    expected = frame.select(*columns_of(functions)).toArrow()
    zone = spark.conf.get("spark.sql.session.timeZone")
    for module in (functions, of_connect):
        for column, answer in zip(columns_of(module), expected.columns, strict=True):
            made = declared(column, SqlSettings(zone=zone), "test")
            assert isinstance(made, SqlExpression)
            bound = made.bound(rows.schema)
            if "1.50" not in made.text:  # The server of Spark Connect gives it more digits.
                assert plain(bound.type) == plain(answer.type), made.text
            assert str(comparable(bound(rows))) == str(comparable(answer)), made.text
