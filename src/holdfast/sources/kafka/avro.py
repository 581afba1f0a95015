"""Avro values: a record's schema as Arrow columns, and rows from and to Avro's binary form.

Two libraries are used. pyruhvro converts many values at once to and from Arrow, without a Python object for each row,
and knows the plain types, lists, maps and records. fastavro works row by row, for schemas with bytes, fixed, decimals,
UUIDs or local timestamps. A schema uses the same library for all its values, so the same bytes always give the same
row.

A value of Confluent's wire format has a frame before it:   0   schema id (4 bytes, big endian)   Avro's binary form
"""

import io
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.casts import cast_in_range
from holdfast.errors import JobRefused, SettingsError
from holdfast.sources.kafka.avro_defaults import decode_defaults
from holdfast.sources.kafka.avro_varints import check_integers

PACKAGES_MISSING = "Avro needs the packages pyruhvro and fastavro: pip install 'holdfast[avro]'"
FRAME_BYTES = 5
UTC = pa.timestamp("us", tz="UTC")
PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp-millis": UTC,
    "timestamp-micros": UTC,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
BY_ROW = {"bytes", "fixed", "decimal", "uuid", "local-timestamp-millis", "local-timestamp-micros"}
"""Types that only the row-wise library knows."""
REFUSED = ("time-", "timestamp-", "local-timestamp-", "duration", "big-decimal")
"""Prefixes of logical types that have no column type and are refused; other unknown logical types are ignored, as Avro
requires."""
REQUIRED_BELOW = "required below a column"
CHOOSY = {"enum", "fixed", "decimal", "uuid", REQUIRED_BELOW}
"""Kinds that cannot encode every value of their column's type."""


@cache
def libraries() -> tuple[Any, Any]:
    """Import pyruhvro and fastavro. Raises `JobRefused` with the remedy if they are not installed."""
    try:
        import fastavro
        import pyruhvro
    except ImportError as error:
        raise JobRefused(f"{PACKAGES_MISSING} ({error})") from error
    return pyruhvro, fastavro


class AvroSchema:
    """The schema of a record. Raises `SettingsError` if it cannot be read, or has a type without an Arrow type."""

    def __init__(self, declared: Any, whose: str = "schema") -> None:
        _, fastavro = libraries()
        try:
            self._parsed = json.loads(declared) if isinstance(declared, str) else declared
            expanded = fastavro.schema.expand_schema(self._parsed)
        except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise SettingsError(f"{whose}: is no Avro schema in JSON: {type(error).__name__}: {error}") from error
        if not isinstance(expanded, dict) or expanded.get("type") != "record":
            raise SettingsError(f"{whose}: expected an Avro record, found {str(declared)[:200]}")
        self.text = json.dumps(self._parsed)
        self._whose = whose
        self.kinds: set[str] = set()
        self.columns = pa.schema([self._field(field, whose) for field in expanded["fields"]])
        self.for_reading()

    @property
    def by_row(self) -> bool:
        return bool(self.kinds & BY_ROW)

    def parsed(self) -> Any:
        """Return the schema in the form for the row-wise library."""
        return libraries()[1].parse_schema(json.loads(self.text))

    def for_reading(self) -> Any:
        """Return the schema in the form for the row-wise library, with decoded default values."""
        parsed = self.parsed()
        decode_defaults(parsed, parsed.get("__named_schemas", {}), self._whose)
        return parsed

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroSchema, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroSchema) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]

    def _field(self, field: Mapping[str, Any], whose: str) -> pa.Field:
        """Return the column of a field; only a union with null makes it nullable."""
        type_, nullable = without_null(field["type"])
        return pa.field(field["name"], self._type(type_, f"{whose}: field {field['name']!r}"), nullable=nullable)

    def _type(self, declared: Any, whose: str) -> pa.DataType:
        """Return the Arrow type of a type without null. All nested values are nullable, as in Spark."""
        kind = kind_of(declared)
        if isinstance(kind, str):
            self.kinds.add(kind)
        match kind:
            case "record":
                return pa.struct([pa.field(one["name"], self._below(one["type"], whose)) for one in declared["fields"]])
            case "array":
                if takes_no_bytes(declared["items"]):
                    raise SettingsError(
                        f"{whose}: an item of {json.dumps(declared)[:200]} takes no bytes, so that a short value could "
                        "have any number of items; leave the field out"
                    )
                return pa.list_(pa.field("element", self._below(declared["items"], whose)))
            case "map":
                return pa.map_(pa.string(), self._below(declared["values"], whose))
            case "decimal":
                return pa.decimal128(declared["precision"], declared.get("scale", 0))
            case str() if kind in PLAIN:
                return PLAIN[kind]
        raise SettingsError(f"{whose}: Avro type {json.dumps(declared)[:200]} has no column type; leave the field out")

    def _below(self, declared: Any, whose: str) -> pa.DataType:
        type_, nullable = without_null(declared)
        if not nullable:
            self.kinds.add(REQUIRED_BELOW)
        return self._type(type_, whose)


