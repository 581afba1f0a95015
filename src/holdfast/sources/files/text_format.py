"""The common part of CSV and JSON lines: positions in bytes, blocks of lines, separation of bad records.

A compressed file, or a CSV file with `multiline=True`, cannot be divided and is a single read. A block is converted as
a whole. If its conversion fails, its records are converted in smaller groups until each bad record is found. The
conversion of a good record does not depend on its neighbours.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.sources.files import lines
from holdfast.sources.files.columnar import readable
from holdfast.sources.files.file_format import PAYLOAD_CHARS_MAX, BadPiece, FileFormat, FileShape, Piece
from holdfast.sources.files.line_streams import stream_blocks
from holdfast.sources.files.lines import LongRecord, RecordBlock
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy
from holdfast.sources.wanted import WantedRows

SAMPLE_BYTES = 64 * 1024
"""Bytes from which the length of a line is estimated."""
INFERENCE_BYTES = 1024 * 1024
"""Bytes from which a schema is inferred. A higher value sees more rows and takes longer."""
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
EXPANSION = 5
"""Assumed size of a compressed text file when read, as a multiple of its stored size."""
COMPRESSED_LINE_BYTES = 100
"""Assumed length of a line of a compressed file, in bytes."""


class BadText(NamedTuple):
    """A record that was left out: its offset in the block in bytes, the reason, and its text."""

    offset: int
    reason: str
    payload: str


class TextRecord(NamedTuple):
    """A record and its offset in the block in bytes."""

    offset: int
    data: bytes


class ParsedBlock(NamedTuple):
    """The good rows of a block in order, and its bad records in order."""

    rows: pa.RecordBatch
    bad: list[BadText]


class Salvaged(NamedTuple):
    """The rows and bad records that were found so far in a block of which some records are bad."""

    batches: list[pa.RecordBatch]
    bad: list[BadText]

    def block(self, schema: pa.Schema) -> ParsedBlock:
        rows = one_batch(pa.Table.from_batches(self.batches, schema))
        return ParsedBlock(rows, sorted(self.bad, key=lambda bad: bad.offset))


class BlockParser(ABC):
    """Turns blocks of a file into batches of the source's schema."""

    @abstractmethod
    def parse(self, data: bytes) -> ParsedBlock:
        """Return the rows and the bad records of a block of whole records. Deterministic."""


class RefusingParser(BlockParser):
    """Puts all records of a file aside, for the same reason: the file's columns do not fit the schema."""

    def __init__(self, schema: pa.Schema, reason: str, records: Callable[[bytes], list[TextRecord]]) -> None:
        self._rows = pa.RecordBatch.from_pylist([], schema=schema)
        self._reason = reason
        self._records = records

    def parse(self, data: bytes) -> ParsedBlock:
        return ParsedBlock(self._rows, [bad_text(record, self._reason) for record in self._records(data)])


class TextHead(NamedTuple):
    """The beginning of a text file: its columns (None if it does not name them), and the offset of its first row."""

    columns: list[str] | None
    end: int


