"""Transforms (`DataFrame -> DataFrame`). They are analysed once at `start()`, which refuses those that cannot be
repeated.

A transform runs inside a single-stage job, on rows that a retry must produce again. Shuffles, changes of the number of
partitions, and nondeterminism are therefore refused. Other tables that a transform reads must be broadcast.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import JobRefused
from holdfast.sources.dataframe import DataFrameSource
from holdfast.spark.host import SparkHost

_LANES = 3


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to Spark's schema; refuse types that Spark does not have."""
    try:
        return from_arrow_schema(schema)
    except Exception as error:
        raise JobRefused(
            f"Spark has no type for a column of {schema}: {error}. Cast it with map_batches first"
        ) from error


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def analyse_transform(host: SparkHost, fn: Callable[[Any], Any], schema: pa.Schema) -> pa.Schema:
    """Return the schema that `fn` gives for rows of `schema`. Raises `JobRefused` naming the parts that cannot run."""
    name = getattr(fn, "__name__", repr(fn))
    stream = host.lanes(_LANES)
    before = stream.mapInArrow(_pass_on, spark_schema(schema))
    try:
        after = fn(before)
    except Exception as error:
        raise JobRefused(f"transform({name}) raised {type(error).__name__} when it was analysed: {error}") from error
    if not isinstance(after, DataFrame):
        raise JobRefused(f"transform({name}) returned a {type(after).__name__}; it must return a DataFrame")
    if after.isStreaming:
        raise JobRefused(f"transform({name}) returned a streaming DataFrame; it must return a batch DataFrame")
    host.check_transform(name, stream, after)
    return arrow_schema(after.schema)


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


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