def kind_of(declared: Any) -> Any:
    """Return the logical type if Arrow knows it or it must be refused, else the type."""
    if not isinstance(declared, Mapping):
        return declared
    logical = declared.get("logicalType")
    if logical in PLAIN or logical == "decimal" or str(logical).startswith(REFUSED):
        return logical
    return kind_of(declared["type"])


def takes_no_bytes(declared: Any) -> bool:
    """Return whether values of a type have no bytes: null, and records of only such types. A union has the bytes of its
    branch number."""
    if isinstance(declared, Mapping) and "fields" in declared:
        return all(takes_no_bytes(field["type"]) for field in declared["fields"])
    if isinstance(declared, Mapping) and declared["type"] == "fixed":
        return not declared["size"]
    return bool(takes_no_bytes(declared["type"])) if isinstance(declared, Mapping) else declared == "null"


def without_null(declared: Any) -> tuple[Any, bool]:
    """Return a type without null, and whether it had it. A union of more types stays as it is."""
    if isinstance(declared, list):
        others = [one for one in declared if one != "null"]
        if len(others) == 1:
            return others[0], len(others) < len(declared)
    return declared, False


def schema_of_rows(rows: pa.Schema, name: str = "row") -> dict[str, Any]:
    """Return the Avro schema of rows. Raises `SettingsError` for a type that Avro does not have."""
    fields = []
    for column in rows:
        declared = declared_type(column.type, f"{name}_{column.name}", column.name)
        fields.append({"name": column.name, "type": ["null", declared] if column.nullable else declared})
    return {"type": "record", "name": name, "fields": fields}


