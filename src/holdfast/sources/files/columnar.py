"""Files that store rows in groups, by columns: rows `[start, stop)` of a file, and its size for planning.

Arrow files are here; Parquet files are in `parquet_format`.
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from holdfast.casts import cast_in_range
from holdfast.errors import BadRecord, StorageError
from holdfast.sources.files.file_format import BadPiece, FileFormat, FileShape, Piece
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, check_columns, check_types, conformed, forbidden_nulls

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
            yield from good_and_bad(position, batch, wanted)

    @abstractmethod
    def rows(self, tree: FileTree, file: FileInfo, columns: list[str], start: int, stop: int) -> PlacedRows:
        """Yield these columns of the rows `[start, stop)`."""


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


def good_and_bad(position: int, found: pa.RecordBatch, schema: pa.Schema) -> Iterator[Piece]:
    """Yield rows of a file in the schema, in pieces between the rows that do not fit it; these are reported as bad."""
    rows, bad = conformed(found, schema)
    nulls = forbidden_nulls(rows)
    if nulls is not None:
        mask, column = nulls
        bad = dict.fromkeys(np.flatnonzero(mask).tolist(), f"column {column!r} is null") | bad
    begin = 0
    for index in sorted(bad):
        yield Piece(
            position + begin,
            rows.slice(begin, index - begin),
            [BadPiece(str(position + index), bad[index], row_as_json(found, index))],
        )
        begin = index + 1
    if begin < rows.num_rows:
        yield Piece(position + begin, rows.slice(begin), [])


def row_as_json(batch: pa.RecordBatch, index: int) -> str:
    """Return a row as JSON. Times that Python has no object for, such as those past the year 9999, become texts."""
    row = {name: as_python(column.slice(index, 1)) for name, column in zip(batch.schema.names, batch, strict=True)}
    return json.dumps(row, default=str)


def as_python(value: pa.Array) -> Any:
    """Return the only value of an array as an object of Python."""
    try:
        return value[0].as_py()
    except (OverflowError, ValueError):
        return cast_in_range(value, _with_times_as_text(value.type)).values[0].as_py()


def _with_times_as_text(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_with_times_as_text(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_with_times_as_text(type_.key_type), _with_times_as_text(type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(_with_times_as_text(type_.value_type))
    return pa.string() if pa.types.is_temporal(type_) else type_


def shape_of(groups: list[tuple[int, int]]) -> FileShape:
    """Return the size of a file from the (rows, bytes when read) of its stored groups."""
    ends, rows = [], 0
    for count, _ in groups:
        rows += count
        ends.append(rows)
    return FileShape(rows, 1.0, sum(size for _, size in groups) / max(1, rows), ends)
