"""CSV and JSON lines: blocks of records into Arrow batches, malformed records apart.

A block is converted as a whole. Where that fails, its records are tried in smaller groups until the ones to
blame stand alone: good records convert by the same rules whatever stands beside them.
"""

import csv
import io
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from holdfast.errors import BadRecord, JobRefused
from holdfast.sources.files.lines import record_ranges
from holdfast.sources.schema_fit import EvolutionPolicy, check_columns, conform, forbidden_nulls

PAYLOAD_CHARS_MAX = 65_536
SALVAGE_RECORDS = 256
ROW_NUMBER = re.compile(r"Row #(\d+): ")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class CsvOptions:
    """How the CSV files are written. `multiline`: quoted values may hold line breaks; a file is then one read."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    multiline: bool = False
    null_values: tuple[str, ...] = ("",)


class BadText(NamedTuple):
    """A record that was left out: its place in the block in bytes, why, and what it was."""

    offset: int
    reason: str
    payload: str


class Record(NamedTuple):
    """A record and its place in the block in bytes."""

    offset: int
    data: bytes


class ParsedBlock(NamedTuple):
    rows: pa.RecordBatch | None
    bad: list[BadText]


class Salvaged(NamedTuple):
    """What has been read of a block so far."""

    batches: list[pa.RecordBatch]
    bad: list[BadText]

    def block(self) -> ParsedBlock:
        rows = one_batch(pa.Table.from_batches(self.batches)) if self.batches else None
        return ParsedBlock(rows, sorted(self.bad, key=lambda one: one.offset))


class BlockParser(ABC):
    """Turns blocks of one file into batches of the source's schema."""

    @abstractmethod
    def parse(self, data: bytes) -> ParsedBlock:
        """All good rows of a block of whole records, in order, and the bad ones. Deterministic."""


