"""Parquet and Arrow files: rows `[start, stop)` of a file, and its size for planning."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from holdfast.errors import BadRecord, StorageError
from holdfast.sources.files.file_format import BadPiece, FileFormat, FileShape, Piece
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, check_columns, check_types, conform, forbidden_nulls

BATCH_ROWS = 131_072
"""Rows of an Arrow batch that a task reads. A higher value needs more memory in each task."""

PlacedRows = Iterator[tuple[int, pa.RecordBatch]]
"""(row position, rows) pairs."""


class ColumnarFormat(FileFormat):
    """A format that stores rows in groups, by columns. Positions are row numbers."""

    def read(
        self, tree: FileTree, file: FileInfo, start: int, stop: int, schema: pa.Schema, policy: EvolutionPolicy
    ) -> Iterator[Piece]:
        return self.read_columns(tree, file, start, stop, schema, policy, schema.names)

    def read_columns(
        self,
        tree: FileTree,
        file: FileInfo,
        start: int,
        stop: int,
        schema: pa.Schema,
        policy: EvolutionPolicy,
        columns: Sequence[str],
    ) -> Iterator[Piece]:
        found = self.infer(tree, file)
        check_columns(file.path, found.names, schema, policy)
        check_types(file.path, found, schema)
        stored = [name for name in columns if name in found.names]
        wanted = pa.schema([schema.field(name) for name in columns])
        for position, batch in self.rows(tree, file, stored, start, stop):
            yield from without_nulls(position, conform(batch, wanted))

    @abstractmethod
    def rows(self, tree: FileTree, file: FileInfo, columns: list[str], start: int, stop: int) -> PlacedRows:
        """Yield these columns of the rows `[start, stop)`."""


class ParquetFormat(ColumnarFormat):
    """Parquet. Only the row groups that a range touches are read."""

    name = "parquet"
    suffixes = (".parquet", ".pq")

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        with readable(file, "Parquet"), pq.ParquetFile(tree.open(file)) as opened:
            return opened.schema_arrow

    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        with readable(file, "Parquet"), pq.ParquetFile(tree.open(file)) as opened:
            metadata = opened.metadata
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            return shape_of([(group.num_rows, group.total_byte_size) for group in groups])

    def rows(self, tree: FileTree, file: FileInfo, columns: list[str], start: int, stop: int) -> PlacedRows:
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


class ArrowFormat(ColumnarFormat):
    """Arrow IPC files, of which Feather is another name."""

    name = "arrow"
    suffixes = (".arrow", ".feather", ".ipc")

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        with readable(file, "Arrow"), tree.open(file) as opened:
            return ipc.open_file(opened).schema

    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        with readable(file, "Arrow"), tree.open(file) as opened:
            reader = ipc.open_file(opened)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
            return shape_of([(batch.num_rows, batch.nbytes) for batch in batches])

    def rows(self, tree: FileTree, file: FileInfo, columns: list[str], start: int, stop: int) -> PlacedRows:
        with readable(file, "Arrow"), tree.open(file) as opened:
            reader = ipc.open_file(opened)
            batches = (reader.get_batch(index).select(columns) for index in range(reader.num_record_batches))
            yield from clip(batches, 0, start, stop)


@contextmanager
def readable(file: FileInfo, kind: str) -> Iterator[None]:
    """Turn errors of PyArrow into a `BadRecord` that names the file."""
    try:
        yield
    except (BadRecord, StorageError):
        raise
    except (pa.ArrowException, OSError, EOFError) as error:
        raise BadRecord(
            f"{file.path}: not a readable {kind} file ({file.size} bytes): {error}: replace it under another name, "
            "or move it out of the folder"
        ) from error


def clip(batches: Iterator[pa.RecordBatch], position: int, start: int, stop: int) -> PlacedRows:
    """Yield the part in `[start, stop)` of consecutive batches, of which the first is at `position`."""
    for batch in batches:
        low, high = max(start, position), min(stop, position + batch.num_rows)
        if low < high:
            yield low, batch.slice(low - position, high - low)
        position += batch.num_rows
        if position >= stop:
            return


def without_nulls(position: int, batch: pa.RecordBatch) -> Iterator[Piece]:
    """Yield the batch in pieces between the rows that hold a forbidden null; these rows are reported as bad."""
    nulls = forbidden_nulls(batch)
    if nulls is None:
        yield Piece(position, batch, [])
        return
    mask, column = nulls
    reason, begin = f"column {column!r} is null", 0
    for index in np.flatnonzero(mask).tolist():
        bad = BadPiece(str(position + index), reason, row_as_json(batch, index))
        yield Piece(position + begin, batch.slice(begin, index - begin), [bad])
        begin = index + 1
    if begin < batch.num_rows:
        yield Piece(position + begin, batch.slice(begin), [])


def row_as_json(batch: pa.RecordBatch, index: int) -> str:
    row: dict[str, Any] = batch.slice(index, 1).to_pylist()[0]
    return json.dumps(row, default=str)


def shape_of(groups: list[tuple[int, int]]) -> FileShape:
    """Return the size of a file from the (rows, bytes when read) of its stored groups."""
    ends, rows = [], 0
    for count, _ in groups:
        rows += count
        ends.append(rows)
    return FileShape(rows, 1.0, sum(size for _, size in groups) / max(1, rows), ends)
