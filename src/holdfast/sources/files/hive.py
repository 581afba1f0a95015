"""Partition columns: values in the names of folders, as Hive, Spark and `ParquetSink` write them.

    <folder>/day=2026-01-31/city=S%C3%A3o%20Paulo/part-0.parquet       day is 2026-01-31, city is São Paulo
    <folder>/day=__HIVE_DEFAULT_PARTITION__/part-1.parquet             day is null

All folders below the source's own folder count, and above it the folders whose columns the schema names. The types are
those of the schema; without a schema, each value is a text. If the file has the column too, the folder's value counts,
as in Spark.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from holdfast.casts import cast_in_range
from holdfast.errors import BadRecord
from holdfast.sources.files.columnar import bad_pieces, empty_batch
from holdfast.sources.files.file_format import FileFormat, FileShape, Piece
from holdfast.sources.files.local_tree import name_of
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, new_columns
from holdfast.sources.wanted import WantedRows

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Folder value that Hive, Spark and other readers take for null."""


class HiveFormat(FileFormat):
    """Any format, with partition columns from the names of folders."""

    def __init__(self, inner: FileFormat) -> None:
        self._inner = inner
        self.name = inner.name
        self.suffixes = inner.suffixes
        self.compressible = inner.compressible

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        values = folder_values(file.path, tree.root, ())
        found = [field for field in self._inner.infer(tree, file) if field.name not in values]
        return pa.schema(found + [pa.field(name, pa.string()) for name in values]) if found else pa.schema([])

    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        return self._inner.shape(tree, file)

    def check(self, schema: pa.Schema) -> None:
        self._inner.check(schema)

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
        wanted: WantedRows | None = None,
    ) -> Iterator[Piece]:
        values = folder_values(file.path, tree.root, schema.names)
        in_file = pa.schema([field for field in schema if field.name not in values])
        if not in_file.names:
            raise BadRecord(
                f"{file.path}: all columns of {schema.names} are in the names of its folders: declare in schema= at "
                "least one column that the file holds"
            )
        partition = typed(values, schema, policy)
        stored = [name for name in columns if name not in values] or in_file.names[:1]
        inside = replace(policy, elsewhere=frozenset(values))
        if wanted is not None:
            wanted = None if partition.problem else wanted.with_constants(partition.values)
        if wanted is not None and wanted.time is None and not wanted.may_hold({}, np.ones(1, np.int64)).any():
            return
        for piece in self._inner.read_columns(tree, file, start, stop, in_file, inside, stored, wanted):
            yield with_partition(piece, partition, pa.schema([schema.field(name) for name in columns]))


class Partition(NamedTuple):
    """The partition columns of a file, each with its only value, or the reason why they do not fit the schema."""

    values: dict[str, pa.Scalar]
    problem: str | None


def folder_values(path: str, root: str, declared: Collection[str]) -> dict[str, str | None]:
    """Return the values in the names of a file's folders: all below `root`, and above it those of declared columns."""
    name = name_of(path)
    above = name[: len(root)] if name.startswith(root) else ""
    values: dict[str, str | None] = {}
    for folders, wanted in ((above.split("/"), declared), (name[len(above) :].split("/")[:-1], None)):
        for folder in folders:
            column, equals, value = folder.partition("=")
            column = unquote(column)
            if equals and column and (wanted is None or column in wanted):
                values[column] = None if value in ("", NULL_PARTITION) else unquote(value)
    return values


def typed(values: dict[str, str | None], schema: pa.Schema, policy: EvolutionPolicy) -> Partition:
    """Return the values in the types of the schema."""
    new = [name for name in values if name not in schema.names]
    if new and policy.on_new_column == "fail":
        return Partition({}, f"the name of the file's folder {new_columns(new, schema)}")
    found: dict[str, pa.Scalar] = {}
    for field in schema:
        if field.name not in values:
            continue
        value = values[field.name]
        if value is None and not field.nullable:
            return Partition({}, f"partition column {field.name!r} is null, which schema= forbids")
        scalar = None if value is None else as_scalar(value, field.type)
        if value is not None and scalar is None:
            return Partition({}, f"partition column {field.name!r} is no {field.type}, but {value!r}")
        found[field.name] = pa.scalar(None, field.type) if scalar is None else scalar
    return Partition(found, None)


def as_scalar(value: str, type_: pa.DataType) -> pa.Scalar | None:
    """Return a text as a value of a type; None if it is none."""
    try:
        found, outside = cast_in_range(pa.array([value]), type_)
    except (pa.ArrowException, UnicodeEncodeError):  # The second: the folder's name is not UTF-8.
        return None
    return found[0] if outside is None else None


def with_partition(piece: Piece, partition: Partition, schema: pa.Schema) -> Piece:
    """Return the piece with its partition columns; all its rows are bad if the partition does not fit the schema."""
    rows = piece.rows
    if partition.problem is not None:
        letters = bad_pieces(piece.position, rows, [partition.problem] * rows.num_rows)
        return Piece(piece.position, empty_batch(schema), letters + piece.bad)
    columns = [
        pa.repeat(partition.values[name], rows.num_rows) if name in partition.values else rows.column(name)
        for name in schema.names
    ]
    return piece._replace(rows=pa.RecordBatch.from_arrays(columns, schema=schema))