class TextFormat(FileFormat):
    """A format of lines of text."""

    compressible = True
    record_bytes_max = lines.RECORD_BYTES_MAX
    whole = False
    """A record may span lines, so that a file cannot be divided."""

    def shape(self, tree: FileTree, file: FileInfo) -> FileShape:
        if compression_of(file):
            return FileShape(file.size, EXPANSION / COMPRESSED_LINE_BYTES, EXPANSION, whole=True)
        sample = tree.read_range(file, 0, min(SAMPLE_BYTES, file.size))
        count = max(1, sample.count(b"\n"), sample.count(b"\r"))
        return FileShape(file.size, count / len(sample), 1.0, whole=self.whole)

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
        if not columns:
            yield from super().read_columns(tree, file, start, stop, schema, policy, columns)
            return
        read_as = pa.schema([schema.field(name) for name in columns])
        head = self.head(tree, file, start)
        if head is None:
            return
        parser = self.parser(file, head, schema, policy, read_as)
        for found in self._blocks(tree, file, start, stop):
            if isinstance(found, LongRecord):
                if found.offset >= head.end:
                    nothing = pa.RecordBatch.from_pylist([], schema=read_as)
                    yield Piece(f"byte {found.offset}", nothing, [self._too_long(found)])
                continue
            base = max(found.offset, head.end)
            if base >= found.offset + len(found.data):
                continue
            parsed = parser.parse(found.data[base - found.offset :])
            bad = [BadPiece(f"byte {base + text.offset}", text.reason, text.payload) for text in parsed.bad]
            yield Piece(f"byte {base}", parsed.rows.select(list(columns)), bad)

    def _too_long(self, record: LongRecord) -> BadPiece:
        reason = (
            f"is a record of {record.size} bytes, longer than max_record_bytes={self.record_bytes_max}: a longer one "
            "is read with a higher max_record_bytes="
        )
        return BadPiece(f"byte {record.offset}", reason, record.beginning.decode("utf-8", "replace"))

    @abstractmethod
    def head(self, tree: FileTree, file: FileInfo, start: int) -> TextHead | None:
        """Return the beginning of a file for a read from `start`; None if the file has no rows."""

    @abstractmethod
    def parser(
        self, file: FileInfo, head: TextHead, schema: pa.Schema, policy: EvolutionPolicy, read_as: pa.Schema
    ) -> BlockParser:
        """Return the parser of a file. All records are bad if the file's columns do not fit the schema.

        `read_as`: the columns that are needed; a parser may leave others out where that costs nothing.
        """

    def first_bytes(self, tree: FileTree, file: FileInfo) -> bytes:
        """Return the first whole records of a file, about a megabyte, for inference."""
        for length in (INFERENCE_BYTES, lines.BLOCK_BYTES):
            data = self.beginning(tree, file, length + 1)
            if len(data) <= length:
                return data
            if whole := self.whole_records(data[:length]):
                return data[:whole]
        raise JobRefused(
            f"{file.path}: the schema cannot be inferred: the first record has more than {lines.BLOCK_BYTES} bytes: "
            "give schema="
        )

    def beginning(self, tree: FileTree, file: FileInfo, length: int) -> bytes:
        """Return the first bytes of a file's text, fewer if it is shorter."""
        if not self.indivisible(file):
            return tree.read_range(file, 0, min(file.size, length))
        with readable(file, self.name):
            opened = self._stream(tree, file)
            data: bytes = opened.read(length)
            opened.close()
            return data

    def whole_records(self, data: bytes) -> int:
        """Return how many bytes, from the first on, are whole records whatever follows the data."""
        return lines.whole_lines(data)

    def spans(self, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        """Return starts and ends of the records of a block."""
        return lines.line_ranges(data)

    def _blocks(self, tree: FileTree, file: FileInfo, start: int, stop: int) -> Iterator[RecordBlock | LongRecord]:
        with readable(file, self.name):
            for found in self._unbounded(tree, file, start, stop):
                if isinstance(found, RecordBlock) and len(found.data) > self.record_bytes_max:
                    yield from lines.bounded(found, *self.spans(found.data), self.record_bytes_max)
                else:
                    yield found

    def _unbounded(self, tree: FileTree, file: FileInfo, start: int, stop: int) -> Iterator[RecordBlock | LongRecord]:
        """Yield the blocks of a range; records within a block may be longer than the bound."""
        if self.indivisible(file):
            return self.stream_blocks(lambda: self._stream(tree, file))
        return lines.blocks(ranges(tree, file), file.size, start, stop, lines.BLOCK_BYTES, self.record_bytes_max)

    def stream_blocks(self, reopen: Callable[[], Any]) -> Iterator[RecordBlock | LongRecord]:
        """Yield the whole records of a file that is read from its beginning."""
        return stream_blocks(reopen, self.record_bytes_max)

    def _stream(self, tree: FileTree, file: FileInfo) -> Any:
        raw = tree.open(file)
        compression = compression_of(file)
        if compression is None:
            return raw
        # A codec reads 64 KB at a time, and each read would be a request to a store.
        return pa.CompressedInputStream(pa.BufferedInputStream(raw, lines.BLOCK_BYTES), compression)

    def indivisible(self, file: FileInfo) -> bool:
        return self.whole or compression_of(file) is not None


def ranges(tree: FileTree, file: FileInfo) -> lines.ReadRange:
    return lambda offset, length: tree.read_range(file, offset, length)


def compression_of(file: FileInfo) -> str | None:
    return next((codec for suffix, codec in COMPRESSIONS.items() if file.path.endswith(suffix)), None)


def bad_text(record: TextRecord, reason: str) -> BadText:
    payload = record.data.decode("utf-8", "replace").rstrip("\r\n")[:PAYLOAD_CHARS_MAX]
    return BadText(record.offset, reason, payload)


def records_of(data: bytes) -> list[TextRecord]:
    """Return each line of a block that holds more than a line break."""
    starts, ends = lines.line_ranges(data)
    return [TextRecord(start, data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def one_batch(table: pa.Table) -> pa.RecordBatch:
    combined = table.combine_chunks().to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=table.schema)
