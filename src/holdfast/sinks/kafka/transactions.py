"""Transactions of a sink's producer, each with the progress of publication in it.

    transaction:   messages of a portion of group n  +  offset n, metadata "k", of the sink's own consumer group
    k              the number of committables of group n that are published; "all" with the last portion

Broker and transaction decide together: either the messages and the progress are there, or neither. `init_transactions`
ends transactions that an older producer of the same sink left open and fences it, so the progress read afterwards is
final.

librdkafka's calls may outlast the time that they are given: after a broker was shut down and started again,
`send_offsets_to_transaction` was seen to wait for minutes. So each step runs on its own thread. A late thread is
abandoned; its producer is not used any more, and the next producer fences it.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from holdfast.errors import PublishFailed, StorageError
from holdfast.failpoints import hit
from holdfast.hidden import chained
from holdfast.printable import logger
from holdfast.sources.kafka.client import client_package, made

log = logger(__name__)

ANSWER_S_MAX = 10.0
"""Seconds within which the broker must answer a step of a transaction."""
LATE_S_MAX = 5.0
"""Seconds by which the client's answer to a step may be late. With a higher value, fewer producers that would have
answered are given up, and a publication waits longer for those that would not."""
DELIVERED_S_MAX = 30.0
"""Seconds within which the broker must take a transaction's messages; a higher value allows for a busier broker."""
COORDINATOR_PAUSE_S = 0.1
ALL = "all"


class Message(NamedTuple):
    key: bytes | None
    value: bytes | None


class PublishedUpTo(NamedTuple):
    """The newest group that is published at least in part, and the number of its published committables; None: all."""

    number: int
    committables: int | None


class NumberedTransactions:
    """A producer with a transactional id, and a consumer for the offsets of its group. Used by a single thread."""

    def __init__(self, whose: str, topic: str, settings: Mapping[str, Any], identity: str) -> None:
        package = client_package()
        self._package = package
        self._whose = whose
        self._topic = topic
        self._servers = settings["bootstrap.servers"]
        self._failed: Any = None
        self._consumer = group_consumer(whose, settings, identity, "read_committed")
        self._producer = made(whose, package.Producer, {**settings, "transactional.id": identity})

    def begin(self) -> PublishedUpTo | None:
        """Fence older producers, and return the progress; None if the broker knows none."""
        try:
            self._step(self._producer.init_transactions)
            return committed_progress(self._package, self._consumer, self._topic)
        except self._package.KafkaException as error:
            raise self._translated(error) from chained(error)

    def publish(self, messages: Iterable[Message], progress: PublishedUpTo) -> None:
        """Send messages and progress in the same transaction. After an error, this object must not be used any more."""
        producer = self._producer
        try:
            called(self._package, producer.begin_transaction)
            hit("sink.kafka.begun")
            send(self._package, producer, self._topic, messages, self._delivered)
            self._raise_failed()
            hit("sink.kafka.sent")
            group = self._consumer.consumer_group_metadata()
            offset = progress_offset(self._package, self._topic, progress)
            self._step(producer.send_offsets_to_transaction, [offset], group)
            hit("sink.kafka.numbered")
            self._step(producer.commit_transaction)
            hit("sink.kafka.committed")
        except self._package.KafkaException as error:
            raise self._translated(error) from chained(error)

    def close(self) -> None:
        """Close the connections. The next producer aborts an open transaction, or the broker does after its
        time-out."""
        for let_go in (self._producer.purge, self._consumer.close):
            try:
                called(self._package, let_go)
            except self._package.KafkaException as error:  # for example because the producer was fenced
                log.info("%s: %s", self._whose, error)

    def _step(self, call: Callable[..., object], *told: object) -> None:
        """Take a step of a transaction. Raises `StorageError` if the client does not answer in time."""
        answered: Future[object] = Future()

        def run() -> None:
            try:
                answered.set_result(called(self._package, call, *told, ANSWER_S_MAX))
            except BaseException as error:
                answered.set_exception(error)

        threading.Thread(target=run, name="holdfast-kafka-transaction", daemon=True).start()
        try:
            answered.result(ANSWER_S_MAX + LATE_S_MAX)
        except TimeoutError as error:
            reason = f"the client has not answered {call.__name__} within {ANSWER_S_MAX + LATE_S_MAX:g} s"
            raise StorageError(f"{self._whose}: Kafka at {self._servers}: {reason}") from chained(error)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failed is None:
            self._failed = error

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise self._package.KafkaException(self._failed)

    def _translated(self, error: Any) -> Exception:
        return publication_error(self._whose, self._servers, error)


def group_consumer(whose: str, settings: Mapping[str, Any], identity: str, isolation: str) -> Any:
    """Make a consumer for the offsets of a sink's group."""
    group = {"group.id": identity, "isolation.level": isolation, "enable.auto.commit": False}
    return made(whose, client_package().Consumer, {**consumer_options(settings), **group})


