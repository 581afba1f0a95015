"""The file formats of a file source, behind one interface: infer a schema, say how long a file is, read a range.

Positions are rows in Parquet and Arrow files and bytes in CSV and JSON lines. A compressed or multi-line
text file cannot be divided: it is one read. Reading the same range of the same file gives the same rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.sources.files import columnar, lines, text
from holdfast.sources.files.text import BlockParser, CsvOptions
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, check_columns, check_types, conform, forbidden_nulls

SAMPLE_BYTES = 64 * 1024
INFERENCE_BYTES = 1024 * 1024
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
EXPANSION = 5
"""How much larger a compressed text file is assumed to be when read."""


@dataclass(frozen=True)
class FileShape:
    """What planning needs to know of one file; a unit is a row or a byte, whatever its positions count."""

    length: int
    rows_per_unit: float
    bytes_per_unit: float
    group_ends: list[int] = field(default_factory=list)
    whole: bool = False


class BadPiece(NamedTuple):
    position: str
    reason: str
    payload: str


class Piece(NamedTuple):
    """Rows in order; `position` is an int where row i stands at `position + i`."""

    position: int | str
    rows: pa.RecordBatch
    bad: list[BadPiece]


class Format(ABC):
    """One file format. Stateless."""

    name: str
    suffixes: tuple[str, ...]

    @abstractmethod
    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        """The schema that the file itself has."""

    @abstractmethod
    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        """Deterministic for a file."""

    @abstractmethod
    def read(
        self, tree: FileTree, file: FileInfo, start: int, stop: int, schema: pa.Schema, policy: EvolutionPolicy
    ) -> Iterator[Piece]:
        """The rows of a range. Raises `BadRecord` where the file as a whole cannot be read or does not fit."""

    def check(self, schema: pa.Schema) -> None:
        """Raise `JobRefused` for a schema that files of this format cannot have."""
        return


class ColumnarFormat(Format):
    """Parquet or Arrow."""

    def __init__(
        self,
        name: str,
        suffixes: tuple[str, ...],
        infer: Callable[[FileTree, FileInfo], pa.Schema],
        shape: Callable[[FileTree, FileInfo], columnar.ColumnarShape],
        rows: Callable[[FileTree, FileInfo, list[str], int, int], Iterator[tuple[int, pa.RecordBatch]]],
    ) -> None:
        self.name, self.suffixes = name, suffixes
        self._infer, self._shape, self._rows = infer, shape, rows

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        return self._infer(tree, file)

    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        found = self._shape(tree, file)
        return FileShape(found.rows, 1.0, found.memory_bytes / max(1, found.rows), found.group_ends)

    def read(
        self, tree: FileTree, file: FileInfo, start: int, stop: int, schema: pa.Schema, policy: EvolutionPolicy
    ) -> Iterator[Piece]:
        found = self._infer(tree, file)
        check_columns(file.path, found.names, schema, policy)
        check_types(file.path, found, schema)
        columns = [name for name in schema.names if name in found.names]
        for position, batch in self._rows(tree, file, columns, start, stop):
            yield from without_nulls(position, conform(batch, schema))


def without_nulls(position: int, batch: pa.RecordBatch) -> Iterator[Piece]:
    """The batch in pieces between the rows that hold a null where none may be; those are reported."""
    nulls = forbidden_nulls(batch)
    if nulls is None:
        yield Piece(position, batch, [])
        return
    mask, column = nulls
    reason, begin = f"column {column!r} is null", 0
    for index in np.flatnonzero(mask).tolist():
        bad = BadPiece(str(position + index), reason, columnar.row_as_json(batch, index))
        yield Piece(position + begin, batch.slice(begin, index - begin), [bad])
        begin = index + 1
    if begin < batch.num_rows:
        yield Piece(position + begin, batch.slice(begin), [])


class TextFormat(Format):
    """What CSV and JSON lines share: bytes as positions, blocks of lines."""

    whole = False

    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        if compression_of(file):
            return FileShape(file.size, EXPANSION / 100, EXPANSION, whole=True)
        sample = tree.read_range(file, 0, min(SAMPLE_BYTES, file.size))
        return FileShape(file.size, max(1, sample.count(b"\n")) / len(sample), 1.0, whole=self.whole)

    def read(
        self, tree: FileTree, file: FileInfo, start: int, stop: int, schema: pa.Schema, policy: EvolutionPolicy
    ) -> Iterator[Piece]:
        parser = self.parser(tree, file, schema, policy)
        for offset, data in self.blocks(tree, file, start, stop):
            skipped = self.skipped(data) if offset == 0 else 0
            parsed = parser.parse(data[skipped:])
            base = offset + skipped
            bad = [BadPiece(f"byte {base + one.offset}", one.reason, one.payload) for one in parsed.bad]
            yield Piece(f"byte {base}", parsed.rows if parsed.rows is not None else empty(schema), bad)

    @abstractmethod
    def parser(self, tree: FileTree, file: FileInfo, schema: pa.Schema, policy: EvolutionPolicy) -> BlockParser:
        """For one file."""

    def skipped(self, data: bytes) -> int:
        """How many bytes at the beginning of a file are not rows."""
        return len(text.BYTE_ORDER_MARK) if data.startswith(text.BYTE_ORDER_MARK) else 0

    def blocks(self, tree: FileTree, file: FileInfo, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        compression = compression_of(file)
        if compression is None and not self.whole:
            yield from lines.blocks(ranges(tree, file), file.size, start, stop)
            return
        with columnar.readable(file, self.name), tree.open(file) as raw:
            opened = pa.CompressedInputStream(raw, compression) if compression else raw
            if self.whole:
                yield 0, opened.read()
            else:
                yield from stream_blocks(opened)

    def head(self, tree: FileTree, file: FileInfo) -> bytes:
        """The first lines, for inference."""
        for _, data in self.blocks(tree, file, 0, min(file.size, INFERENCE_BYTES)):
            return data
        return b""


class CsvFormat(TextFormat):
    name = "csv"
    suffixes = (".csv",)

    def __init__(self, options: CsvOptions) -> None:
        self._options = options
        self.whole = options.multiline

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        data = self.head(tree, file)
        columns = self._columns(data)
        return text.infer_csv(file.path, columns, data[self.skipped(data) :], self._options)

    def check(self, schema: pa.Schema) -> None:
        text.check_csv_types(schema)

    def parser(self, tree: FileTree, file: FileInfo, schema: pa.Schema, policy: EvolutionPolicy) -> BlockParser:
        columns = schema.names if not self._options.header else self._columns(self._first_line(tree, file))
        return text.CsvParser(file.path, columns, schema, self._options, policy)

    def skipped(self, data: bytes) -> int:
        return data.find(b"\n") + 1 or len(data) if self._options.header else super().skipped(data)

    def _first_line(self, tree: FileTree, file: FileInfo) -> bytes:
        if compression_of(file) or self.whole:
            return self.head(tree, file)
        read_range = ranges(tree, file)
        return read_range(0, lines.line_start(read_range, file.size, 1))

    def _columns(self, data: bytes) -> list[str]:
        names = text.split_header(data[: data.find(b"\n") + 1 or len(data)], self._options)
        return names if self._options.header else [f"_c{index}" for index in range(len(names))]


class JsonFormat(TextFormat):
    name = "json"
    suffixes = (".json", ".jsonl", ".ndjson")

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        data = self.head(tree, file)
        return text.infer_json(file.path, data[self.skipped(data) :])

    def parser(self, tree: FileTree, file: FileInfo, schema: pa.Schema, policy: EvolutionPolicy) -> BlockParser:
        return text.JsonParser(file.path, schema, policy)


def stream_blocks(opened: Any) -> Iterator[tuple[int, bytes]]:
    """Whole lines out of a stream, as (offset, bytes) blocks."""
    offset, carried = 0, b""
    while data := opened.read(lines.BLOCK_BYTES):
        data = carried + data
        whole = data.rfind(b"\n") + 1
        if whole:
            yield offset, data[:whole]
        offset, carried = offset + whole, data[whole:]
    if carried:
        yield offset, carried


def ranges(tree: FileTree, file: FileInfo) -> lines.ReadRange:
    return lambda offset, length: tree.read_range(file, offset, length)


def compression_of(file: FileInfo) -> str | None:
    return next((codec for suffix, codec in COMPRESSIONS.items() if file.path.endswith(suffix)), None)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in schema], schema=schema)


def formats(options: CsvOptions) -> dict[str, Format]:
    """The formats by name."""
    found: list[Format] = [
        ColumnarFormat(
            "parquet",
            (".parquet", ".pq"),
            columnar.parquet_schema,
            columnar.parquet_shape,
            columnar.parquet_rows,
        ),
        ColumnarFormat(
            "arrow",
            (".arrow", ".feather", ".ipc"),
            columnar.arrow_schema,
            columnar.arrow_shape,
            columnar.arrow_rows,
        ),
        CsvFormat(options),
        JsonFormat(),
    ]
    return {one.name: one for one in found}


def has_suffix(path: str, one: Format) -> bool:
    for compression in COMPRESSIONS:
        if isinstance(one, TextFormat):
            path = path.removesuffix(compression)
    return path.lower().endswith(one.suffixes)
