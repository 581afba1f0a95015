"""Topics of Kafka as a source: a partition is a split, its position the offset of its next message.

Only committed messages are read, up to the last stable offset. The enumerator plans on the driver (`enumerator.py`),
tasks read with a consumer that their process keeps (`readers.py`).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError, StorageError
from holdfast.ids import SplitPosition
from holdfast.json_rows.values import unfit_columns
from holdfast.schema import to_arrow_schema
from holdfast.sources.base import BadRow, Enumerator, EnumeratorContext, Offsets, Source, SourceBatch, SplitRead
from holdfast.sources.kafka.avro import AvroSchema
from holdfast.sources.kafka.client import client_options, client_package
from holdfast.sources.kafka.cluster import KafkaCluster
from holdfast.sources.kafka.enumerator import KafkaEnumerator
from holdfast.sources.kafka.group_commits import BackgroundGroupCommits
from holdfast.sources.kafka.messages import Messages, Wanted
from holdfast.sources.kafka.positions import partition_of, partitions
from holdfast.sources.kafka.readers import reader
from holdfast.sources.kafka.values import (
    METADATA,
    AvroValues,
    JsonValues,
    Parsed,
    TextValues,
    ValueFormat,
    bad_metadata,
    metadata_columns,
)

FETCHING = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "enable.auto.offset.store": False,
}
"""Options of the consumers that read; a user's options must not contain them."""
FETCHING_DEFAULTS = {
    "fetch.wait.max.ms": 20,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "queued.min.messages": 100_000,
    "fetch.queue.backoff.ms": 10,
}
"""Options that a user's own options override: large fetches, an answer soon after the last message, and a short pause
of fetching after the queue was full (librdkafka's own pause is a second, for which a fast reader would wait)."""
VALUES = ("bytes", "string", "json", "avro")
PARSERS = 2
"""Threads that parse messages in a task. A higher value uses more processors for a single partition, and holds more
messages in memory."""
PAYLOAD_CHARS_MAX = 65_536
"""Characters of a bad message that are reported. A higher value makes dead letters larger."""


