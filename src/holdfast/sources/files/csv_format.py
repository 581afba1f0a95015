"""CSV files, read by PyArrow; bad records are separated from the rows.

PyArrow's rules hold: a line ends after CR, LF or CR LF; a quote counts as a quote only at the beginning of a value;
a text that follows a closing quote belongs to the value. Two rules differ, so that a stray quote cannot swallow
the rest of a file: without `multiline=True` a line break always ends a record, and a quote that is still open at
the end of a file makes a bad record of its line alone.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from holdfast.casts import INFINITY, is_hexadecimal
from holdfast.errors import BadRecord, JobRefused
from holdfast.json_rows.leaves import advised, read_texts
from holdfast.sources.files import lines
from holdfast.sources.files.csv_records import RecordBlocks, whole_records
from holdfast.sources.files.lines import LongRecord, RecordBlock
from holdfast.sources.files.text_format import (
    COMPRESSIONS,
    BlockParser,
    ParsedBlock,
    RefusingParser,
    Salvaged,
    TextFormat,
    TextHead,
    TextRecord,
    bad_text,
    one_batch,
    ranges,
    records_of,
)
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, columns_problem, conform, forbidden_nulls

HEADER_SHOWN_BYTES = 200
"""Bytes of a header that a message shows."""
SALVAGE_RECORDS = 256
"""Records that are converted together if a block has bad ones. A higher value repeats more work for each bad record."""
DELIMITERS = ",;\t|"
"""Usual delimiters; if a header has a single column whose name contains one of them, that is probably the delimiter."""
COMPRESSED = (b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd")
"""First bytes of files that gzip, bzip2 or zstd wrote."""
BLOCK_BYTES_MAX = 2**31 - 1
"""Bytes that PyArrow parses at once; the largest value that it takes."""
CONVERSION_ERROR = re.compile(
    r"(?:In CSV column #(?P<column>\d+): )?(?:Row #(?P<row>\d+): )?(?P<problem>.*)", re.DOTALL
)


@dataclass(frozen=True)
class CsvOptions:
    """The dialect of CSV files. With `multiline`, quoted values may hold line breaks, and a file is a single read."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    multiline: bool = False
    null_values: tuple[str, ...] = ("",)


