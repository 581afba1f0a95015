"""Files that store rows in groups, by columns: reading of rows `[start, stop)`, and the size of a file for planning.

Arrow files are here; Parquet files are in `parquet_format`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from holdfast.arrays import invalid_rows
from holdfast.errors import BadRecord, StorageError
from holdfast.python_values import payload_of, shown_rows
from holdfast.sources.files.file_format import PAYLOAD_CHARS_MAX, BadPiece, FileFormat, FileShape, Piece
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, columns_problem, conformed, forbidden_nulls, types_problem
from holdfast.sources.wanted import WantedRows

BATCH_ROWS = 131_072
"""Rows of an Arrow batch that a task reads. A higher value needs more memory in each task."""

PlacedRows = Iterator[tuple[int, pa.RecordBatch]]
"""(row position, rows) pairs."""


@dataclass(frozen=True)
class KeptRanges:
    """The ranges of a file's rows that are left to be read, and event times at least as new as those of the others."""

    ranges: list[tuple[int, int]]
    newest: pa.Array | None = None


class StoredGroups(ABC):
    """Groups of rows of a file whose bounds are stored."""

    @abstractmethod
    def kept(self, start: int, stop: int, schema: pa.Schema, wanted: WantedRows) -> KeptRanges:
        """Return the parts of `[start, stop)` that may hold wanted rows. `schema`: of the source."""


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
        wanted: WantedRows | None = None,
    ) -> Iterator[Piece]:
        found, groups = self.outline(tree, file)
        problem = columns_problem(found.names, schema, policy, file.path) or types_problem(found, schema)
        read_as = pa.schema([schema.field(name) for name in columns])
        stored = None if problem else [name for name in columns if name in found.names]
        kept = KeptRanges([(start, stop)])
        if wanted is not None and groups is not None and not problem:
            kept = groups.kept(start, stop, schema, wanted)
        if kept.newest is not None:
            yield Piece(start, empty_batch(read_as), [], kept.newest)
        for begin, end in kept.ranges:
            for position, batch in self.rows(tree, file, stored, begin, end):
                if problem:
                    yield all_bad(position, batch, read_as, problem)
                else:
                    with readable(file, self.name):
                        broken = invalid_rows(batch)
                    yield from good_and_bad(position, batch, read_as, broken)

    def outline(self, tree: FileTree, file: FileInfo) -> "tuple[pa.Schema, StoredGroups | None]":
        """Return the schema of a file, and its groups of rows if their bounds are stored."""
        return self.infer(tree, file), None

    @abstractmethod
    def rows(self, tree: FileTree, file: FileInfo, columns: list[str] | None, start: int, stop: int) -> PlacedRows:
        """Yield these columns (None: all) of the rows `[start, stop)`."""


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

    def rows(self, tree: FileTree, file: FileInfo, columns: list[str] | None, start: int, stop: int) -> PlacedRows:
        with readable(file, "Arrow"), tree.open(file) as opened:
            reader = ipc.open_file(opened)
            batches = (selected(reader.get_batch(index), columns) for index in range(reader.num_record_batches))
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


def good_and_bad(position: int, found: pa.RecordBatch, schema: pa.Schema, broken: dict[int, str]) -> Iterator[Piece]:
    """Yield rows of a file in the schema, in pieces between the rows that do not fit it; these are reported as bad.

    `broken` are rows that are bad already, each with the reason.
    """
    rows, bad = conformed(found, schema)
    bad |= broken
    nulls = forbidden_nulls(rows)
    if nulls is not None:
        mask, column = nulls
        bad = dict.fromkeys(np.flatnonzero(mask).tolist(), f"column {column!r} is null") | bad
    begin = 0
    for first, last in consecutive(sorted(bad)):
        reasons = [bad[index] for index in range(first, last + 1)]
        letters = bad_pieces(position + first, found.slice(first, len(reasons)), reasons)
        yield Piece(position + begin, rows.slice(begin, first - begin), letters)
        begin = last + 1
    if begin < rows.num_rows:
        yield Piece(position + begin, rows.slice(begin), [])


def consecutive(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of ascending numbers without a gap."""
    if numbers:
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(np.array(numbers), breaks):
            yield int(run[0]), int(run[-1])


def all_bad(position: int, found: pa.RecordBatch, schema: pa.Schema, reason: str) -> Piece:
    """Return rows of a file that does not fit the schema, all of them bad for the same reason."""
    return Piece(position, empty_batch(schema), bad_pieces(position, found, [reason] * found.num_rows))


def bad_pieces(position: int | str, rows: pa.RecordBatch, reasons: list[str]) -> list[BadPiece]:
    """Return rows that follow one another as bad rows; `position` as in `Piece`."""
    places = range(position, position + rows.num_rows) if isinstance(position, int) else repeat(position)
    texts = (payload_of(row)[:PAYLOAD_CHARS_MAX] for row in shown_rows(rows))
    return [BadPiece(str(place), *told) for place, told in zip(places, zip(reasons, texts, strict=True), strict=False)]


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema)


def selected(batch: pa.RecordBatch, columns: list[str] | None) -> pa.RecordBatch:
    return batch if columns is None else batch.select(columns)


def shape_of(groups: list[tuple[int, int]]) -> FileShape:
    """Return the size of a file from the (rows, bytes when read) of its stored groups."""
    ends, rows = [], 0
    for count, _ in groups:
        rows += count
        ends.append(rows)
    return FileShape(rows, 1.0, sum(size for _, size in groups) / max(1, rows), ends)