class KafkaSource(Source):
    """The messages of topics.

    Parameters
    ----------
    bootstrap_servers
        `host:port`, or several of them with commas between.
    topics
        A topic, or a list of topics. All must exist when the job starts.
    pattern
        A regular expression in place of `topics`; topics that match it as a whole are read, also later ones.
    starting
        The first position if there is no checkpoint: `"earliest"`, `"latest"`, a `datetime` with a time zone (the first
        message of that time or later), or a dict from split (`"topic/0"`) to offset. A split that the dict does not
        name, or that appears later, is read from its earliest message.
    value
        `"bytes"` or `"string"`: a column `value`. `"json"`: the fields of a JSON object are columns, as `schema` says.
        `"avro"`: the fields of an Avro record are columns.
    schema
        With `value="json"`: a `pyarrow.Schema`, a Spark `StructType` or a DDL string. Fields that it does not name are
        left out, fields that a message does not have are null. With `value="avro"`: the schema of a record, as text in
        JSON or as Python objects.
    schema_ids
        With `value="avro"`: values are in Confluent's wire format, and this dict has the Avro schema behind each id. A
        value that another schema than `schema` has written is read by Avro's rules of schema resolution.
    metadata
        The further columns, of `key` (binary), `headers` (list of key and value), `topic`, `partition`, `offset`,
        `timestamp` (in UTC, the event time that the producer or the broker set); all by default.
    on_lost
        `"fail"` ends the query when messages are gone before they were read (retention, a topic that was deleted or
        created again, a log that became shorter), naming topic, partition, wanted and available offset. `"reset"` goes
        on from the earliest that is there and was not read.
    group
        A consumer group whose offsets are set after each checkpoint, for tools that show lag. They are never read.
    options
        Further options for Kafka's client (librdkafka), such as `security.protocol`. Never shown or logged.
    name
        Identifies the source's positions when the job is started again.

    Raises
    ------
    SettingsError
        A parameter is not allowed; the error names it.
    """

    kind = "kafka"
    splits_stand_alone = True

    def __init__(
        self,
        bootstrap_servers: str,
        topics: str | Sequence[str] = (),
        *,
        pattern: str | None = None,
        starting: str | datetime | Mapping[str, int] = "earliest",
        value: str = "bytes",
        schema: Any = None,
        schema_ids: Mapping[int, Any] | None = None,
        metadata: Sequence[str] = tuple(METADATA.names),
        on_lost: str = "fail",
        group: str | None = None,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name
        self.topics = tuple(filter(None, (topics,) if isinstance(topics, str) else topics))
        self.pattern = pattern
        self.starting = starting
        self.on_lost = on_lost
        self._servers = bootstrap_servers
        self._group = group
        self._metadata = tuple(metadata)
        self._options = dict(options or {})
        self._settings = client_options(repr(self), bootstrap_servers, self._options, FETCHING)
        self._check()
        self._format = self._format_of(value, schema, schema_ids)
        self._schema = self._joined_schema()

    def schema(self) -> pa.Schema:
        """Return the schema of the rows, after a look at the cluster: refuses topics that do not exist."""
        cluster = KafkaCluster(repr(self), self._shared_settings())
        try:
            found = cluster.topics(self.topics)
        except StorageError as error:
            raise JobRefused(f"{error}: is the address right, and the broker running?") from error
        missing = sorted(set(self.topics) - set(found))
        if missing:
            raise JobRefused(
                f"{self!r}: topic {missing[0]!r} does not exist at {self._servers}: create it, or correct the name"
            )
        return self._schema

    def positions_of_splits(self, offsets: Offsets) -> Collection[str]:
        return partitions(offsets)

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        settings = self._shared_settings()
        whose = f"source {context.source!r}"
        group = BackgroundGroupCommits(whose, settings, self._group) if self._group else None
        return KafkaEnumerator(whose, self, KafkaCluster(whose, settings), context.clock, group)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        return self.read_columns(read, self._schema.names)

    def read_columns(self, read: SplitRead, columns: Sequence[str]) -> Iterator[SourceBatch]:
        named, values = set(columns) & set(self._metadata), self._format.narrowed(columns)
        wanted = Wanted(
            keys="key" in named,
            values=bool(set(values.schema.names) & set(columns)),
            headers="headers" in named,
            timestamps="timestamp" in named,
            passes_lost=self.on_lost == "reset",
        )
        topic, partition = partition_of(read.split)
        with reader(repr(self), {**FETCHING_DEFAULTS, **self._settings}) as messages:
            found = messages.read(topic, partition, offset(read.start), offset(read.stop), wanted)
            yield from ahead(lambda one: self._rows(one, read.split, columns, values), found)

    def _rows(self, messages: Messages, split: str, columns: Sequence[str], values: ValueFormat) -> SourceBatch:
        """Make rows of messages; the metadata of bad messages is left out with them."""
        refused = bad_metadata(messages)
        if refused:
            bad = [self._bad_row(messages, split, place, reason) for place, reason in sorted(refused.items())]
            made = self._rows(messages.without(refused), split, columns, values)
            return replace(made, bad=[*bad, *made.bad])
        topic, partition = partition_of(split)
        parsed = Parsed([], []) if messages.values is None else values.parse(messages.values)
        named = [name for name in columns if name in self._metadata]
        found = dict(zip(named, metadata_columns(messages, topic, partition, named), strict=True))
        bad = [self._bad_row(messages, split, place, reason) for place, reason in parsed.bad]
        offsets = messages.offsets
        if bad:
            good = np.delete(np.arange(len(offsets)), [place for place, _ in parsed.bad])
            found = {name: column.take(pa.array(good)) for name, column in found.items()}
            offsets = offsets[good]
        found |= dict(zip(values.schema.names, parsed.columns, strict=False))
        schema = pa.schema([self._schema.field(name) for name in columns])
        rows = pa.RecordBatch.from_arrays([found[name] for name in columns], schema=schema)
        return SourceBatch(rows, place_of(offsets), bad)

    def _bad_row(self, messages: Messages, split: str, place: int, reason: str) -> BadRow:
        payload = None if messages.values is None else messages.values[place].as_py()
        text = "" if payload is None else payload.decode(errors="backslashreplace")[:PAYLOAD_CHARS_MAX]
        return BadRow(self.name or self.kind, split, str(messages.offsets[place]), reason, text)

    def _shared_settings(self) -> dict[str, Any]:
        """Return the client's options without those that only consumers take."""
        client_package()
        return {name: option for name, option in self._settings.items() if name not in FETCHING}

    def _check(self) -> None:
        if bool(self.topics) == bool(self.pattern):
            raise SettingsError(f"{self!r}: expected topics or pattern, and not both")
        if isinstance(self.starting, datetime) and self.starting.tzinfo is None:
            raise SettingsError(f"{self!r}: starting={self.starting}: expected a datetime with a time zone")
        if isinstance(self.starting, str) and self.starting not in {"earliest", "latest"}:
            raise SettingsError(
                f"{self!r}: starting={self.starting!r}: expected 'earliest', 'latest', a datetime or a dict"
            )
        if isinstance(self.starting, Mapping):
            for split, position in self.starting.items():
                if not (isinstance(split, str) and split.rpartition("/")[2].isdigit() and isinstance(position, int)):
                    raise SettingsError(
                        f"{self!r}: starting {split!r}: {position!r}: expected 'topic/partition' and an offset"
                    )
        if self.on_lost not in {"fail", "reset"}:
            raise SettingsError(f"{self!r}: on_lost={self.on_lost!r}: expected 'fail' or 'reset'")
        unknown = [name for name in self._metadata if name not in METADATA.names]
        if unknown:
            raise SettingsError(f"{self!r}: metadata has {unknown[0]!r}: expected names of {METADATA.names}")

    def _format_of(self, value: str, schema: Any, ids: Mapping[int, Any] | None) -> ValueFormat:
        if value not in VALUES:
            raise SettingsError(f"{self!r}: value={value!r}: expected one of {VALUES}")
        if (value in {"json", "avro"}) != (schema is not None):
            raise SettingsError(f"{self!r}: value={value!r}, schema={schema!r}: only 'json' and 'avro' need a schema")
        if ids is not None and (value != "avro" or not ids):
            raise SettingsError(f"{self!r}: schema_ids={ids!r}: expected ids and Avro schemas, with value='avro'")
        if value == "json":
            declared = to_arrow_schema(schema)
            if (reason := unfit_columns(declared)) is not None:
                raise SettingsError(f"{self!r}: schema: {reason}: declare the column as STRING")
            return JsonValues(declared)
        if value == "avro":
            writers = {id_: AvroSchema(one, f"{self!r}: schema_ids[{id_}]") for id_, one in (ids or {}).items()}
            return AvroValues(AvroSchema(schema, f"{self!r}: schema"), writers or None)
        return TextValues() if value == "string" else ValueFormat()

    def _joined_schema(self) -> pa.Schema:
        fields = list(self._format.schema)
        both = sorted(set(self._format.schema.names) & set(self._metadata))
        if both:
            raise SettingsError(
                f"{self!r}: column {both[0]!r} is a field of the schema and of the metadata: name the further columns "
                f"in metadata=, without {both[0]!r}"
            )
        return pa.schema([*fields, *(METADATA.field(name) for name in self._metadata)])

    def __repr__(self) -> str:
        return f"KafkaSource({self.pattern or ','.join(self.topics)!r}, name={self.name!r})"


def ahead(parse: Callable[[Messages], SourceBatch], found: Iterator[Messages]) -> Iterator[SourceBatch]:
    """Parse messages, in order, in other threads, while the caller takes the next messages out of the queue."""
    with ThreadPoolExecutor(PARSERS, thread_name_prefix="kafka-parse") as pool:
        waiting: deque[Future[SourceBatch]] = deque()
        for messages in found:
            waiting.append(pool.submit(parse, messages))
            if len(waiting) > PARSERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def offset(position: SplitPosition) -> int:
    assert isinstance(position, int)
    return position


def place_of(offsets: np.ndarray[Any, np.dtype[np.int64]]) -> SplitPosition:
    """Return the position of a batch: its first offset, or a text with its first and last offset if offsets are missing
    in between."""
    if len(offsets) == 0:
        return None
    first, last = int(offsets[0]), int(offsets[-1])
    return first if last - first == len(offsets) - 1 else f"{first} to {last}"
