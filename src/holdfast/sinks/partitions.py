"""Rows divided by partition columns, and the Parquet bytes of each part.

Invariants: partition columns are in folder names (or add actions), never in the files; the division is stable, so that
the same rows give the same files in the same order. Folders are named as Spark names them, so that Spark, Arrow, DuckDB
and delta-rs read every value back: an empty string is null, as it is for Spark and in Delta's protocol; a value that
would be read back as null, or is too long for a name, is refused before it is staged (`unwritable`).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.casts import cast_in_range
from holdfast.sources.files.hive import NULL_PARTITION

SEGMENT_BYTES_MAX = 255
"""Bound on a folder's name in bytes, from the file systems in use."""

FOLDERS_BYTES_MAX = 700
"""Bound in bytes on all folder names of a file together, since an object's key, with the paths of table and file, has
at most 1,024 bytes."""

_ESCAPED = re.compile(r"(?![A-Za-z0-9_.-])[\x00-\x7F]")
_PLAIN_RE2 = r"[A-Za-z0-9_.-]"
_ESCAPED_RE2 = r"[\x00-,/:-@\[-^`{-\x7F]"
"""Characters that are written as they are, and ASCII characters that are escaped, as patterns for Arrow's kernels."""

_ROW = "__holdfast_row"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Days since 1970 of the first and last day of the years 1 to 9999; readers cannot read other dates."""


class Part(NamedTuple):
    """Rows that share their partition values; the partition columns are no longer in `rows`."""

    values: dict[str, str | None]
    rows: pa.Table


def partition_differences(schema: pa.Schema, partition_by: Sequence[str]) -> list[str]:
    """Reasons against partitioning by these columns; empty if there are none."""
    found = [f"partition column {name!r} is not in the stream" for name in partition_by if name not in schema.names]
    for name in partition_by:
        if name in schema.names and not _partitionable(schema.field(name).type):
            found.append(
                f"partition column {name!r} is {schema.field(name).type}; expected a string, integer, boolean or date "
                "(derive such a column in a transform)"
            )
    if partition_by and not set(schema.names) - set(partition_by):
        found.append("every column is a partition column; at least one column has to stay in the files")
    if len(set(partition_by)) != len(partition_by):
        found.append(f"partition_by={tuple(partition_by)} names a column twice")
    return found


def _partitionable(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind))


def divide(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[Part]:
    """Divide rows by partition. Parts come in order of their first row; the order of rows within a part is kept."""
    if not partition_by:
        yield Part({}, rows)
        return
    rows = empty_partitions_to_null(rows, partition_by)
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


def empty_partitions_to_null(rows: pa.Table, partition_by: Sequence[str]) -> pa.Table:
    """Replace the empty strings of partition columns with null: a folder's name cannot distinguish the two."""
    for name in partition_by:
        index = rows.schema.get_field_index(name)
        kind = rows.schema.field(index).type
        if _is_text(kind):
            column = rows.column(index)
            nulled = pc.if_else(pc.equal(column, pa.scalar("", kind)), pa.scalar(None, kind), column)
            rows = rows.set_column(index, pa.field(name, kind), nulled)
    return rows


def unwritable(rows: pa.RecordBatch, partition_by: Sequence[str], *, escapes_unicode: bool = False) -> dict[int, str]:
    """Numbers of rows whose partition values no reader could read back, each with the reason.

    `escapes_unicode`: another writer may name the folders, and write every byte outside of ASCII as `%xx`.
    """
    found: dict[int, str] = {}
    total = np.zeros(rows.num_rows, np.int64)
    for name in partition_by:
        column = rows.column(name)
        about = f"partition column {name}: the value is"
        if pa.types.is_date32(column.type):
            days = column.cast(pa.int32())
            outside = pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))
            _note(found, outside, f"{about} not in the years 1 to 9999")
        elif _is_text(column.type):
            lengths = len(f"{_escape(name)}=".encode()) + _escaped_bytes(column, escapes_unicode)
            total += lengths + 1
            _note(
                found,
                pc.equal(column, pa.scalar(NULL_PARTITION, column.type)),
                f"{about} the text that stands for null",
            )
            too_long = f"{about} too long: the name of its folder has more than {SEGMENT_BYTES_MAX} bytes"
            _note(found, pa.array(lengths > SEGMENT_BYTES_MAX), too_long)
    together = f"partition columns {', '.join(partition_by)}: the names of the folders have more than"
    _note(found, pa.array(total > FOLDERS_BYTES_MAX), f"{together} {FOLDERS_BYTES_MAX} bytes together")
    return found


def _escaped_bytes(column: pa.Array, escapes_unicode: bool) -> npt.NDArray[np.int64]:
    """Bytes of each text in a folder's name; nulls and empty texts are shorter than any bound."""
    length = pc.binary_length(column)
    if escapes_unicode:
        escaped = pc.subtract(length, pc.count_substring_regex(column, _PLAIN_RE2))
    else:
        escaped = pc.count_substring_regex(column, _ESCAPED_RE2)
    found: npt.NDArray[np.int64] = pc.fill_null(pc.add(length, pc.multiply(escaped, 2)), 0).cast(pa.int64()).to_numpy()
    return found


def _note(found: dict[int, str], wrong: Any, reason: str) -> None:
    for number in np.flatnonzero(pc.fill_null(wrong, False).to_numpy(zero_copy_only=False)).tolist():
        found.setdefault(number, reason)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def folder(values: dict[str, str | None]) -> str:
    """Path of folders as Hive names them, with a slash at the end; empty for a table without partitions."""
    named = ((_escape(name), NULL_PARTITION if value is None else _escape(value)) for name, value in values.items())
    return "".join(f"{name}={value}/" for name, value in named)


def _escape(text: str) -> str:
    """Escape ASCII characters as `%xx`. Spark reads `%xx` back as the character of that number, so other characters
    stay."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def parquet_bytes(rows: pa.Table) -> bytes:
    """Encode the rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="snappy")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unstorable(rows: pa.RecordBatch) -> dict[int, str]:
    """Return the numbers of rows with a value that Parquet's type for its column cannot hold, each with the reason."""
    found: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        stored = _stored_type(column.type)
        outside = None if stored == column.type else cast_in_range(column, stored).outside
        if outside is not None:
            _note(found, pa.array(outside), f"column {name!r} ({column.type}) has a value that Parquet cannot hold")
    return found


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Parquet stores values: it has no times in seconds, and days have no milliseconds."""
    types = pa.types
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    if types.is_date64(kind):
        return pa.date32()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_stored_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(kind.key_field.with_type(_stored_type(kind.key_type)), _stored_type(kind.item_type))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored_type(kind.value_type)))
    return kind


def parquet_refusal(schema: pa.Schema) -> str | None:
    """Reason why Parquet cannot hold rows of the schema; None if it can."""
    try:
        pq.write_table(schema.empty_table(), pa.BufferOutputStream())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        return str(error)
    return None
