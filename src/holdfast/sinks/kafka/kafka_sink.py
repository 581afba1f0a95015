"""A topic of Kafka as a sink: rows are staged, and produced when their checkpoint has completed.

With `delivery="exactly_once"` a group is produced in short transactions that carry its number (`transactions.py`). A
publisher first reads that number and continues after it, so readers of committed messages lose no row and see no row
twice, however often drivers and brokers die.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import JobRefused, ObjectNotFound, PublishFailed, SettingsError, StorageError
from holdfast.hidden import chained
from holdfast.json_rows.writer import unwritable
from holdfast.sinks.base import PublishContext, Sink, SinkContext, StageContext
from holdfast.sinks.kafka.encoding import VALUES, MessageLayout, messages, unfit
from holdfast.sinks.kafka.transactions import (
    Message,
    NumberedTransactions,
    PublishedUpTo,
    begun,
    consumer_options,
    publication_error,
    send,
)
from holdfast.sinks.staging import StagedRows, decode_rows, discard_rows, pieces, portions, read_rows, stage_rows
from holdfast.sources.kafka.avro import AvroSchema, schema_of_rows, unencodable
from holdfast.sources.kafka.client import client_options, client_package, made
from holdfast.sources.kafka.cluster import KafkaCluster
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

TRANSACTION_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of rows in a transaction; a larger group is divided. A higher value makes readers wait longer for a group."""
PRODUCING: dict[str, Any] = {"enable.idempotence": True}
PRODUCING_DEFAULTS: dict[str, Any] = {
    "partitioner": "murmur2_random",  # The partitions that Kafka's own clients choose for a key.
    "linger.ms": 5,
    "compression.type": "lz4",
    "transaction.timeout.ms": 60_000,
    "reconnect.backoff.max.ms": 1_000,
}
DELIVERIES = ("exactly_once", "at_least_once")