def committed_progress(package: Any, consumer: Any, topic: str) -> PublishedUpTo | None:
    """Return the committed progress. A broker that has just started does not know the group's coordinator at once."""
    codes = package.KafkaError
    passing = {codes.NOT_COORDINATOR, codes.COORDINATOR_NOT_AVAILABLE, codes.COORDINATOR_LOAD_IN_PROGRESS}
    deadline_s = time.monotonic() + ANSWER_S_MAX
    while True:
        try:
            asked = [package.TopicPartition(topic, 0)]
            (found,) = called(package, consumer.committed, asked, timeout=ANSWER_S_MAX)
            if found.error is not None:
                raise package.KafkaException(found.error)
            break
        except package.KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() > deadline_s:
                raise
        time.sleep(COORDINATOR_PAUSE_S)
    if found.offset < 0:
        return None
    if found.metadata == ALL:
        return PublishedUpTo(found.offset, None)
    if not (found.metadata and found.metadata.isascii() and found.metadata.isdigit()):
        raise PublishFailed(
            f"the consumer group that holds the number of the last published group has offset {found.offset} of topic "
            f"{topic!r} with metadata {found.metadata!r}, expected 'all' or a number: another program has committed "
            "offsets under the group's name. Look at the end of the topic, delete the group, and start again with "
            "forgotten='publish_again'"
        )
    return PublishedUpTo(found.offset, int(found.metadata))


def progress_offset(package: Any, topic: str, progress: PublishedUpTo) -> Any:
    metadata = ALL if progress.committables is None else str(progress.committables)
    return package.TopicPartition(topic, 0, progress.number, metadata=metadata)


def begun(
    whose: str, topic: str, settings: Mapping[str, Any], identity: str, *, has_begun: bool
) -> PublishedUpTo | None:
    """Return the progress of a sink that the broker knows; note the beginning if there was none before.

    Since progress is noted before the first group, missing progress later means that the broker has forgotten it. The
    function does not wait for a transaction that a dead publisher may have left open: only the presence of an offset
    matters here.
    """
    package = client_package()
    consumer = group_consumer(whose, settings, identity, "read_uncommitted")
    try:
        known = committed_progress(package, consumer, topic)
        if known is None and not has_begun:
            known = PublishedUpTo(0, None)
            first = [progress_offset(package, topic, known)]
            called(package, consumer.commit, offsets=first, asynchronous=False)
        return known
    except package.KafkaException as error:
        raise publication_error(whose, str(settings["bootstrap.servers"]), error) from chained(error)
    finally:
        consumer.close()


def called(package: Any, call: Callable[..., Any], *told: object, **named: object) -> Any:
    """Call the client.

    The client reports a fatal error, such as that its producer was fenced, as a KafkaException. If it calls `delivered`
    while that exception is set, Python raises a SystemError from the exception, or instead of it. This function makes
    it a KafkaException again: the producer must not be used any more, and the next producer asks the broker for the
    progress.
    """
    try:
        return call(*told, **named)
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__ or cause.__context__
        if isinstance(cause, package.KafkaException):
            raise cause from None
        if cause is not None:
            raise
        lost = package.KafkaError(package.KafkaError._FATAL, f"the client failed: {error}")
        raise package.KafkaException(lost) from None


def send(package: Any, producer: Any, topic: str, messages: Iterable[Message], delivered: Any) -> None:
    """Send messages in order, and return when the broker has them, or has refused them (see `delivered`)."""
    for message in messages:
        while True:
            try:
                called(package, producer.produce, topic, message.value, message.key, on_delivery=delivered)
                break
            except BufferError:
                called(package, producer.poll, 0.1)
        called(package, producer.poll, 0)
    undelivered = called(package, producer.flush, DELIVERED_S_MAX)
    if undelivered:
        raise package.KafkaException(package.KafkaError(package.KafkaError._TIMED_OUT, "messages were not delivered"))


def publication_error(whose: str, servers: str, error: Any) -> Exception:
    """Return `PublishFailed` for an error that every attempt would meet again, else `StorageError`."""
    package = client_package()
    codes = package.KafkaError
    reason = error.args[0] if isinstance(error, package.KafkaException) else error
    lasting = {
        codes.MSG_SIZE_TOO_LARGE,
        codes.INVALID_RECORD,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
    if reason.code() in lasting:
        return PublishFailed(f"{whose}: Kafka at {servers} will not take its rows: {reason}")
    return StorageError(f"{whose}: Kafka at {servers}: {reason}")


def consumer_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the options of connections: the address of the cluster, and the authentication of the client."""
    shared = ("bootstrap.servers", "security.", "sasl.", "ssl.", "client.", "socket.", "broker.")
    return {name: option for name, option in settings.items() if name.startswith(shared)}
