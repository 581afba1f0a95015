"""Messages made of rows: a key, and the row as a JSON object or a column's bytes."""

from collections.abc import Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.sinks.kafka.transactions import Message


def unfit(schema: pa.Schema, key: str | None, value: str) -> str | None:
    """Return the reason why rows of this schema cannot become messages, or None."""
    if key is not None and key not in schema.names:
        return f"key={key!r}: the rows have the columns {schema.names}"
    if key is not None and pa.types.is_nested(schema.field(key).type):
        return f"key={key!r}: column {key!r} is {schema.field(key).type}, expected a plain type"
    if value == "bytes":
        if "value" not in schema.names:
            return f"value='bytes': expected a column 'value', the rows have {schema.names}"
        if not is_bytes(schema.field("value").type):
            return f"value='bytes': column 'value' is {schema.field('value').type}, expected binary or string"
    return None


def messages(rows: pa.Table, key: str | None, value: str) -> Iterator[Message]:
    """Make the messages of rows, in order."""
    encoder = msgspec.json.Encoder()
    for batch in rows.to_batches(max_chunksize=8_192):
        keys = [None] * batch.num_rows if key is None else as_bytes(batch.column(key))
        if value == "bytes":
            values = as_bytes(batch.column("value"))
        else:
            values = [encoder.encode(row) for row in batch.to_pylist()]
        yield from map(Message, keys, values)


def as_bytes(column: pa.Array) -> list[bytes | None]:
    """Return text and bytes as they are, other values as their text."""
    if not is_bytes(column.type):
        column = pc.cast(column, pa.string())
    return list(pc.cast(column, pa.binary()).to_pylist())


def is_bytes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_string(type_) or pa.types.is_large_string(type_))
