"""Rows divided by partition columns, and the Parquet bytes of each part.

Invariants: partition columns are in folder names (or add actions), never in the files; the division is
stable, so the same rows give the same files in the same order.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_ROW = "__holdfast_row"


class Part(NamedTuple):
    """Rows that share their partition values; the partition columns are no longer in `rows`."""

    values: dict[str, str | None]
    rows: pa.Table


def partition_differences(schema: pa.Schema, partition_by: Sequence[str]) -> list[str]:
    """What speaks against partitioning by these columns; empty where nothing does."""
    found = [f"partition column {name!r} is not in the stream" for name in partition_by if name not in schema.names]
    for name in partition_by:
        if name in schema.names and not _partitionable(schema.field(name).type):
            found.append(
                f"partition column {name!r} is {schema.field(name).type}; expected a string, integer, boolean or date "
                "(derive one in a transform)"
            )
    if partition_by and not set(schema.names) - set(partition_by):
        found.append("every column is a partition column; at least one has to stay in the files")
    if len(set(partition_by)) != len(partition_by):
        found.append(f"partition_by={tuple(partition_by)} names a column twice")
    return found


def _partitionable(kind: pa.DataType) -> bool:
    string = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(string or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind))


def divide(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[Part]:
    """The parts in order of their first row; the order of rows within a part is kept."""
    if not partition_by:
        yield Part({}, rows)
        return
    keys = pa.table([rows.column(name) for name in partition_by], names=list(partition_by))
    numbered = keys.append_column(_ROW, pa.array(np.arange(len(keys))))
    grouped = numbered.group_by(list(partition_by), use_threads=False).aggregate([(_ROW, "list")])
    kept = rows.drop_columns(list(partition_by))
    values = [_as_text(grouped.column(name)) for name in partition_by]
    for index, members in enumerate(grouped.column(f"{_ROW}_list").combine_chunks()):
        named = {name: texts[index] for name, texts in zip(partition_by, values, strict=True)}
        yield Part(named, kept.take(members.values))


def _as_text(column: pa.ChunkedArray) -> list[str | None]:
    texts: list[str | None] = pc.cast(column, pa.string()).to_pylist()
    return texts


def folder(values: dict[str, str | None]) -> str:
    """The folders as Hive names them, with a slash at the end; empty for a table without partitions."""
    return "".join(f"{quote(name, safe='')}={_segment(value)}/" for name, value in values.items())


def _segment(value: str | None) -> str:
    return NULL_PARTITION if value is None else quote(value, safe="")


def parquet_bytes(rows: pa.Table) -> bytes:
    """The rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="snappy")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def parquet_refusal(schema: pa.Schema) -> str | None:
    """Why Parquet cannot hold such rows; None where it can."""
    try:
        pq.write_table(schema.empty_table(), pa.BufferOutputStream())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        return str(error)
    return None
