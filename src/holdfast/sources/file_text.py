"""CSV and JSON lines: blocks of records into Arrow batches, malformed records apart.

A block is converted as a whole; where that fails it is halved until the records that are to blame stand
alone, so good records convert by the same rules whatever stands beside them, and one bad record costs
about log2(n) conversions.
"""

import csv
import io
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from holdfast.errors import BadRecord, JobRefused
from holdfast.sources.file_lines import record_ranges
from holdfast.sources.file_schema import EvolutionPolicy, check_columns, conform, forbidden_nulls

PAYLOAD_CHARS_MAX = 65_536
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


@dataclass
class ParsedBlock:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    bad: list[BadText] = field(default_factory=list)


class BlockParser(ABC):
    """Turns blocks of one file into batches of the source's schema."""

    quote: str | None = None

    def parse(self, data: bytes) -> ParsedBlock:
        parsed = ParsedBlock()
        starts, ends = record_ranges(data, self.quote)
        records = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        if records:
            self._salvage(records, starts, parsed)
        return parsed

    def _salvage(self, records: list[bytes], starts: np.ndarray, parsed: ParsedBlock) -> None:
        batch = self.convert(records)
        if isinstance(batch, pa.RecordBatch):
            parsed.batches.append(batch)
        elif len(records) == 1:
            payload = records[0].decode("utf-8", "replace").rstrip("\r\n")[:PAYLOAD_CHARS_MAX]
            parsed.bad.append(BadText(int(starts[0]), batch, payload))
        else:
            half = len(records) // 2
            self._salvage(records[:half], starts[:half], parsed)
            self._salvage(records[half:], starts[half:], parsed)

    @abstractmethod
    def convert(self, records: list[bytes]) -> pa.RecordBatch | str:
        """One row per record, in order; or why that is not possible."""


class CsvParser(BlockParser):
    """CSV by PyArrow's reader, one thread, whole blocks."""

    def __init__(
        self, path: str, columns: list[str], schema: pa.Schema, options: CsvOptions, policy: EvolutionPolicy
    ) -> None:
        check_columns(path, columns, schema, policy)
        self.quote = options.quote if options.multiline else None
        self._options = options
        self._schema = schema
        self._columns = columns
        self._types = {column.name: column.type for column in schema if column.name in columns}

    def convert(self, records: list[bytes]) -> pa.RecordBatch | str:
        problem = self._quoting(records[-1])
        if problem is not None:
            return problem
        try:
            table = read_csv(b"".join(records), self._columns, self._options, self._types)
        except pa.ArrowInvalid as error:
            return str(error).partition("\n")[0]
        if table.num_rows != len(records):
            return f"is {table.num_rows} rows, expected 1: a line break or a quote stands inside a value"
        batch = conform(_one_batch(table), self._schema)
        nulls = forbidden_nulls(batch)
        return f"column {nulls[1]!r} is null" if nulls else batch

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
    """One JSON object a line, decoded by msgspec, converted column by column."""

    def __init__(self, path: str, schema: pa.Schema, policy: EvolutionPolicy) -> None:
        self._path = path
        self._schema = schema
        self._policy = policy
        self._names = frozenset(schema.names)
        self._carriers = [(column, carrier(column.type)) for column in schema]
        self._decoder = msgspec.json.Decoder(dict[str, Any])

    def convert(self, records: list[bytes]) -> pa.RecordBatch | str:
        rows = []
        for record in records:
            try:
                rows.append(self._decoder.decode(record))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                return f"not a JSON object: {error}"
        if self._policy.on_new_column == "fail":
            self._refuse_new(rows)
        columns = []
        for column, carried in self._carriers:
            try:
                values = [row.get(column.name) for row in rows]
                if pa.types.is_floating(carried):
                    values = [float(value) if type(value) is int else value for value in values]
                array = pa.array(values, type=carried)
                columns.append(cast_nested(array, column.type))
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


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    combined = table.combine_chunks().to_batches()
    return combined[0] if combined else pa.RecordBatch.from_pylist([], schema=table.schema)


def _dialect(options: CsvOptions) -> dict[str, Any]:
    return {"delimiter": options.delimiter, "quotechar": options.quote}
