"""Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.casts import cast_in_range
from holdfast.python_values import exact_values
from holdfast.sources.files.columnar import BATCH_ROWS, ColumnarFormat, PlacedRows, clip, readable, shape_of
from holdfast.sources.files.file_format import FileShape
from holdfast.sources.files.trees import FileInfo, FileTree


class ParquetFormat(ColumnarFormat):
    """Parquet. Only the row groups that a range touches are read.

    A timestamp in INT96 holds a day and nanoseconds within it, so it reaches further than any of Arrow's units. It is
    read in microseconds, and again in seconds, which hold each of them: where the two differ, the time has wrapped
    around, and its row is bad.
    """

    name = "parquet"
    suffixes = (".parquet", ".pq")

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        with opened_parquet(tree, file) as opened:
            return opened.schema_arrow

    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        with opened_parquet(tree, file) as opened:
            metadata = opened.metadata
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            return shape_of([(group.num_rows, group.total_byte_size) for group in groups])

    def rows(self, tree: FileTree, file: FileInfo, columns: list[str] | None, start: int, stop: int) -> PlacedRows:
        with opened_parquet(tree, file) as opened:
            groups, first = touched_groups(opened.metadata, start, stop)
            batches = opened.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns) if groups else iter(())
            int96 = [name for name in int96_columns(opened.schema) if columns is None or name in columns]
            if groups and int96:
                with opened_parquet(tree, file, "s") as again:
                    seconds = again.iter_batches(BATCH_ROWS, row_groups=groups, columns=int96)
                    yield from clip(far_times_apart(batches, seconds), first, start, stop)
            else:
                yield from clip(batches, first, start, stop)


@contextmanager
def opened_parquet(tree: FileTree, file: FileInfo, int96_unit: str = "us") -> Iterator[pq.ParquetFile]:
    with (
        readable(file, "Parquet"),
        pq.ParquetFile(tree.open(file), pre_buffer=True, coerce_int96_timestamp_unit=int96_unit) as opened,
    ):
        yield opened


def touched_groups(metadata: pq.FileMetaData, start: int, stop: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows of `[start, stop)`, and the position of their first row."""
    groups: list[int] = []
    first = position = 0
    for index in range(metadata.num_row_groups):
        end = position + metadata.row_group(index).num_rows
        if position < stop and end > start:
            first = position if not groups else first
            groups.append(index)
        position = end
    return groups, first


def int96_columns(schema: pq.ParquetSchema) -> list[str]:
    """Return the columns that hold INT96 values at any depth."""
    leaves = (schema.column(index) for index in range(len(schema)))
    return list(dict.fromkeys(leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96"))


def far_times_apart(batches: Iterator[pa.RecordBatch], seconds: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the batches; where a time of a row wrapped around, its column is in seconds instead.

    The cast to the declared type then finds that these times are too far away.
    """
    for batch, again in zip(batches, seconds, strict=True):
        far: dict[int, list[str]] = {}
        for name in again.schema.names:
            for row in unlike(batch.column(name), again.column(name)):
                far.setdefault(row, []).append(name)
        begin = 0
        for row in sorted(far):
            yield batch.slice(begin, row - begin)
            alone = batch.slice(row, 1)
            for name in far[row]:
                alone = alone.set_column(batch.schema.get_field_index(name), name, again.column(name).slice(row, 1))
            yield alone
            begin = row + 1
        yield batch.slice(begin)


def unlike(fine: pa.Array, seconds: pa.Array) -> list[int]:
    """Return the rows that differ from the same rows in seconds, found by halving."""
    whole = cast_in_range(fine, seconds.type).values
    ranges, found = [(0, len(whole))], []
    while ranges:
        begin, end = ranges.pop()
        one, other = whole.slice(begin, end - begin), seconds.slice(begin, end - begin)
        if one.equals(other):
            continue
        if end - begin > 1:
            middle = (begin + end) // 2
            ranges += [(middle, end), (begin, middle)]
        elif repr(exact_values(one)) != repr(exact_values(other)):  # A NaN beside a time equals nothing.
            found.append(begin)
    return found
