"""Transforms (`DataFrame -> DataFrame`): analysed once at `start()`, and refused there if they cannot be repeated.

A transform runs inside a single-stage job, on rows that a retry must give again. Shuffles, changes of the number of
partitions, and nondeterminism are therefore refused. Other tables that a transform reads must be broadcast.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import JobRefused
from holdfast.sources.dataframe import DataFrameSource

_LANES = 3
_CLOCKS = {"CurrentTimestamp", "CurrentDate", "Now", "LocalTimestamp", "CurrentTime", "CurDateExpressionBuilder"}


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to Spark's; refuse types that Spark does not have."""
    try:
        return from_arrow_schema(schema)
    except Exception as error:
        raise JobRefused(
            f"Spark has no type for a column of {schema}: {error}. Cast it with map_batches first"
        ) from error


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def lanes(spark: SparkSession, count: int) -> DataFrame:
    """Make a DataFrame with a partition for each of `count` units of work, each with a single row.

    Spark does not know its size and takes it for huge: a join broadcasts the other side, never the stream.
    """
    rows = spark.range(0, count, 1, count)
    frame = spark._jsparkSession.createDataFrame(rows._jdf.toDF().javaRDD(), rows._jdf.schema())
    return DataFrame(frame, spark)


def analyse_transform(spark: SparkSession, fn: Callable[[Any], Any], schema: pa.Schema) -> pa.Schema:
    """Find the schema that `fn` gives for rows of `schema`. Raises `JobRefused` naming the parts that cannot run."""
    name = getattr(fn, "__name__", repr(fn))
    stream = lanes(spark, _LANES)
    before = stream.mapInArrow(_pass_on, spark_schema(schema))
    try:
        after = fn(before)
    except Exception as error:
        raise JobRefused(f"transform({name}) raised {type(error).__name__} when it was analysed: {error}") from error
    if not isinstance(after, DataFrame):
        raise JobRefused(f"transform({name}) returned a {type(after).__name__}; it must return a DataFrame")
    if after.isStreaming:
        raise JobRefused(f"transform({name}) returned a streaming DataFrame; it must return a batch DataFrame")
    execution = after._jdf.queryExecution()
    _refuse_nondeterminism(name, execution.analyzed())
    _refuse_other_partitions(name, execution.executedPlan(), _identity(stream._jdf.queryExecution().analyzed()))
    return arrow_schema(after.schema)


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _identity(node: Any) -> int:
    """Identify the stream's own leaf among others: Spark numbers every column anew."""
    output = node.output()
    return int(output.apply(0).exprId().id()) if output.size() else -1


def _refuse_other_partitions(name: str, plan: Any, stream: int) -> None:
    """Refuse a plan in which a partition of the result does not come only from the same partition of the stream."""
    for node in _nodes(plan, below_broadcasts=False):
        kind = node.getClass().getSimpleName()
        if "Exchange" in kind and "Broadcast" not in kind:
            raise JobRefused(
                f"transform({name}) needs a shuffle ({node.simpleString(5)}); a transform sees a part of a batch at "
                "a time. Group by key with .key_by(...), join only a table that Spark broadcasts (functions.broadcast)"
            )
    if plan.getClass().getSimpleName() == "LocalTableScanExec" and plan.rows().isEmpty():
        return
    leaves = [node for node in _nodes(plan, below_broadcasts=False) if not node.children().size()]
    others = [node.simpleString(5) for node in leaves if _identity(node) != stream]
    if others or len(leaves) != 1:
        raise JobRefused(
            f"transform({name}) must take its rows from the DataFrame it is given, once, and may otherwise read "
            f"broadcast tables only; found {'; '.join(others) or 'that DataFrame broadcast or cached'}. Unite streams "
            "with Stream.union, join tables as functions.broadcast(table) on the right of a left or inner join, and do "
            "not cache the DataFrame"
        )
    found = plan.outputPartitioning().numPartitions()
    if found:
        raise JobRefused(
            f"transform({name}) changes the number of partitions ({plan.simpleString(5)} makes {found}), and so brings "
            "together rows that different tasks read; leave out coalesce, limit and tail"
        )


def _refuse_nondeterminism(name: str, plan: Any) -> None:
    for node in _nodes(plan, subqueries=True):
        culprits = [_nondeterministic(expression) for expression in _items(node.expressions())]
        if node.getClass().getSimpleName() == "Sample":
            culprits.append("sample")
        for culprit in culprits:
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


def _nodes(plan: Any, below_broadcasts: bool = True, subqueries: bool = False) -> Iterator[Any]:
    """Yield the nodes of a plan. Broadcast tables are computed by jobs of their own, before the stage."""
    yield plan
    if not below_broadcasts and "BroadcastExchange" in plan.getClass().getSimpleName():
        return
    for child in _items(plan.children()):
        yield from _nodes(child, below_broadcasts, subqueries)
    if subqueries:
        for query in _items(plan.subqueries()):
            yield from _nodes(query, below_broadcasts, subqueries)


def _items(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def declared_rows(source: DataFrameSource, rows: Any) -> DataFrame:
    """Select the declared columns from the rows of a source's `read`. Raises `JobRefused` if `read` gave other columns
    or types."""
    declared = spark_schema(source.schema())
    found = rows.schema if isinstance(rows, DataFrame) else None
    if found is None:
        raise JobRefused(f"{source!r}: read(spark, start, end) returned a {type(rows).__name__}, not a DataFrame")
    types = {field.name: field.dataType for field in found}
    wrong = [field.name for field in declared if types.get(field.name) != field.dataType]
    if wrong:
        raise JobRefused(
            f"{source!r}: read(spark, start, end) gave ({found.simpleString()}), declared is "
            f"({declared.simpleString()}): {', '.join(wrong)} differ; cast them, or correct schema="
        )
    return rows.select(*declared.names)