def declared_type(type_: pa.DataType, name: str, column: str) -> Any:
    """Return the Avro type for an Arrow type; records get `name`."""
    named = {plain: kind for kind, plain in PLAIN.items() if kind not in {"uuid", "enum", "fixed"} and "-" not in kind}
    if type_ in named and type_ != pa.date32():
        return named[type_]
    if type_ in {pa.int8(), pa.int16()}:
        return "int"
    if type_ == pa.date32():
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(type_):
        return {"type": "long", "logicalType": "timestamp-micros" if type_.tz else "local-timestamp-micros"}
    if pa.types.is_decimal128(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if pa.types.is_list(type_):
        return {"type": "array", "items": nullable_type(type_.value_type, f"{name}_element", column)}
    if pa.types.is_map(type_) and type_.key_type == pa.string():
        return {"type": "map", "values": nullable_type(type_.item_type, f"{name}_value", column)}
    if pa.types.is_struct(type_):
        fields = [{"name": one.name, "type": nullable_type(one.type, f"{name}_{one.name}", column)} for one in type_]
        return {"type": "record", "name": name, "fields": fields}
    raise SettingsError(f"column {column!r} is {type_}, for which Avro has no type: cast the column, or leave it out")


def nullable_type(type_: pa.DataType, name: str, column: str) -> Any:
    return ["null", declared_type(type_, name, column)]


def decoder(writer: AvroSchema, reader: AvroSchema) -> Callable[[list[bytes]], pa.RecordBatch]:
    """Return the function from values to rows; it raises `ValueError` if a value is malformed."""
    fast, by_row = libraries()
    expanded = by_row.schema.expand_schema(json.loads(writer.text))
    if writer == reader and not reader.by_row:
        wide = json.dumps(with_wide_ints(json.loads(reader.text)))

        def encoded_again(values: list[bytes]) -> list[bytes]:
            (found,) = fast.serialize_record_batch(fast.deserialize_array(values, wide), wide, 1)
            return list(found.to_pylist())

        def decode_all(values: list[bytes]) -> pa.RecordBatch:
            rows = narrowed(fast.deserialize_array(values, wide), reader.columns)
            check_integers(values, expanded, encoded_again)
            return rows

        return decode_all
    old, new = writer.parsed(), reader.for_reading()

    def decode(values: list[bytes]) -> pa.RecordBatch:
        try:
            check_integers(values, expanded)
            rows = [plain(by_row.schemaless_reader(io.BytesIO(value), old, new)) for value in values]
            return pa.RecordBatch.from_pylist(rows, schema=reader.columns)
        except Exception as error:  # The library raises whatever the bytes lead it to: EOFError, IndexError, ...
            raise ValueError(f"{type(error).__name__}: {error}") from error

    return decode


def with_wide_ints(declared: Any) -> Any:
    """Return a schema with `long` in place of `int`, which has the same bytes, since the library silently cuts `int` to
    32 bits."""
    if isinstance(declared, list):
        return [with_wide_ints(one) for one in declared]
    if isinstance(declared, dict):
        if declared.get("type") == "int":
            return "long"
        made = {name: with_wide_ints(declared[name]) for name in ("type", "items", "values") if name in declared}
        fields = [{**field, "type": with_wide_ints(field["type"])} for field in declared.get("fields", ())]
        return {**declared, **made, **({"fields": fields} if fields else {})}
    return "long" if declared == "int" else declared


def narrowed(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of wide integers in the columns of a schema. Raises `ValueError` if any value does not fit."""
    rows.validate(full=True)  # Text may be invalid UTF-8.
    columns = []
    for column, field in zip(rows.columns, schema, strict=True):
        values, outside = cast_in_range(column, with_days_as_numbers(field.type))
        if outside is not None:
            raise ValueError(f"field {field.name!r} has a value that {field.type} cannot hold")
        columns.append(values.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def with_days_as_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_days_as_numbers(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(with_days_as_numbers(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_days_as_numbers(kind.value_type)))
    return pa.int32() if kind == pa.date32() else kind


def plain(value: Any) -> Any:
    """Return a value as Arrow takes it: UUIDs as text."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return str(value) if type(value).__name__ == "UUID" else value


def encode(rows: pa.RecordBatch, schema: AvroSchema) -> list[bytes]:
    """Return the rows in Avro's binary form. Columns are found by name; no row may be `unencodable`."""
    rows = rows.select(schema.columns.names)
    if schema.by_row:
        return [encode_row(row, schema.parsed()) for row in rows.to_pylist(maps_as_pydicts="strict")]
    fast, _ = libraries()
    wanted = fast.avro_to_arrow_schema(schema.text)
    # Times are rounded down to the unit of the schema.
    columns = [cast_in_range(column, field.type).values for column, field in zip(rows.columns, wanted, strict=True)]
    (encoded,) = fast.serialize_record_batch(pa.RecordBatch.from_arrays(columns, schema=wanted), schema.text, 1)
    found: list[bytes] = encoded.to_pylist()
    return found


def encode_row(row: Mapping[str, Any], parsed: Any) -> bytes:
    buffer = io.BytesIO()
    libraries()[1].schemaless_writer(buffer, parsed, row, strict=True)
    return buffer.getvalue()


def unencodable(rows: pa.RecordBatch, schema: AvroSchema) -> dict[int, str]:
    """Return the numbers of rows that the schema cannot hold, each with the reason."""
    rows = rows.select(schema.columns.names)
    found: dict[int, str] = {}
    for field, column in zip(schema.columns, rows.columns, strict=True):
        if not field.nullable and column.null_count:
            nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
            found |= {int(row): f"column {field.name!r} is null, which the Avro schema does not allow" for row in nulls}
    if schema.kinds & (CHOOSY | BY_ROW):
        parsed = schema.parsed()
        for number, row in enumerate(_row_makers(rows)):
            try:
                encode_row(row(), parsed)
            except Exception as error:  # The library raises whatever the value leads it to.
                found.setdefault(number, f"the Avro schema does not hold it: {type(error).__name__}: {error}")
    return found


def _row_makers(rows: pa.RecordBatch) -> list[Callable[[], Any]]:
    """Return a function for each row that makes it, or raises if Python or a dict cannot hold it."""
    try:
        return [partial(_same, row) for row in rows.to_pylist(maps_as_pydicts="strict")]
    except Exception:  # Some row cannot be made; each is made alone.
        return [partial(_made_alone, rows, number) for number in range(rows.num_rows)]


def _same(row: Any) -> Any:
    return row


def _made_alone(rows: pa.RecordBatch, number: int) -> Any:
    return rows.slice(number, 1).to_pylist(maps_as_pydicts="strict")[0]


def frame(schema_id: int) -> bytes:
    """Return the first bytes of values with this schema, in Confluent's wire format."""
    return b"\x00" + schema_id.to_bytes(FRAME_BYTES - 1, "big")