class CsvParser(BlockParser):
    """CSV by PyArrow's reader, one thread, whole blocks."""

    def __init__(
        self, path: str, columns: list[str], schema: pa.Schema, options: CsvOptions, policy: EvolutionPolicy
    ) -> None:
        check_columns(path, columns, schema, policy)
        self._quote = options.quote if options.multiline else None
        self._options = options
        self._schema = schema
        self._columns = columns
        self._types = {column.name: column.type for column in schema if column.name in columns}

    def parse(self, data: bytes) -> ParsedBlock:
        starts, ends = record_ranges(data, self._quote)
        if not len(starts):
            return ParsedBlock(None, [])
        whole = self._convert(data, len(starts), data[starts[-1] : ends[-1]])
        if isinstance(whole, pa.RecordBatch):
            return ParsedBlock(whole, [])
        found = Salvaged([], [])
        records = self._of_right_width(data, starts, ends, found)
        for begin in range(0, len(records), SALVAGE_RECORDS):
            self._salvage(records[begin : begin + SALVAGE_RECORDS], found)
        return found.block()

    def _of_right_width(self, data: bytes, starts: np.ndarray, ends: np.ndarray, found: Salvaged) -> list[Record]:
        """The records that need a closer look: where nothing is quoted, counting delimiters finds most bad ones."""
        array = np.frombuffer(data, dtype=np.uint8)
        unquoted = np.add.reduceat((array == ord(self._options.quote)).astype(np.int64), starts) == 0
        widths = np.add.reduceat((array == ord(self._options.delimiter)).astype(np.int64), starts) + 1
        wrong = unquoted & (widths != len(self._columns))
        records = [Record(start, data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        for index in np.flatnonzero(wrong).tolist():
            found.bad.append(bad_text(records[index], f"has {widths[index]} fields, expected {len(self._columns)}"))
        return [records[index] for index in np.flatnonzero(~wrong).tolist()]

    def _salvage(self, records: list[Record], found: Salvaged) -> None:
        """What can be read of a few records; the reader's errors name the row, which is then tried alone."""
        while records:
            result = self._together(records)
            if isinstance(result, pa.RecordBatch):
                found.batches.append(result)
                return
            blamed = self._blamed(result, records)
            if blamed is None:
                half = len(records) // 2
                self._salvage(records[:half], found)
                records = records[half:]
                continue
            self._salvage(records[:blamed], found)
            found.bad.append(bad_text(records[blamed], str(self._together(records[blamed : blamed + 1]))))
            records = records[blamed + 1 :]

    def _blamed(self, reason: str, records: list[Record]) -> int | None:
        """The place of the record that an error names, if that record alone fails too."""
        if len(records) == 1:
            return 0
        named = ROW_NUMBER.search(reason)
        if named is None:
            return None
        place = int(named[1]) - 1
        alone = place < len(records) and not isinstance(self._together(records[place : place + 1]), pa.RecordBatch)
        return place if alone else None

    def _together(self, records: list[Record]) -> pa.RecordBatch | str:
        return self._convert(b"".join(record.data for record in records), len(records), records[-1].data)

    def _convert(self, data: bytes, count: int, last: bytes) -> pa.RecordBatch | str:
        """One row per record, in order; or why that is not possible."""
        problem = self._quoting(last)
        if problem is not None:
            return problem
        try:
            table = read_csv(data, self._columns, self._options, self._types)
        except pa.ArrowInvalid as error:
            return str(error).partition("\n")[0]
        if table.num_rows != count:
            return f"is {table.num_rows} rows, expected {count}: a line break or a quote stands inside a value"
        batch = conform(one_batch(table), self._schema)
        nulls = forbidden_nulls(batch)
        return f"Row #{int(np.argmax(nulls[0])) + 1}: column {nulls[1]!r} is null" if nulls else batch

    def _quoting(self, record: bytes) -> str | None:
        """The reader takes a quote that is left open at the end of a block; elsewhere it swallows the next record."""
        text = record.decode("utf-8", "replace")
        if self._options.quote not in text:
            return None
        try:
            list(csv.reader(io.StringIO(text, newline=""), strict=True, **_dialect(self._options)))
        except csv.Error as error:
            return "a quote is left open" if "unexpected end" in str(error) else None
        return None


def read_csv(data: bytes, columns: list[str], options: CsvOptions, types: dict[str, pa.DataType] | None) -> pa.Table:
    """A block without a header line; types are inferred where none are given."""
    return pa_csv.read_csv(
        pa.BufferReader(data),
        read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=columns),
        parse_options=pa_csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            newlines_in_values=options.multiline,
        ),
        convert_options=pa_csv.ConvertOptions(
            column_types=types,
            include_columns=list(types) if types is not None else None,
            null_values=list(options.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def split_header(line: bytes, options: CsvOptions) -> list[str]:
    """The column names of a header line."""
    text = line.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    return next(csv.reader(io.StringIO(text, newline=""), **_dialect(options)), [])


def check_csv_types(schema: pa.Schema) -> None:
    """Raise `JobRefused` for a type that CSV cannot hold."""
    for column in schema:
        try:
            read_csv(b"x\n", ["x"], CsvOptions(null_values=("x",)), {"x": column.type})
        except pa.ArrowNotImplementedError as error:
            raise JobRefused(
                f"column {column.name!r}: a CSV file cannot hold {column.type}: read it as a string, or use JSON lines"
            ) from error


class JsonParser(BlockParser):
    """One JSON object a line, decoded by msgspec, converted column by column.

    PyArrow's JSON reader is not used: it ends the process on a line that is `null` (PyArrow 26).
    """

    def __init__(self, path: str, schema: pa.Schema, policy: EvolutionPolicy) -> None:
        self._path = path
        self._schema = schema
        self._policy = policy
        self._names = frozenset(schema.names)
        self._carriers = [(column, carrier(column.type)) for column in schema]
        self._decoder = msgspec.json.Decoder(dict[str, Any])

    def parse(self, data: bytes) -> ParsedBlock:
        starts, ends = record_ranges(data)
        bad: list[BadText] = []
        records: list[Record] = []
        rows: list[dict[str, Any]] = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            record = Record(start, data[start:end])
            try:
                rows.append(self._decoder.decode(record.data))
                records.append(record)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                bad.append(bad_text(record, f"not a JSON object: {error}"))
        if self._policy.on_new_column == "fail":
            self._refuse_new(rows)
        found = Salvaged([], bad)
        if rows:
            self._salvage(rows, records, found)
        return found.block()

    def _salvage(self, rows: list[dict[str, Any]], records: list[Record], found: Salvaged) -> None:
        """Halves what does not convert until the rows to blame stand alone."""
        batch = self._convert(rows)
        if isinstance(batch, pa.RecordBatch):
            found.batches.append(batch)
        elif len(rows) == 1:
            found.bad.append(bad_text(records[0], batch))
        else:
            half = len(rows) // 2
            self._salvage(rows[:half], records[:half], found)
            self._salvage(rows[half:], records[half:], found)

    def _convert(self, rows: list[dict[str, Any]]) -> pa.RecordBatch | str:
        columns = []
        for column, carried in self._carriers:
            try:
                values = [row.get(column.name) for row in rows]
                if pa.types.is_floating(carried):
                    values = [float(value) if type(value) is int else value for value in values]
                columns.append(cast_nested(pa.array(values, type=carried), column.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                return f"column {column.name!r} is no {column.type}: {error}"
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        nulls = forbidden_nulls(batch)
        return f"column {nulls[1]!r} is null" if nulls else batch

    def _refuse_new(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if not row.keys() <= self._names:
                new = sorted(row.keys() - self._names)
                raise BadRecord(
                    f"{self._path}: has new columns {new}, expected {self._schema.names}: add them to schema=, or "
                    "use on_new_column='ignore' to leave them out"
                )


def carrier(type_: pa.DataType) -> pa.DataType:
    """The type that JSON values take before they are cast: text for what JSON has no value for."""
    if pa.types.is_temporal(type_) or pa.types.is_decimal(type_) or pa.types.is_binary(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(child.name, carrier(child.type)) for child in type_])
    if pa.types.is_list(type_):
        return pa.list_(carrier(type_.value_type))
    return type_


def cast_nested(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """As `pc.cast`, which also casts what lies below a null struct, and fails there."""
    if array.type == type_:
        return array
    if pa.types.is_struct(type_):
        children = [cast_nested(child, field.type) for child, field in zip(array.flatten(), type_, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    if pa.types.is_list(type_):
        values = cast_nested(array.values, type_.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=array.is_null())
    return pc.cast(array, type_)


def infer_csv(path: str, columns: list[str], data: bytes, options: CsvOptions) -> pa.Schema:
    """Column types from the first records of a file."""
    try:
        return read_csv(data, columns, options, None).schema
    except pa.ArrowInvalid as error:
        raise JobRefused(f"{path}: the schema cannot be inferred: {error}: give schema=") from error


def infer_json(path: str, data: bytes) -> pa.Schema:
    """Column types from the first records of a file, in the order in which the columns appear."""
    starts, ends = record_ranges(data)
    decoder = msgspec.json.Decoder(dict[str, Any])
    try:
        rows = [decoder.decode(data[start:end]) for start, end in zip(starts, ends, strict=True)]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise JobRefused(f"{path}: the schema cannot be inferred: {error}: give schema=") from error
    names = dict.fromkeys(name for row in rows for name in row)
    fields = []
    for name in names:
        try:
            fields.append(pa.field(name, pa.array([row.get(name) for row in rows]).type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise JobRefused(f"{path}: column {name!r} has values of several types ({error}): give schema=") from error
    return pa.schema(fields)


def bad_text(record: Record, reason: str) -> BadText:
    payload = record.data.decode("utf-8", "replace").rstrip("\r\n")[:PAYLOAD_CHARS_MAX]
    return BadText(record.offset, ROW_NUMBER.sub("", reason, count=1), payload)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    combined = table.combine_chunks().to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=table.schema)


def _dialect(options: CsvOptions) -> dict[str, Any]:
    return {"delimiter": options.delimiter, "quotechar": options.quote}