@dataclass(repr=False)
class KafkaSink(Sink):
    """Produces a message for each row to a topic, which must exist.

    Parameters
    ----------
    bootstrap_servers, topic
        `host:port`, or several of them with commas between; and the topic.
    key
        The column whose value is the message's key: text and bytes as they are, other values as their text. Rows with
        the same key keep their order.
    value
        `"json"`: a JSON object with all columns. `"avro"`: an Avro record. `"bytes"`: the column `value`, binary or
        text; null is a tombstone.
    schema
        With `value="avro"`: the schema of the record, as text in JSON or as Python objects, whose fields are columns.
        Without it, the schema is made of the columns.
    schema_id
        With `value="avro"`: the id of the schema in a registry; values are then in Confluent's wire format.
    delivery
        `"exactly_once"`: readers of committed messages see each row once. `"at_least_once"` uses no transactions; after
        a death, the rows of a checkpoint may come again.
    forgotten
        The reaction if the broker has forgotten which group was published last, because `offsets.retention.minutes`
        have passed: `"fail"` refuses the start; `"publish_again"` produces the waiting groups, the first of which may
        come twice.
    options
        Further options for Kafka's client (librdkafka). Never shown or logged.
    """

    bootstrap_servers: str
    topic: str
    key: str | None = None
    value: str = "json"
    schema: Any = None
    schema_id: int | None = None
    delivery: str = "exactly_once"
    forgotten: str = "fail"
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        whose = f"KafkaSink({self.topic!r})"
        if self.value not in VALUES:
            raise SettingsError(f"{whose}: value={self.value!r}: expected one of {VALUES}")
        if self.value != "avro" and (self.schema, self.schema_id) != (None, None):
            raise SettingsError(f"{whose}: value={self.value!r}: schema and schema_id are for value='avro' alone")
        self._avro = None if self.schema is None else AvroSchema(self.schema, f"{whose}: schema")
        if self.delivery not in DELIVERIES:
            raise SettingsError(f"{whose}: delivery={self.delivery!r}: expected one of {DELIVERIES}")
        if self.forgotten not in {"fail", "publish_again"}:
            raise SettingsError(f"{whose}: forgotten={self.forgotten!r}: expected 'fail' or 'publish_again'")
        self._settings = PRODUCING_DEFAULTS | client_options(whose, self.bootstrap_servers, self.options, PRODUCING)
        if self.delivery == "at_least_once":
            del self._settings["transaction.timeout.ms"]
        self._transactions: NumberedTransactions | None = None
        self._progress = PublishedUpTo(0, None)
        self._found = PublishedUpTo(0, None)
        """The progress that `prepare` found at the broker."""
        self._producer: Any = None

    @property
    def kind(self) -> str:
        return "kafka"

    @property
    def stable_text(self) -> str:
        return f"{self.kind} {self.topic} at {self.bootstrap_servers}"

    def prepare(self, schema: pa.Schema, context: SinkContext) -> None:
        whose = f"sink {context.sink!r}"
        reason = unfit(schema, self.key, self.value, self._avro_schema(schema) if self.value == "avro" else None)
        if reason is not None:
            raise JobRefused(f"{whose}: {reason}")
        try:
            if self.topic not in KafkaCluster(whose, consumer_options(self._settings)).topics([self.topic]):
                raise JobRefused(f"{whose}: topic {self.topic!r} does not exist at {self.bootstrap_servers}: create it")
            if self.delivery == "exactly_once":
                self._check_progress(whose, context)
        except StorageError as error:
            raise JobRefused(f"{error}: is the address right, and the broker running?") from chained(error)

    def last_number(self, context: SinkContext) -> int | None:
        """None with `delivery="at_least_once"`: without transactions, no number is remembered at the broker."""
        if self.delivery != "exactly_once":
            return None
        return self._found.number

    def refused(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        if self.value == "json":
            return unwritable(rows)
        return unencodable(rows, self._avro_schema(rows.schema)) if self.value == "avro" else {}

    def stage(self, batches: Iterator[pa.RecordBatch], context: StageContext) -> list[bytes]:
        return stage_rows(pieces(batches, TRANSACTION_BYTES_MAX), context)

    def layout(self, context: PublishContext) -> bytes:
        text = self._avro_schema(context.schema).text if self.value == "avro" else None
        return msgspec.msgpack.encode(MessageLayout(self.key, self.value, text, self.schema_id))

    def publish(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        decode_rows(committables, context.owner)
        if self.delivery == "at_least_once":
            self._produce(number, committables, context)
            return
        if self._transactions is None:
            self._begin(context)
        done = self._progress
        if number < done.number or (number == done.number and done.committables is None):
            return
        start = done.committables or 0 if number == done.number else 0
        try:
            self._publish_from(start, number, committables, context)
        except BaseException:
            self._end()
            raise

    def discard(self, committables: Iterable[bytes], context: PublishContext) -> None:
        discard_rows(decode_rows(committables, context.owner), context)

    def _publish_from(self, start: int, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        """Publish a group from the committable number `start` on, one portion in each transaction."""
        assert self._transactions is not None
        count = sum(1 for _ in committables)
        for portion in portions(committables, StagedRows, context.owner, TRANSACTION_BYTES_MAX, start):
            progress = PublishedUpTo(number, None if portion.stop == count else portion.stop)
            self._transactions.publish(self._messages(portion.rows, context), progress)
            self._progress = progress

    def _produce(self, number: int, committables: Iterable[bytes], context: PublishContext) -> None:
        whose = f"sink {context.sink!r}"
        if number <= self._progress.number:
            return
        if self._producer is None:
            self._producer = made(whose, client_package().Producer, dict(self._settings))
        failed: list[Any] = []
        deliver = lambda error, _: failed.append(error) if error is not None else None  # noqa: E731
        try:
            for portion in portions(committables, StagedRows, context.owner, TRANSACTION_BYTES_MAX):
                send(client_package(), self._producer, self.topic, self._messages(portion.rows, context), deliver)
        except client_package().KafkaException as error:
            raise publication_error(whose, self.bootstrap_servers, error) from chained(error)
        if failed:
            raise publication_error(whose, self.bootstrap_servers, failed[0])
        self._progress = PublishedUpTo(number, None)

    def _messages(self, staged: list[StagedRows], context: PublishContext) -> Iterator[Message]:
        layout = msgspec.msgpack.decode(context.layout or self.layout(context), type=MessageLayout)
        return messages(read_rows(staged, context), layout)

    def _avro_schema(self, rows: pa.Schema) -> AvroSchema:
        """Return the declared schema, or the schema that is made of the columns."""
        if self._avro is None:
            self._avro = AvroSchema(schema_of_rows(rows))
        return self._avro

    def _begin(self, context: PublishContext) -> None:
        """Open the transactions of this publisher, and find the progress after the published groups."""
        whose = f"sink {context.sink!r}"
        transactions = NumberedTransactions(whose, self.topic, self._settings, identity(context.job_id, context.sink))
        try:
            progress = transactions.begin()
        except BaseException:
            transactions.close()
            raise
        if progress is None and self.forgotten == "fail" and begun_before(context.store, context.sink):
            transactions.close()
            raise PublishFailed(forgotten_message(whose, self.bootstrap_servers, context.job_id, context.sink))
        self._transactions, self._progress = transactions, progress or PublishedUpTo(0, None)

    def _end(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None

    def _check_progress(self, whose: str, context: SinkContext) -> None:
        """Note the beginning at the first start; refuse a later start if the broker has forgotten the progress."""
        has_begun = begun_before(context.store, context.sink)
        must_know = has_begun and self.forgotten == "fail"
        known = begun(whose, self.topic, self._settings, identity(context.job_id, context.sink), has_begun=must_know)
        if known is None:
            raise JobRefused(forgotten_message(whose, self.bootstrap_servers, context.job_id, context.sink))
        self._found = known
        if not has_begun:  # a put, since it may be repeated when the store has not answered
            context.store.put(names.sink_begun(context.sink), b"")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_transactions": None, "_producer": None}


def identity(job_id: str, sink: str) -> str:
    """Name the transactions and the consumer group of a sink."""
    return f"holdfast-{job_id}-{names.escape(sink)}"


def begun_before(store: ObjectStore, sink: str) -> bool:
    try:
        store.get(names.sink_begun(sink))
    except ObjectNotFound:
        return False
    return True


def forgotten_message(whose: str, servers: str, job_id: str, sink: str) -> str:
    return (
        f"{whose}: Kafka at {servers} no longer knows which group was published last: it has no offset of consumer "
        f"group {identity(job_id, sink)!r}, which it keeps for offsets.retention.minutes after the last publication. "
        "Look at the end of the topic; then start with forgotten='publish_again', which produces the groups that wait, "
        "the first of them perhaps a second time"
    )
