"""JSON lines: a JSON object in each line, decoded by msgspec and converted column by column.

PyArrow's JSON reader is not used, because it ends the process on a line that is `null` (PyArrow 26).
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused
from holdfast.sources.files import lines
from holdfast.sources.files.text_format import (
    BlockParser,
    ParsedBlock,
    Salvaged,
    TextFormat,
    TextHead,
    TextRecord,
    bad_text,
    records_of,
    timestamp_advice,
)
from holdfast.sources.files.trees import FileInfo, FileTree
from holdfast.sources.schema_fit import EvolutionPolicy, forbidden_nulls, new_columns


class JsonFormat(TextFormat):
    """JSON lines."""

    name = "json"
    suffixes = (".json", ".jsonl", ".ndjson")

    def infer(self, tree: FileTree, file: FileInfo) -> pa.Schema:
        decoder = msgspec.json.Decoder(dict[str, Any])
        data = self.first_bytes(tree, file).removeprefix(lines.BYTE_ORDER_MARK)
        try:
            rows = [decoder.decode(record.data) for record in records_of(data) if not record.data.isspace()]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise JobRefused(f"{file.path}: the schema cannot be inferred: {error}: give schema=") from error
        return inferred_schema(file.path, rows)

    def head(self, tree: FileTree, file: FileInfo, start: int) -> TextHead | None:
        if start > 0:
            return TextHead(None, 0)
        if self.indivisible(file):
            data = self.first_bytes(tree, file)
        else:
            data = tree.read_range(file, 0, min(len(lines.BYTE_ORDER_MARK), file.size))
        return TextHead(None, len(lines.BYTE_ORDER_MARK) if data.startswith(lines.BYTE_ORDER_MARK) else 0)

    def parser(self, file: FileInfo, head: TextHead, schema: pa.Schema, policy: EvolutionPolicy) -> BlockParser:
        return JsonParser(file.path, schema, policy)


class JsonParser(BlockParser):
    """Parses blocks of JSON lines."""

    def __init__(self, path: str, schema: pa.Schema, policy: EvolutionPolicy) -> None:
        self._path = path
        self._schema = schema
        self._policy = policy
        self._names = frozenset(schema.names) | policy.elsewhere
        self._carriers = [(column, carrier(column.type)) for column in schema]
        self._decoder = msgspec.json.Decoder(dict[str, Any])

    def parse(self, data: bytes) -> ParsedBlock:
        return self.parse_records(record for record in records_of(data) if not record.data.isspace()).block(
            self._schema
        )

    def parse_records(self, given: Iterable[TextRecord]) -> Salvaged:
        """Parse records that were divided already; each is a JSON object, or bad."""
        found = Salvaged([], [])
        records: list[TextRecord] = []
        rows: list[dict[str, Any]] = []
        for record in given:
            try:
                row = self._decoder.decode(record.data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                found.bad.append(bad_text(record, f"not a JSON object: {error}"))
                continue
            if self._policy.on_new_column == "fail" and not row.keys() <= self._names:
                found.bad.append(bad_text(record, new_columns(sorted(row.keys() - self._names), self._schema)))
                continue
            rows.append(row)
            records.append(record)
        if rows:
            self._salvage(rows, records, found)
        return found

    def _salvage(self, rows: list[dict[str, Any]], records: list[TextRecord], found: Salvaged) -> None:
        """Convert the rows; halve them if that fails, until each bad row stands alone."""
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
        """Return the rows as a batch, or the reason why that is impossible."""
        columns = []
        for column, carried in self._carriers:
            try:
                values = [row.get(column.name) for row in rows]
                if pa.types.is_floating(carried):
                    values = [float(value) if type(value) is int else value for value in values]
                columns.append(cast_nested(pa.array(values, type=carried), column.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                return f"column {column.name!r} is no {column.type}: {timestamp_advice(str(error))}"
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        nulls = forbidden_nulls(batch)
        return f"column {nulls[1]!r} is null" if nulls else batch


def carrier(type_: pa.DataType) -> pa.DataType:
    """Return the type that JSON values take before they are cast: text, if JSON has no value of the type."""
    if pa.types.is_temporal(type_) or pa.types.is_decimal(type_) or pa.types.is_binary(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(child.name, carrier(child.type)) for child in type_])
    if pa.types.is_list(type_):
        return pa.list_(carrier(type_.value_type))
    return type_


def cast_nested(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast an array, and the children of structs and lists by themselves.

    `pc.cast` also casts values below a null struct, which may hold anything, and fails there.
    """
    if array.type == type_:
        return array
    if pa.types.is_struct(type_):
        children = [cast_nested(child, field.type) for child, field in zip(array.flatten(), type_, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    if pa.types.is_list(type_):
        values = cast_nested(array.values, type_.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=array.is_null())
    return pc.cast(array, type_)


def inferred_schema(path: str, rows: list[dict[str, Any]]) -> pa.Schema:
    """Return the types of the rows' values, in the order in which the columns appear."""
    fields = []
    for name in dict.fromkeys(name for row in rows for name in row):
        try:
            fields.append(pa.field(name, pa.array([row.get(name) for row in rows]).type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise JobRefused(f"{path}: column {name!r} has values of several types ({error}): give schema=") from error
    return pa.schema(fields)
