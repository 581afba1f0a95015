"""Rows made of messages: the value as bytes, as text, or as the columns of a JSON object or an Avro record, with
metadata.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.json_rows.reader import JsonReader
from holdfast.sources.kafka.avro import FRAME_BYTES, AvroSchema, decoder, frame
from holdfast.sources.kafka.messages import HEADERS, Messages

METADATA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
TIME_MS_MAX = (2**63 - 1) // 1000
"""The last time in milliseconds that a column of microseconds can hold."""


class BadMessage(NamedTuple):
    """A message that was left out: its place among the messages, and the reason."""

    place: int
    reason: str


class Parsed(NamedTuple):
    """The columns of the good messages, in order, and the bad messages."""

    columns: list[pa.Array]
    bad: list[BadMessage]


class ValueFormat:
    """The value as bytes, in a column `value`."""

    def __init__(self) -> None:
        self.schema = pa.schema([pa.field("value", pa.binary())])

    def narrowed(self, names: Collection[str]) -> "ValueFormat":
        """Return the format for the columns in `names`; it may return further columns."""
        return self

    def parse(self, values: pa.Array) -> Parsed:
        return Parsed([values], [])


class TextValues(ValueFormat):
    """The value as text in UTF-8, in a column `value`."""

    def __init__(self) -> None:
        self.schema = pa.schema([pa.field("value", pa.string())])

    def parse(self, values: pa.Array) -> Parsed:
        with suppress(pa.ArrowInvalid):  # some value is not UTF-8: the values are decoded singly to find it
            return Parsed([pc.cast(values, pa.string())], [])
        good, bad = [], []
        for place, value in enumerate(values.to_pylist()):
            try:
                good.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                bad.append(BadMessage(place, f"is not UTF-8: {error}"))
        return Parsed([pa.array(good, pa.string())], bad)


class JsonValues(ValueFormat):
    """The value as a JSON object, whose fields are columns; a message without a value is a bad record."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._reader = JsonReader(schema)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the schema, since decoders cannot be pickled."""
        return JsonValues, (self.schema,)

    def narrowed(self, names: Collection[str]) -> ValueFormat:
        return JsonValues(pa.schema([field for field in self.schema if field.name in names]))

    def parse(self, values: pa.Array) -> Parsed:
        rows, bad = self._reader.read(values)
        return Parsed(rows.columns, [BadMessage(*each) for each in bad])


class AvroValues(ValueFormat):
    """A record in Avro's binary form, whose fields are columns; a message without a value is a bad record.

    With `ids`, values have the frame of Confluent's wire format: the schema that the frame names has written the value.
    """

    def __init__(self, schema: AvroSchema, ids: Mapping[int, AvroSchema] | None = None) -> None:
        self._reader = schema
        self._ids = ids
        self.schema = schema.columns
        writers = {b"": schema} if ids is None else {frame(number): one for number, one in ids.items()}
        self._decoders = {head: decoder(writer, schema) for head, writer in writers.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the schemas, since functions of the libraries cannot be pickled."""
        return AvroValues, (self._reader, self._ids)

    def parse(self, values: pa.Array) -> Parsed:
        found = AvroRows([], [], [])
        for head, places, content in by_head(values.to_pylist(), 0 if self._ids is None else FRAME_BYTES):
            if head in self._decoders:
                found.add(self._decoders[head], content, np.array(places))
            else:
                reason = "has no value" if head is None else self._unknown(head)
                found.bad.extend(BadMessage(place, reason) for place in places)
        return found.joined(self.schema)

    def _unknown(self, head: bytes) -> str:
        if len(head) < FRAME_BYTES or head[0] != 0:
            return f"begins with {head!r}: expected a zero byte and a schema's id in four (Confluent's wire format)"
        number = int.from_bytes(head[1:], "big")
        return f"was written with the schema of id {number}, which schema_ids does not name: {sorted(self._ids or ())}"


def by_head(values: list[bytes | None], size: int) -> list[tuple[bytes | None, list[int], list[bytes]]]:
    """Group values by their first `size` bytes: the head, the places of the values, and the rest of each. The head of
    None is None."""
    found: dict[bytes | None, tuple[list[int], list[bytes]]] = {}
    for place, value in enumerate(values):
        head = None if value is None else value[:size]
        places, rests = found.setdefault(head, ([], []))
        places.append(place)
        if value is not None:
            rests.append(value[size:])
    return [(head, places, rests) for head, (places, rests) in found.items()]


class AvroRows(NamedTuple):
    """Rows of decoded values, the places of their messages, and bad messages."""

    rows: list[pa.RecordBatch]
    places: list[npt.NDArray[np.int64]]
    bad: list[BadMessage]

    def add(
        self, decode: Callable[[list[bytes]], pa.RecordBatch], values: list[bytes], places: npt.NDArray[np.int64]
    ) -> None:
        """Decode values; if that fails, decode halves of them, until each bad value is found."""
        try:
            rows = decode(values)
        except ValueError as error:
            if len(values) == 1:
                self.bad.append(BadMessage(int(places[0]), f"is no Avro value of the schema: {error}"))
                return
            half = len(values) // 2
            self.add(decode, values[:half], places[:half])
            self.add(decode, values[half:], places[half:])
        else:
            self.rows.append(rows)
            self.places.append(places)

    def joined(self, schema: pa.Schema) -> Parsed:
        """Return all rows in the order of their messages."""
        rows = pa.Table.from_batches(self.rows, schema).combine_chunks()
        if len(self.rows) > 1:
            rows = rows.take(pa.array(np.argsort(np.concatenate(self.places)))).combine_chunks()
        columns = [as_array(column) for column in rows.columns]
        return Parsed(columns, sorted(self.bad))


def as_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def metadata_columns(messages: Messages, topic: str, partition: int, names: Sequence[str]) -> list[pa.Array]:
    """Return columns of `METADATA`, in the order of `names`."""
    count = len(messages.offsets)
    found: dict[str, Callable[[], Any]] = {
        "key": lambda: messages.keys,
        "headers": lambda: messages.headers,
        "topic": lambda: pa.repeat(pa.scalar(topic), count),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": lambda: pa.array(messages.offsets),
        "timestamp": lambda: times_of(messages),
    }
    return [found[name]() for name in names]


def bad_metadata(messages: Messages) -> dict[int, str]:
    """Return the places of messages whose metadata has no place in its columns, with the reasons."""
    bad = dict(messages.bad_headers)
    if messages.timestamps_ms is not None:
        for place in np.flatnonzero(messages.timestamps_ms > TIME_MS_MAX).tolist():
            bad[place] = f"its timestamp {messages.timestamps_ms[place]} ms is too far for microseconds"
    return bad


def times_of(messages: Messages) -> pa.Array:
    times_ms = messages.timestamps_ms
    assert times_ms is not None, "asked for"
    return pa.array(times_ms * 1000, METADATA.field("timestamp").type, mask=times_ms < 0)
