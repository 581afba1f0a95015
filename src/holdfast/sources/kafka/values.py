"""Rows made of messages: the value as it is, as text, or as the columns of a JSON object, and the metadata beside it.

JSON has two parsers that give the same rows. PyArrow's is fast, and takes batches in which every message is an object
of plain columns. As soon as it refuses a message, or could misunderstand it, the whole batch goes through the parser
of JSON files, which sets bad messages apart.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from holdfast.sources.files.json_format import JsonParser
from holdfast.sources.files.text_format import TextRecord
from holdfast.sources.kafka.messages import HEADERS, Messages
from holdfast.sources.schema_fit import EvolutionPolicy, forbidden_nulls

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
PLAIN = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()}
"""Types whose JSON both parsers read alike."""


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
        self._plain = all(field.type in PLAIN for field in schema)
        self._careful = JsonParser("", schema, EvolutionPolicy("ignore", "null"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to tasks as the schema alone: parsers cannot be pickled."""
        return JsonValues, (self.schema,)

    def parse(self, values: pa.Array) -> Parsed:
        if self._plain and are_objects(values):
            found = self._fast(values)
            if found is not None:
                return Parsed(found.columns, [])
        records = [TextRecord(place, value or b"null") for place, value in enumerate(values.to_pylist())]
        salvaged = self._careful.parse_records(records)
        rows = pa.Table.from_batches(salvaged.batches, self.schema).combine_chunks()
        columns = [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in rows.columns]
        return Parsed(columns, sorted(BadMessage(bad.offset, bad.reason) for bad in salvaged.bad))

    def _fast(self, values: pa.Array) -> pa.RecordBatch | None:
        """Parse all messages at once; None if that is not possible.

        Each message begins with `{` and ends with `}`, so that it gives a row at least, or an error. As many rows as
        messages are therefore one row from each.
        """
        joined = joined_lines(values)
        options = pj.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore")
        try:
            table = pj.read_json(
                pa.BufferReader(joined), pj.ReadOptions(use_threads=False, block_size=joined.size + 1), options
            )
            (batch,) = table.select(self.schema.names).combine_chunks().to_batches()
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
            batch.validate(full=True)
        except (pa.ArrowException, ValueError, KeyError):
            return None
        return batch if batch.num_rows == len(values) and forbidden_nulls(batch) is None else None


def are_objects(values: pa.Array) -> bool:
    """Return whether each value begins with a brace and ends with a brace."""
    if len(values) == 0 or values.null_count:
        return False
    offsets, data = parts(values)
    if not (np.diff(offsets) >= 2).all():
        return False
    return bool((data[offsets[:-1]] == ord("{")).all() and (data[offsets[1:] - 1] == ord("}")).all())


def joined_lines(values: pa.Array) -> pa.Buffer:
    """Return the values with a line feed after each."""
    offsets, data = parts(values)
    ends = offsets[1:] - offsets[0]
    content = data[offsets[0] : offsets[-1]]
    return pa.py_buffer(np.insert(content, ends, ord("\n")))


def parts(values: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the offsets and bytes of a binary array."""
    _, offsets, data = values.buffers()
    found = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return found, np.frombuffer(data, np.uint8)


def metadata_columns(messages: Messages, topic: str, partition: int, names: Sequence[str]) -> list[pa.Array]:
    """Return columns of `METADATA`, in the order of `names`."""
    count = len(messages.offsets)
    times = pa.array(messages.timestamps_ms * 1000, METADATA.field("timestamp").type, mask=messages.timestamps_ms < 0)
    found: dict[str, Callable[[], Any]] = {
        "key": lambda: messages.keys,
        "headers": lambda: messages.headers,
        "topic": lambda: pa.repeat(pa.scalar(topic), count),
        "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": lambda: pa.array(messages.offsets),
        "timestamp": lambda: times,
    }
    return [found[name]() for name in names]
