"""Transforms (`DataFrame -> DataFrame`): analysed once at `start()`, and refused there if they cannot be repeated.

A transform runs inside a single-stage job, on rows that a retry must give again. So no shuffle, no other number
of partitions, nothing nondeterministic. What it reads besides must be broadcast.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import JobRefused

_PARTITIONS = 3
_CLOCKS = {"CurrentTimestamp", "CurrentDate", "Now", "LocalTimestamp", "CurrentTime", "CurDateExpressionBuilder"}


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of an Arrow schema; refuses types that Spark does not have."""
    try:
        return from_arrow_schema(schema)
    except Exception as error:
        raise JobRefused(
            f"Spark has no type for a column of {schema}: {error}. Cast it with map_batches first"
        ) from error


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def analyse_transform(spark: SparkSession, fn: Callable[[Any], Any], schema: pa.Schema) -> pa.Schema:
    """The schema that `fn` gives for rows of `schema`. Raises `JobRefused` naming what cannot run."""
    name = getattr(fn, "__name__", repr(fn))
    before = spark.range(0, _PARTITIONS, 1, _PARTITIONS).mapInArrow(_pass_on, spark_schema(schema))
    try:
        after = fn(before)
    except Exception as error:
        raise JobRefused(f"transform({name}) raised {type(error).__name__} when it was analysed: {error}") from error
    if not isinstance(after, DataFrame):
        raise JobRefused(f"transform({name}) returned a {type(after).__name__}; it must return a DataFrame")
    execution = after._jdf.queryExecution()
    _refuse_nondeterminism(name, execution.analyzed())
    _refuse_shuffles(name, execution.executedPlan())
    partitions = execution.executedPlan().outputPartitioning().numPartitions()
    if partitions not in (0, _PARTITIONS):
        raise JobRefused(
            f"transform({name}) changes the number of partitions from {_PARTITIONS} to {partitions}; "
            "leave out coalesce and union (Stream.union unites streams)"
        )
    return arrow_schema(after.schema)


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _refuse_shuffles(name: str, plan: Any) -> None:
    for node in _nodes(plan, below_broadcasts=False):
        kind = node.getClass().getSimpleName()
        if "Exchange" in kind and "Broadcast" not in kind:
            raise JobRefused(
                f"transform({name}) needs a shuffle ({node.simpleString(5)}); a transform sees one part of a batch at "
                "a time. Group by key with .key_by(...), join only what Spark can broadcast (functions.broadcast)"
            )


def _refuse_nondeterminism(name: str, plan: Any) -> None:
    for node in _nodes(plan):
        for expression in _items(node.expressions()):
            culprit = _nondeterministic(expression)
            if culprit is not None:
                raise JobRefused(
                    f"transform({name}) uses {culprit}, which gives another value when a batch is repeated; "
                    "take such values from the data, or the time of the batch from ctx.batch_time in a function"
                )


def _nondeterministic(expression: Any) -> str | None:
    for child in _items(expression.children()):
        found = _nondeterministic(child)
        if found is not None:
            return found
    if expression.getClass().getSimpleName() in _CLOCKS or not expression.deterministic():
        return str(expression.toString())
    return None


def _nodes(plan: Any, below_broadcasts: bool = True) -> Iterator[Any]:
    """The nodes of a plan; what is broadcast runs as a job of its own, before the stage."""
    yield plan
    if not below_broadcasts and "BroadcastExchange" in plan.getClass().getSimpleName():
        return
    for child in _items(plan.children()):
        yield from _nodes(child, below_broadcasts)


def _items(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
