"""Messages made of rows: a key, and the row as a JSON object, an Avro record or a column's bytes."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.json_rows.far_times import time_texts
from holdfast.json_rows.leaves import is_bytes, is_text
from holdfast.json_rows.values import unfit_columns
from holdfast.json_rows.writer import row_texts
from holdfast.sinks.kafka.transactions import Message
from holdfast.sources.kafka.avro import AvroSchema, encode, frame

VALUES = ("json", "avro", "bytes")


class MessageLayout(msgspec.Struct, frozen=True):
    """Settings by which rows become messages; stored with each group, even if later starts declare others."""

    key: str | None
    value: str
    schema: str | None
    """The Avro schema as text."""
    schema_id: int | None


def unfit(schema: pa.Schema, key: str | None, value: str, avro: AvroSchema | None) -> str | None:
    """Return the reason why rows of this schema cannot become messages, or None."""
    if key is not None and key not in schema.names:
        return f"key={key!r}: the rows have the columns {schema.names}"
    if key is not None and pa.types.is_nested(schema.field(key).type):
        return f"key={key!r}: column {key!r} is {schema.field(key).type}, expected a plain type"
    if value == "bytes":
        if "value" not in schema.names:
            return f"value='bytes': expected a column 'value', the rows have {schema.names}"
        if not is_bytes_or_text(schema.field("value").type):
            return f"value='bytes': column 'value' is {schema.field('value').type}, expected binary or string"
    if value == "json" and (reason := unfit_columns(schema)) is not None:
        return f"value='json': {reason}: cast the column"
    return None if avro is None else unfit_for_avro(schema, avro)


def unfit_for_avro(schema: pa.Schema, avro: AvroSchema) -> str | None:
    """Return the first field of the Avro schema that the rows do not have with the field's type, or None."""
    for field in avro.columns:
        if field.name not in schema.names:
            return f"schema: field {field.name!r} is no column; the rows have {schema.names}"
        found = schema.field(field.name).type
        if not found.equals(field.type) and {found, field.type} - {pa.int8(), pa.int16(), pa.int32()}:
            return f"schema: field {field.name!r} takes {field.type}, column {field.name!r} is {found}: cast the column"
    return None


def messages(rows: pa.Table, layout: MessageLayout) -> Iterator[Message]:
    """Make the messages of rows, in order."""
    avro = None if layout.schema is None else AvroSchema(layout.schema)
    for batch in rows.to_batches(max_chunksize=8_192):
        keys = [None] * batch.num_rows if layout.key is None else as_bytes(batch.column(layout.key))
        yield from map(Message, keys, values_of(batch, layout, avro))


def values_of(batch: pa.RecordBatch, layout: MessageLayout, avro: AvroSchema | None) -> Iterable[bytes | None]:
    if avro is not None:
        first = b"" if layout.schema_id is None else frame(layout.schema_id)
        return [first + value for value in encode(batch, avro)]
    if layout.value == "bytes":
        return as_bytes(batch.column("value"))
    return row_texts(batch)


def as_bytes(column: pa.Array) -> Sequence[bytes | None]:
    """Return text and bytes as they are, other values as their text."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not is_bytes_or_text(column.type):
        column = as_text(column)
    return list(pc.cast(column, pa.binary()).to_pylist())


def as_text(column: pa.Array) -> pa.Array:
    """Return values as Arrow writes them, except for years that it writes wrongly: these have a sign, as in JSON."""
    texts = pc.cast(column, pa.string())
    if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
        return texts
    in_json = time_texts(column)
    return pc.if_else(pc.match_substring_regex(in_json, "^[+-]"), in_json, texts)


def is_bytes_or_text(type_: pa.DataType) -> bool:
    return is_bytes(type_) or is_text(type_)