class CsvFormat(TextFormat):
    """CSV."""

    name = "csv"
    suffixes = (".csv",)

    def __init__(self, options: CsvOptions, record_bytes_max: int = lines.RECORD_BYTES_MAX) -> None:
        self._options = options
        self.record_bytes_max = record_bytes_max
        self._record = record_pattern(options)
        self.whole = options.multiline

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        head = self.head(tree, file, 0)
        data = self.first_bytes(tree, file)
        if head is None or not data[head.end :].strip(lines.BLANK):
            return pa.schema([])
        columns = head.columns or []
        if len(columns) == 1 and (found := other_delimiter(columns[0])):
            raise JobRefused(
                f"{file.path}: the schema cannot be inferred: the header is a single column {columns[0]!r} with "
                f"delimiter={self._options.delimiter!r}: use delimiter={found!r} if that divides the values, else give "
                "schema= (and header=False if the first line is a row)"
            )
        rows = data[head.end :]
        try:
            schema = read_csv(rows, columns, self._options, None).schema
            texts = hexadecimal_values(rows, columns, self._options, dict(zip(schema.names, schema.types, strict=True)))
        except pa.ArrowInvalid as error:
            raise JobRefused(f"{file.path}: the schema cannot be inferred: {error}: give schema=") from error
        return pa.schema([field.with_type(pa.string()) if texts.get(field.name) else field for field in schema])

    def check(self, schema: pa.Schema) -> None:
        for column in schema:
            try:
                read_csv(b"x\n", ["x"], CsvOptions(null_values=("x",)), {"x": column.type})
            except pa.ArrowNotImplementedError as error:
                raise JobRefused(
                    f"column {column.name!r}: a CSV file cannot hold {column.type}: read it as a string, or use JSON "
                    "lines"
                ) from error

    def head(self, tree: FileTree, file: FileInfo, start: int) -> TextHead | None:
        if start > 0 and not self._options.header:
            return TextHead(None, 0)
        data = b""
        if self.indivisible(file):
            data = self.beginning(tree, file, 2 * lines.BLOCK_BYTES)
            read_range, size = slices(data), len(data)
        else:
            read_range, size = ranges(tree, file), file.size
        begin, end = lines.first_line(read_range, size)
        if begin == size:
            return None
        if not self._options.header:
            return TextHead(None, begin)
        if self.whole and (record := self._record.match(data, begin)):
            end = record.end()
        if end - begin > lines.BLOCK_BYTES:
            raise BadRecord(
                f"{file.path}: the header has more than {lines.BLOCK_BYTES} bytes: give the file a header line"
            )
        header = read_range(begin, end - begin)
        if header.startswith(COMPRESSED):
            raise BadRecord(
                f"{file.path}: is compressed, and its name does not say so: end it with one of "
                + ", ".join(COMPRESSIONS)
            )
        try:
            return TextHead(split_header(header, self._options), end)
        except pa.ArrowInvalid as error:
            shown = header[:HEADER_SHOWN_BYTES].decode("utf-8", "replace")
            raise BadRecord(
                f"{file.path}: the header {shown!r} cannot be divided ({error}): close its quotes; a header that spans "
                "lines needs multiline=True"
            ) from error

    def whole_records(self, data: bytes) -> int:
        if not self.whole:
            return super().whole_records(data)
        return whole_records(data, self._options.quote, self._options.delimiter)

    def spans(self, data: bytes) -> tuple[np.ndarray, np.ndarray]:
        if not self.whole:
            return super().spans(data)
        found = np.array([match.span() for match in self._record.finditer(data)], dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def stream_blocks(self, reopen: Callable[[], Any]) -> Iterator[RecordBlock | LongRecord]:
        if not self.whole:
            return super().stream_blocks(reopen)
        return RecordBlocks(reopen, self._options.quote, self._options.delimiter, self.record_bytes_max).read()

    def parser(
        self, file: FileInfo, head: TextHead, schema: pa.Schema, policy: EvolutionPolicy, read_as: pa.Schema
    ) -> BlockParser:
        columns = schema.names if head.columns is None else head.columns
        parser = CsvParser(columns, read_as, self._options)
        problem = header_problem(columns, schema, self._options) or columns_problem(columns, schema, policy, file.path)
        if problem is None:
            return parser
        if not set(columns) & set(schema.names):
            problem += "; if the first line is a row and no header, use header=False"
        return RefusingParser(read_as, problem, parser.records)


def header_problem(columns: list[str], schema: pa.Schema, options: CsvOptions) -> str | None:
    """Return the probable mistake if a header is a single column that the schema does not have."""
    if len(columns) != 1 or columns[0] in schema.names or (found := other_delimiter(columns[0])) is None:
        return None
    return (
        f"the file has a single column {columns[0]!r}, expected {schema.names}: it is divided at "
        f"delimiter={options.delimiter!r}; if {found!r} divides the values, use delimiter={found!r}"
    )


def other_delimiter(header: str) -> str | None:
    """Return the character that probably divides a header that was read as a single column."""
    return max((found for found in DELIMITERS if found in header), key=header.count, default=None)


class Converted(NamedTuple):
    """The good rows of some records, and the bad records, as (place among the records, reason)."""

    rows: pa.RecordBatch
    bad: list[tuple[int, str]]


class Unconverted(NamedTuple):
    """The reason why some records cannot be converted together, and the record that it names, as a place."""

    reason: str
    place: int | None = None


class CsvParser(BlockParser):
    """Parses blocks with PyArrow, in a single thread."""

    def __init__(self, columns: list[str], schema: pa.Schema, options: CsvOptions) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns
        self._types = {column.name: column.type for column in schema if column.name in columns}
        times = [name for name, type_ in self._types.items() if pa.types.is_timestamp(type_) or pa.types.is_time(type_)]
        decimals = [name for name, type_ in self._types.items() if pa.types.is_decimal(type_)]
        self._read_as = self._types | dict.fromkeys(decimals, pa.string())
        """The types with which a block is read. Decimals are read as text, since PyArrow's own reading overflows at 38
        digits."""
        self._as_text = self._read_as | dict.fromkeys(times, pa.string()) if times else None
        """The types with which a block is read if PyArrow does not accept its times."""
        self._record = record_pattern(options)
        self._fence = options.delimiter * len(columns)

    def parse(self, data: bytes) -> ParsedBlock:
        lines_of_data = None if self._options.multiline else lines.line_ranges(data)
        whole = self._convert(data, None if lines_of_data is None else len(lines_of_data[0]))
        if isinstance(whole, Converted) and not whole.bad:
            return ParsedBlock(whole.rows, [])
        records = self.records(data)
        found = Salvaged([], [])
        if isinstance(whole, Converted):
            self._take(whole, records, found)
        else:
            for begin in range(0, len(records), SALVAGE_RECORDS):
                self._salvage(records[begin : begin + SALVAGE_RECORDS], found)
        return found.block(self._schema)

    def records(self, data: bytes) -> list[TextRecord]:
        """Divide a block into its records."""
        if not self._options.multiline:
            return records_of(data)
        found = (TextRecord(match.start(), match.group()) for match in self._record.finditer(data))
        return [record for record in found if record.data.strip(b"\r\n")]

    def _salvage(self, records: list[TextRecord], found: Salvaged) -> None:
        """Read the good records among a few. A record that an error names is converted by itself."""
        while records:
            result = self._convert(b"".join(record.data for record in records), len(records))
            if isinstance(result, Converted):
                self._take(result, records, found)
                return
            if len(records) == 1:
                found.bad.append(bad_text(records[0], result.reason))
                return
            place = result.place
            if place is None or place >= len(records):
                place = len(records) // 2
                self._salvage(records[:place], found)
            else:
                self._salvage(records[:place], found)
                self._salvage(records[place : place + 1], found)
                place += 1
            records = records[place:]

    def _take(self, result: Converted, records: list[TextRecord], found: Salvaged) -> None:
        found.batches.append(result.rows)
        found.bad.extend(bad_text(records[place], reason) for place, reason in result.bad)

    def _convert(self, data: bytes, count: int | None) -> Converted | Unconverted:
        """Convert `count` records (None if only PyArrow divides the data into records)."""
        if not is_utf8(data):
            return self._convert_bytes(data) if count == 1 else Unconverted("holds bytes that are not UTF-8")
        misfits: list[pa_csv.InvalidRow] = []

        def note(row: pa_csv.InvalidRow) -> str:
            misfits.append(row)
            return "skip"

        # A row that cannot fit is appended to the data: PyArrow reports this row unless an open quote swallows it.
        end = b"" if data.endswith((b"\n", b"\r")) else b"\n"
        fenced = data + end + self._fence.encode() + b"\n"
        try:
            table = read_csv(fenced, self._columns, self._options, self._read_as, note)
        except pa.ArrowInvalid as error:
            if self._as_text is None:
                return self._unconverted(str(error))
            misfits.clear()
            try:
                table = read_csv(fenced, self._columns, self._options, self._as_text, note)
            except pa.ArrowInvalid as other:
                return self._unconverted(str(other))
        total = table.num_rows + len(misfits)
        if not misfits or (misfits[-1].number, misfits[-1].text) != (total, self._fence):
            return Unconverted("a quote is left open")
        if count is not None and total - 1 != count:
            return Unconverted(f"is {total - 1} rows, expected {count}: a line break or a quote stands inside a value")
        bad = [(row.number - 1, self._wrong_count(row)) for row in misfits[:-1]]
        rows, reasons = self._typed(one_batch(table))
        reasons |= self._beyond_range(rows, fenced) | self._hexadecimal(fenced)
        return without(conform(rows, self._schema), reasons, bad)

    def _typed(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return rows whose times and decimals were read as texts, with their types, and the rows with a text that does
        not fit.

        PyArrow takes no more digits of a second than a type has, and no years past 9999.
        """
        reasons: dict[int, str] = {}
        for name, type_ in self._types.items():
            index = rows.schema.get_field_index(name)
            texts = rows.column(index)
            if texts.type != type_:
                trimmed = pc.utf8_trim(texts, " \t") if pa.types.is_decimal(type_) else texts  # as PyArrow does
                read = read_texts(trimmed, type_)
                rows = rows.set_column(index, name, read.array)
                reasons |= {row: f"column {name!r}: {reason}" for row, reason in read.reasons.items()}
        return rows, reasons

    def _beyond_range(self, rows: pa.RecordBatch, fenced: bytes) -> dict[int, str]:
        """Return the rows with a number that became infinite although its text is not a spelling of infinity."""
        infinite = [name for name in self._types if is_infinite(rows.column(name))]
        if not infinite:
            return {}
        texts = read_csv(fenced, self._columns, self._options, dict.fromkeys(infinite, pa.string()), lambda row: "skip")
        reasons: dict[int, str] = {}
        for name in infinite:
            column = rows.column(name)
            written = pc.match_substring_regex(texts.column(name).combine_chunks(), INFINITY)
            for row in pc.indices_nonzero(pc.and_(pc.is_inf(column), pc.invert(written))).to_pylist():
                reasons[row] = (
                    f"column {name!r}: {texts.column(name)[row].as_py()!r} is beyond the range of {column.type}"
                )
        return reasons

    def _hexadecimal(self, fenced: bytes) -> dict[int, str]:
        """Return the rows with hexadecimal digits in a column of integers."""
        found = hexadecimal_values(fenced, self._columns, self._options, self._types, lambda row: "skip")
        return {
            row: f"column {name!r}: {text!r} is no {self._types[name]}; expected decimal digits"
            for name, texts in found.items()
            for row, text in texts.items()
        }

    def _wrong_count(self, row: pa_csv.InvalidRow) -> str:
        problem = f"has {row.actual_columns} fields, expected {row.expected_columns}"
        if row.actual_columns == 1 and (found := other_delimiter(row.text)):
            used = self._options.delimiter
            problem += f": it is divided at delimiter={used!r}; use delimiter={found!r} if that divides the values"
        return problem

    def _convert_bytes(self, data: bytes) -> Converted | Unconverted:
        """Convert a record that is not UTF-8, which columns that are binary, or are not read, may hold."""
        readable = self._convert(data.decode("utf-8", "replace").encode(), 1)
        if isinstance(readable, Unconverted) or readable.bad:
            return readable
        try:
            table = read_csv(data, self._columns, self._options, self._read_as)
        except pa.ArrowInvalid as error:
            return self._unconverted(str(error))
        rows, reasons = self._typed(one_batch(table))
        return without(conform(rows, self._schema), reasons, [])

    def _unconverted(self, error: str) -> Unconverted:
        """Read the column and the row out of PyArrow's error."""
        found = CONVERSION_ERROR.match(error.partition("\n")[0])
        assert found is not None
        column = "" if found["column"] is None else f"column {self._columns[int(found['column'])]!r}: "
        row = None if found["row"] is None else int(found["row"]) - 1
        return Unconverted(column + advised(found["problem"]), row)


def record_pattern(options: CsvOptions) -> re.Pattern[bytes]:
    """Return the pattern of a record that may span lines, divided as PyArrow does.

    A quote that is never closed counts as a part of its value, so that its record ends with its line.
    """
    quote, delimiter = re.escape(options.quote.encode()), re.escape(options.delimiter.encode())
    quoted = rb"%b[^%b]*+(?:%b%b[^%b]*+)*+%b" % ((quote,) * 6)
    field = rb"(?:%b)?+[^%b\r\n]*+" % (quoted, delimiter)
    return re.compile(rb"%b(?:%b%b)*+(?:\r\n?|\n|\Z)" % (field, delimiter, field))


def slices(data: bytes) -> lines.ReadRange:
    return lambda offset, length: data[offset : offset + length]


def read_csv(
    data: bytes, columns: list[str], options: CsvOptions, types: dict[str, pa.DataType] | None, misfit: object = None
) -> pa.Table:
    """Read a block without a header line; types are inferred if none are given.

    `misfit` is PyArrow's `invalid_row_handler`: it is called with each row that has another number of fields.
    """
    return pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(
            use_threads=False, block_size=min(len(data) + 1, BLOCK_BYTES_MAX), column_names=columns
        ),
        parse_options=pa_csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            newlines_in_values=options.multiline,
            invalid_row_handler=misfit,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types) if types is not None else None,
            null_values=list(options.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def hexadecimal_values(
    data: bytes, columns: list[str], options: CsvOptions, types: dict[str, pa.DataType], misfit: object = None
) -> dict[str, dict[int, str]]:
    """Return the hexadecimal texts in columns of integers, by row: PyArrow reads `0x10` as 16."""
    integers = [name for name, type_ in types.items() if pa.types.is_integer(type_)]
    if not integers or (b"0x" not in data and b"0X" not in data):
        return {}
    texts = read_csv(data, columns, options, dict.fromkeys(integers, pa.string()), misfit)
    found = {name: texts.column(name).combine_chunks() for name in integers}
    return {
        name: {row: column[row].as_py() for row in np.flatnonzero(is_hexadecimal(column)).tolist()}
        for name, column in found.items()
    }


def split_header(data: bytes, options: CsvOptions) -> list[str]:
    """Return the values of the first record, as the names of columns."""
    text = data.decode("utf-8", "replace").rstrip("\r\n").encode() + b"\n"
    parse = pa_csv.ParseOptions(
        delimiter=options.delimiter, quote_char=options.quote, newlines_in_values=options.multiline
    )
    read = pa_csv.ReadOptions(use_threads=False, block_size=min(len(text) + 1, BLOCK_BYTES_MAX))
    return list(pa_csv.read_csv(pa.BufferReader(text), read, parse).schema.names)


def is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def without(rows: pa.RecordBatch, reasons: dict[int, str], bad: list[tuple[int, str]]) -> Converted:
    """Put rows aside for these reasons, or for a null that the schema forbids. `bad` has records that are no rows;
    places count these records too.
    """
    nulls = forbidden_nulls(rows)
    if nulls is not None:
        mask, column = nulls
        reasons = dict.fromkeys(np.flatnonzero(mask).tolist(), f"column {column!r} is null") | reasons
    if not reasons:
        return Converted(rows, bad)
    places = np.delete(np.arange(rows.num_rows + len(bad)), [place for place, _ in bad])
    kept = np.ones(rows.num_rows, dtype=bool)
    kept[list(reasons)] = False
    return Converted(rows.filter(pa.array(kept)), bad + [(int(places[row]), reasons[row]) for row in sorted(reasons)])


def is_infinite(column: pa.Array) -> bool:
    return bool(pa.types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py())
