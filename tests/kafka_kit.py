"""A Kafka broker for a test run, started when the first test asks for it; topics and messages in it."""

import atexit
import ctypes
import os
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from examples.kafka.broker import QUICK_JAVA, VARIABLE, Broker
from holdfast.sources.kafka.queue_reader import library
from waiting import until

ISOLATED = "read_committed"


@cache
def address() -> str:
    """The broker of HOLDFAST_KAFKA, or a broker that ends with this process."""
    if VARIABLE in os.environ:
        return os.environ[VARIABLE]
    folder = tempfile.TemporaryDirectory(prefix="holdfast-kafka-")
    broker = Broker(Path(folder.name), QUICK_JAVA)
    atexit.register(folder.cleanup)
    atexit.register(broker.stop)
    return broker.start().address


@cache
def admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers})


def new_topic(partitions: int = 1, name: str | None = None, servers: str | None = None, **config: str) -> str:
    name = name or f"topic-{uuid4().hex[:12]}"
    created = admin(servers or address()).create_topics([NewTopic(name, partitions, 1, config=config)])
    created[name].result(60)
    until(lambda: is_known(name, servers or address()), "a new topic")
    return name


def is_known(topic: str, servers: str) -> bool:
    """True if the broker describes a topic; it does so a moment after the topic was made."""
    answer = admin(servers).describe_topics(TopicCollection([topic]))[topic]
    return answer.exception(30) is None


def delete_topic(name: str) -> None:
    admin(address()).delete_topics([name])[name].result(60)


class Writer:
    """A producer of messages, in transactions if it has a name for them."""

    def __init__(self, transactional: bool = False, servers: str | None = None) -> None:
        settings = {"bootstrap.servers": servers or address(), "linger.ms": 0, "enable.idempotence": True}
        self._servers = servers or address()
        self._touched: set[tuple[str, int]] = set()
        if transactional:
            settings["transactional.id"] = uuid4().hex
        self._producer = Producer(settings)
        if transactional:
            self._producer.init_transactions(30)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def begin_put(self, topic: str, value: bytes | str | None, partition: int = 0, **facts: object) -> None:
        """Write a message without waiting."""
        self._producer.produce(topic, value=value, partition=partition, **facts)
        self._touched.add((topic, partition))

    def await_delivery(self) -> None:
        assert self._producer.flush(60) == 0

    def put(self, topic: str, values: Sequence[bytes | str | None], partition: int = 0, **facts: object) -> None:
        """Write messages and wait until the broker has them."""
        for value in values:
            self.begin_put(topic, value, partition, **facts)
        self.await_delivery()

    def commit(self) -> None:
        """Commit, and wait until readers see it: the broker writes its markers after it has answered."""
        self._producer.commit_transaction(30)
        self._await_markers()

    def abort(self) -> None:
        self._producer.abort_transaction(30)
        self._await_markers()

    def _await_markers(self) -> None:
        await_markers(self._servers, self._touched)
        self._touched.clear()


def put_with_header(topic: str, value: bytes, name: bytes) -> None:
    """Write a message whose header has any bytes as its name, which the package's own producer does not take."""
    lib, word, text, size = library(), ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    assert lib is not None
    conf = lib.rd_kafka_conf_new()
    lib.rd_kafka_conf_set(conf, b"bootstrap.servers", address().encode(), None, 0)
    producer, number = word(lib.rd_kafka_new(0, conf, None, 0)), ctypes.c_int
    topic_tag, value_tag, header_tag, flags_tag, copied = map(number, (1, 4, 9, 7, 2))
    arguments = (topic_tag, text(topic.encode()), value_tag, text(value), size(len(value)))
    header = (header_tag, text(name), text(b"v"), size(1), flags_tag, copied, number(0))
    lib.rd_kafka_producev.restype = word
    assert lib.rd_kafka_producev(producer, *arguments, *header) is None
    assert lib.rd_kafka_flush(producer, 30_000) == 0
    lib.rd_kafka_destroy(producer)


def await_markers(servers: str, partitions: Iterable[tuple[str, int]]) -> None:
    """Wait until no transaction is open in these partitions: the last stable offset is the end of each."""
    asked = {TopicPartition(*partition): OffsetSpec.latest() for partition in partitions}
    levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)

    def ended() -> bool:
        found = [admin(servers).list_offsets(asked, isolation_level=level) for level in levels]
        try:
            return all(len({answers[one].result().offset for answers in found}) == 1 for one in asked)
        except KafkaException:  # A broker that was started again refuses a client that remembers it from before.
            admin.cache_clear()
            return False

    until(ended, "the end of a transaction")


def committed(topic: str, partitions: int = 1, servers: str | None = None) -> list[tuple[bytes | None, bytes | None]]:
    """Key and value of all committed messages of a topic, read with the client alone once no transaction is open."""
    await_markers(servers or address(), [(topic, number) for number in range(partitions)])
    consumer = Consumer(
        {
            "bootstrap.servers": servers or address(),
            "group.id": uuid4().hex,
            "isolation.level": ISOLATED,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ended = [], 0
    while ended < partitions:
        for message in consumer.consume(1000, timeout=0) or consumer.consume(1, timeout=1):
            if message.error() is None:
                found.append((message.key(), message.value()))
            else:
                ended += 1
    consumer.close()
    return found
