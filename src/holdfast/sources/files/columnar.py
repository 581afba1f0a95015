"""Parquet and Arrow files: rows `[start, stop)` of one file, and what planning must know of it.

Owns neither discovery nor policy; an unreadable file is a `BadRecord` that names it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from holdfast.errors import BadRecord, StorageError
from holdfast.sources.files.trees import FileInfo, FileTree

BATCH_ROWS = 131_072


class ColumnarShape(NamedTuple):
    """How many rows, how many bytes they take when read, and after which rows a stored group ends."""

    rows: int
    memory_bytes: int
    group_ends: list[int]


@contextmanager
def readable(file: FileInfo, what: str) -> Iterator[None]:
    """Names the file in what PyArrow raises."""
    try:
        yield
    except (BadRecord, StorageError):
        raise
    except (pa.ArrowException, OSError, EOFError) as error:
        raise BadRecord(
            f"{file.path}: not a readable {what} file ({file.size} bytes): {error}: replace it under another name, "
            "or move it out of the folder"
        ) from error


def parquet_shape(tree: FileTree, file: FileInfo) -> ColumnarShape:
    with readable(file, "Parquet"), pq.ParquetFile(tree.open(file)) as opened:
        metadata = opened.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        return _shape([(group.num_rows, group.total_byte_size) for group in groups])


def parquet_schema(tree: FileTree, file: FileInfo) -> pa.Schema:
    with readable(file, "Parquet"), pq.ParquetFile(tree.open(file)) as opened:
        return opened.schema_arrow


def parquet_rows(
    tree: FileTree, file: FileInfo, columns: list[str], start: int, stop: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(row position, rows) pieces of `[start, stop)`, reading only the row groups that it touches."""
    with readable(file, "Parquet"), pq.ParquetFile(tree.open(file), pre_buffer=True) as opened:
        groups: list[int] = []
        first = position = 0
        for index in range(opened.metadata.num_row_groups):
            end = position + opened.metadata.row_group(index).num_rows
            if position < stop and end > start:
                first = position if not groups else first
                groups.append(index)
            position = end
        batches = opened.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns) if groups else iter(())
        yield from clip(batches, first, start, stop)


def arrow_shape(tree: FileTree, file: FileInfo) -> ColumnarShape:
    with readable(file, "Arrow"), tree.open(file) as opened:
        reader = ipc.open_file(opened)
        batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        return _shape([(batch.num_rows, batch.nbytes) for batch in batches])


def arrow_schema(tree: FileTree, file: FileInfo) -> pa.Schema:
    with readable(file, "Arrow"), tree.open(file) as opened:
        return ipc.open_file(opened).schema


def arrow_rows(
    tree: FileTree, file: FileInfo, columns: list[str], start: int, stop: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(row position, rows) pieces of `[start, stop)`."""
    with readable(file, "Arrow"), tree.open(file) as opened:
        reader = ipc.open_file(opened)
        batches = (reader.get_batch(index).select(columns) for index in range(reader.num_record_batches))
        yield from clip(batches, 0, start, stop)


def clip(
    batches: Iterator[pa.RecordBatch], position: int, start: int, stop: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The part of consecutive batches, the first at `position`, that lies in `[start, stop)`."""
    for batch in batches:
        low, high = max(start, position), min(stop, position + batch.num_rows)
        if low < high:
            yield low, batch.slice(low - position, high - low)
        position += batch.num_rows
        if position >= stop:
            return


def row_as_json(batch: pa.RecordBatch, index: int) -> str:
    row: dict[str, Any] = batch.slice(index, 1).to_pylist()[0]
    return json.dumps(row, default=str)


def _shape(groups: list[tuple[int, int]]) -> ColumnarShape:
    ends, rows = [], 0
    for count, _ in groups:
        rows += count
        ends.append(rows)
    return ColumnarShape(rows, sum(size for _, size in groups), ends)
