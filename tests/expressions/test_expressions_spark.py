"""Expressions give the same answers as Spark: each of the table is compared with Spark over generated values."""

from collections.abc import Iterator
from typing import Any

import pytest
from expression_cases_kit import cases, quick_cases
from expression_spark_model import differences, here, in_spark
from expression_values_kit import generated

from holdfast.expressions.declared import SqlExpression
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


def test_a_column_of_pyspark_is_the_same_expression(spark: Any) -> None:
    from pyspark.sql import functions as F

    from holdfast.expressions.declared import declared

    row = {"i": 3, "s": "it's", "arr": [1, 2], "r": {"x": 5}, "m": [("k", 1)]}
    import pyarrow as pa

    kinds = {"i": pa.int64(), "s": pa.string(), "arr": pa.list_(pa.int32()), "r": pa.struct([("x", pa.int32())])}
    kinds["m"] = pa.map_(pa.string(), pa.int32())
    rows = pa.RecordBatch.from_pylist([row], schema=pa.schema(list(kinds.items())))
    frame = spark.createDataFrame(pa.Table.from_batches([rows]))
    columns = [
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
    ]
    expected = frame.select(*columns).toArrow()
    for column, answer in zip(columns, expected.columns, strict=True):
        made = declared(column, SqlSettings(), "test")
        assert isinstance(made, SqlExpression)
        bound = made.bound(rows.schema)
        assert (bound.type, bound(rows).to_pylist()) == (answer.type, answer.to_pylist()), made.text
