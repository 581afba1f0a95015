"""A producer that is fenced by somebody else, at every point of a publication: a new one publishes the group once."""

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from test_sinks_kafka import Job

import kafka_kit
from holdfast.errors import PublishFailed, StorageError
from holdfast.sinks.kafka import kafka_sink, transactions
from holdfast.sinks.kafka.kafka_sink import identity
from holdfast.sinks.kafka.transactions import called
from sampling import quick

POINTS = {
    "before it begins": "init",
    "before a transaction": "before",
    "in a transaction": "sink.kafka.begun",
    "before the first message": "message 0",
    "between messages": "message 500",
    "before the flush": "messages",
    "before the number": "sink.kafka.sent",
    "before the commit": "sink.kafka.numbered",
    "after the commit": "sink.kafka.committed",
}


def fence(job: Job) -> Producer:
    """Make a producer with the sink's own transactional id, which fences all before."""
    settings = {"bootstrap.servers": kafka_kit.address(), "transactional.id": identity(job.id, "out")}
    producer = Producer(settings)
    producer.init_transactions(30)
    return producer


@pytest.mark.parametrize(
    "point", quick("before a transaction", "between messages", "before the flush", "before the commit", of=POINTS)
)
def test_a_group_is_published_once_though_its_producer_was_fenced(monkeypatch, point):
    job, others = Job(), []
    sink = job.sink()
    if point != "init":
        job.publish(sink, 1, (1, "first"))
    made = kafka_sink.messages

    def strike(at: str) -> None:
        if at == point and not others:
            others.append(fence(job))

    def messages(*told: Any):
        for number, message in enumerate(made(*told)):
            strike(f"message {number}")
            yield message
        strike("messages")

    monkeypatch.setattr(transactions, "hit", strike)
    monkeypatch.setattr(kafka_sink, "messages", messages)
    strike("init")
    strike("before")
    rows = [(number, f"row {number}") for number in range(1000)]
    failed = 0
    while True:
        try:
            job.publish(sink, 2, *rows)
            break
        except StorageError:
            failed += 1
            assert failed == 1, "the next producer is fenced by nobody"
    assert failed == (0 if point in ("init", "sink.kafka.committed") else 1)
    first = [] if point == "init" else ["first"]
    assert sorted(job.values()) == sorted([*first, *(text for _, text in rows)])


class Crashing:
    """A producer whose client loses its exception at a call, as confluent-kafka does when it was fenced in a flush."""

    def __init__(self, producer: Any, step: str) -> None:
        self._producer, self._step = producer, step

    def __getattr__(self, name: str) -> Any:
        if name != self._step:
            return getattr(self._producer, name)

        def crash(*told: object, **named: object) -> None:
            raise SystemError(f"<method {name!r}> returned NULL without setting an exception")

        crash.__name__ = name
        return crash


@pytest.mark.parametrize(
    "step", ["begin_transaction", "produce", "poll", "flush", "send_offsets_to_transaction", "commit_transaction"]
)
def test_a_client_that_loses_its_exception_is_given_up_and_the_next_publishes_the_group(step):
    job = Job()
    sink = job.sink()
    job.publish(sink, 1, (1, "a"))
    sink._transactions._producer = Crashing(sink._transactions._producer, step)
    with pytest.raises(StorageError, match=r"the client failed: .* returned NULL without"):
        job.publish(sink, 2, (2, "b"))
    job.publish(sink, 2, (2, "b"))
    assert job.values() == ["a", "b"]


def test_errors_below_a_system_error_are_found_and_those_that_are_not_kafkas_stay():
    fatal = KafkaException(KafkaError(KafkaError._FENCED))
    inner, outer = SystemError("inner"), SystemError("outer")
    inner.__cause__, outer.__cause__ = fatal, inner

    def crash(error: BaseException):
        raise error

    with pytest.raises(KafkaException) as found:
        called(confluent_kafka, crash, outer)
    assert found.value is fatal
    inner.__cause__ = MemoryError()
    with pytest.raises(SystemError, match="outer"):
        called(confluent_kafka, crash, outer)


def test_a_number_that_another_program_has_committed_is_refused_by_name():
    job = Job()
    job.publish(job.sink(), 1, (1, "a"))
    settings = {"bootstrap.servers": kafka_kit.address(), "group.id": identity(job.id, "out")}
    consumer = confluent_kafka.Consumer(settings)
    consumer.commit(offsets=[confluent_kafka.TopicPartition(job.topic, 0, 7, metadata="mine")], asynchronous=False)
    consumer.close()
    with pytest.raises(PublishFailed, match=r"offset 7 of topic .* with metadata 'mine', expected 'all'"):
        job.sink()
