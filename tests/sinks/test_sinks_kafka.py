"""A Kafka sink beyond the promises of all sinks: a forgotten number, delivery at least once, keys and partitions."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import kafka_kit
from holdfast import failpoints
from holdfast.errors import HoldfastError, JobRefused, PublishFailed, SettingsError, StorageError
from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.sinks.kafka import transactions
from holdfast.sinks.kafka.kafka_sink import KafkaSink, begun_before, identity
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import open_store
from holdfast.testing import Fault, FaultyStore

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


class Job:
    """A job's storage and id, and a topic that its sinks write to."""

    def __init__(self) -> None:
        self.id, self.topic = uuid4().hex, kafka_kit.new_topic()
        self.store = open_store(f"memory://job-{uuid4().hex}")

    def sink(self, **settings) -> KafkaSink:
        """The sink as a new start declares it."""
        sink = KafkaSink(kafka_kit.address(), self.topic, key="k", **settings)
        sink.prepare(SCHEMA, SinkContext(self.id, "out", self.store))
        return sink

    def publish(self, sink: KafkaSink, number: int, *rows: tuple[int, str]) -> None:
        batch = pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], schema=SCHEMA)
        staged = sink.stage(iter([batch]), StageContext(self.id, "out", 1, 1, number, 0, uuid4().hex, self.store))
        sink.publish(number, staged, PublishContext(self.id, "out", self.store, SCHEMA))

    def forget(self) -> str:
        """Have the broker forget the sink's group, as it does after `offsets.retention.minutes`."""
        group = identity(self.id, "out")
        kafka_kit.admin(kafka_kit.address()).delete_consumer_groups([group])[group].result(60)
        return group

    def values(self) -> list[str]:
        return [json.loads(value)["v"] for _, value in kafka_kit.committed(self.topic)]


def test_a_start_is_refused_by_name_when_the_broker_has_forgotten_the_number():
    job = Job()
    job.publish(job.sink(), 1, (1, "a"))
    group = job.forget()
    with pytest.raises(JobRefused, match=f"consumer group '{group}'.*publish_again"):
        job.sink()
    job.publish(job.sink(forgotten="publish_again"), 2, (2, "b"))
    assert job.values() == ["a", "b"]
    job.publish(job.sink(), 2, (2, "b"))
    assert job.values() == ["a", "b"], "the number is known again"


def test_a_number_that_is_forgotten_while_the_job_starts_is_refused_before_anything_is_produced():
    job = Job()
    sink = job.sink()
    group = job.forget()
    with pytest.raises(PublishFailed, match=group):
        job.publish(sink, 1, (1, "a"))
    assert job.values() == []


def test_at_least_once_loses_nothing_and_may_repeat_a_group_after_a_death():
    job = Job()
    first = job.sink(delivery="at_least_once")
    job.publish(first, 1, (1, "a"), (1, "b"))
    job.publish(first, 1, (1, "a"), (1, "b"))
    assert job.values() == ["a", "b"], "a publisher that lives knows what it has produced"
    again = job.sink(delivery="at_least_once")
    job.publish(again, 1, (1, "a"), (1, "b"))
    job.publish(again, 2, (1, "c"))
    assert job.values() == ["a", "b", "a", "b", "c"]


def test_rows_of_an_open_transaction_are_never_committed_by_the_next_publisher():
    job = Job()
    failpoints.arm("sink.kafka.numbered", "raise")
    with pytest.raises(HoldfastError, match="failpoint"):
        job.publish(job.sink(), 1, (1, "of a death"))
    failpoints.disarm()
    job.publish(job.sink(), 2, (1, "a"))
    assert job.values() == ["a"]


class Silent:
    """A producer whose client never answers a step of a transaction, until `answer` is set. `silent` is called before
    the step."""

    def __init__(self, producer: Any, step: str, silent: Callable[[], None]) -> None:
        self.answer = threading.Event()
        self._producer = producer
        self._step = step
        self._silent = silent

    def __getattr__(self, name: str) -> Any:
        if name != self._step:
            return getattr(self._producer, name)
        self._silent()

        def wait(*told: object) -> None:
            assert self.answer.wait(60)

        wait.__name__ = name
        return wait


@pytest.mark.parametrize("step", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_client_that_never_answers_is_given_up_and_the_next_publisher_publishes_its_group(
    step: str, monkeypatch: pytest.MonkeyPatch
):
    job = Job()
    sink = job.sink()
    job.publish(sink, 1, (1, "a"))

    def nobody_waits() -> None:
        """Only the silent step gets no time, so that the others may take as long as the machine does."""
        monkeypatch.setattr(transactions, "LATE_S_MAX", -transactions.ANSWER_S_MAX)

    silent = sink._transactions._producer = Silent(sink._transactions._producer, step, nobody_waits)
    with pytest.raises(StorageError, match=f"has not answered {step}"):
        job.publish(sink, 2, (2, "b"))
    monkeypatch.undo()
    job.publish(sink, 2, (2, "b"))
    assert job.values() == ["a", "b"]
    silent.answer.set()


def test_avro_values_are_framed_and_a_group_keeps_the_schema_with_which_it_was_staged():
    job = Job()
    older = job.sink(value="avro", schema_id=7)
    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": "a"}, {"k": 2, "v": None}], schema=SCHEMA)
    context = PublishContext(job.id, "out", job.store, SCHEMA)
    staged = older.stage(iter([batch]), StageContext(job.id, "out", 1, 1, 1, 0, uuid4().hex, job.store))
    job.sink(value="json").publish(1, staged, replace(context, layout=older.layout(context)))
    assert kafka_kit.committed(job.topic) == [
        (b"1", b"\x00\x00\x00\x00\x07" + b"\x02\x02" + b"\x02\x02a"),
        (b"2", b"\x00\x00\x00\x00\x07" + b"\x02\x04" + b"\x00"),
    ]


def test_an_avro_schema_that_does_not_fit_the_columns_is_refused_and_rows_that_it_cannot_hold_are_named():
    job = Job()
    declared = {"type": "record", "name": "r", "fields": [{"name": "v", "type": "string"}]}
    sink = job.sink(value="avro", schema=declared)
    assert list(sink.refused(pa.RecordBatch.from_pylist([{"k": 1, "v": "a"}, {"k": 2, "v": None}], schema=SCHEMA))) == [
        1
    ]
    for field, named in (("missing", "field 'missing' is no column"), ("k", "'k' takes string, column 'k' is int64")):
        with pytest.raises(JobRefused, match=named):
            job.sink(value="avro", schema={**declared, "fields": [{"name": field, "type": "string"}]})
    with pytest.raises(SettingsError, match="for value='avro' alone"):
        KafkaSink("host:9092", "topic", schema_id=1)


def test_a_start_repeats_the_write_of_the_mark_that_it_has_begun_if_the_store_does_not_answer():
    job = Job()
    store, faults = job.store, [Fault.FAIL, Fault.LOST_ANSWER]
    faulty = FaultyStore(store, lambda action, name: faults.pop() if action in ("put", "create") and faults else None)
    job.store = RetryingStore(faulty, wait=lambda seconds: None)
    job.sink()
    assert not faults and begun_before(store, "out")
