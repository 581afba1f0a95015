"""Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.casts import cast_in_range
from holdfast.python_values import exact_values
from holdfast.sources.files.columnar import (
    BATCH_ROWS,
    ColumnarFormat,
    PlacedRows,
    StoredGroups,
    clip,
    readable,
    shape_of,
)
from holdfast.sources.files.file_format import FileShape
from holdfast.sources.files.group_decoders import GroupBatches, GroupDecoder, kept_decoders
from holdfast.sources.files.row_groups import RowGroup, RowGroups, touched_groups
from holdfast.sources.files.trees import FileInfo, FileTree

STREAM_BYTES = 1024 * 1024
"""Bytes of a column that are read at once from a row group that is read in pieces. A higher value needs more memory for
each column, a lower value makes more requests to a store."""


class ParquetFormat(ColumnarFormat):
    """Parquet. Only the row groups that overlap a range are read; a group that is larger than a batch is read in
    pieces. A timestamp in INT96 has a day and nanoseconds within it, so its range exceeds that of Arrow's units. It is
    read in microseconds, and again in seconds, which can hold every value: if the two differ, the time has overflowed,
    and its row is bad.
    """

    name = "parquet"
    suffixes = (".parquet", ".pq")

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        return self.outline(tree, file)[0]

    def outline(self, tree: FileTree, file: FileInfo) -> tuple[pa.Schema, StoredGroups]:
        with opened_parquet(tree, file) as opened:
            return opened.schema_arrow, RowGroups(opened.schema_arrow, opened.metadata)

    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        with opened_parquet(tree, file) as opened:
            metadata = opened.metadata
            groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
            return shape_of([(group.num_rows, group.total_byte_size) for group in groups])

    def rows(self, tree: FileTree, file: FileInfo, columns: list[str] | None, start: int, stop: int) -> PlacedRows:
        with opened_parquet(tree, file) as opened:
            groups = touched_groups(opened.metadata, start, stop)
        for whole, run in groupby(groups, lambda group: start <= group.start and group.stop <= stop):
            if whole:
                touched = list(run)
                numbers = [group.number for group in touched]
                yield from clip(group_batches(tree, file, columns, numbers), touched[0].start, start, stop)
            else:
                for group in run:
                    yield from rows_within(tree, file, columns, group, start, stop)


def rows_within(
    tree: FileTree, file: FileInfo, columns: list[str] | None, group: RowGroup, start: int, stop: int
) -> PlacedRows:
    """Yield the rows `[start, stop)` of a group that is read in pieces, with the kept decoder if there is one."""
    key = (file, group.number, None if columns is None else tuple(columns))
    start, stop = max(start, group.start), min(stop, group.stop)
    decoder = kept_decoders.take(key, start)
    if decoder is None:
        decoder = GroupDecoder(group_batches(tree, file, columns, [group.number], STREAM_BYTES), group.start)
    try:
        yield from decoder.read(start, stop)
    except BaseException:
        decoder.close()
        raise
    if decoder.position < group.stop:
        kept_decoders.keep(key, decoder)
    else:
        decoder.close()


def group_batches(
    tree: FileTree, file: FileInfo, columns: list[str] | None, groups: list[int], stream_bytes: int = 0
) -> GroupBatches:
    """Yield the rows of row groups; the stored columns are read as a whole, or in steps of `stream_bytes`."""
    with opened_parquet(tree, file, "us", stream_bytes) as opened:
        batches = opened.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns)
        int96 = [name for name in int96_columns(opened.schema) if columns is None or name in columns]
        if int96:
            with opened_parquet(tree, file, "s", stream_bytes) as again:
                seconds = again.iter_batches(BATCH_ROWS, row_groups=groups, columns=int96)
                yield from far_times_apart(batches, seconds)
        else:
            yield from batches


@contextmanager
def opened_parquet(
    tree: FileTree, file: FileInfo, int96_unit: str = "us", stream_bytes: int = 0
) -> Iterator[pq.ParquetFile]:
    with (
        readable(file, "Parquet"),
        pq.ParquetFile(
            tree.open(file),
            pre_buffer=not stream_bytes,
            buffer_size=stream_bytes,
            coerce_int96_timestamp_unit=int96_unit,
        ) as opened,
    ):
        yield opened


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
