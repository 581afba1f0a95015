"""Jobs with Kafka whose broker dies, and whose producers are fenced: by a newer JobMaster, and by a stranger."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kills_ends import FENCED
from kills_in_process import Driver
from kills_pipelines import Shape, check
from kills_topics import TopicDriver, counting
from test_kills_fencing import held_at, recorded_rows, storage

import holdfast as hf
import kafka_kit
from examples.kafka.broker import QUICK_JAVA, Broker
from holdfast import failpoints
from holdfast.errors import Fenced, QueryFailed
from holdfast.sinks.kafka.kafka_sink import identity
from holdfast.storage import names
from holdfast.storage.store import ObjectStore
from holdfast.testing import start
from sampling import some
from waiting import until

SHAPE = Shape(rows=400, sink="kafka", interval_s=0.005)
PARTITIONS, KEYS = 2, 7
PATIENCE_S = 300.0
"""Seconds for a job that waits for a broker and tries again ever more seldom; a higher value allows for a busier
machine."""


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


@pytest.fixture
def broker(tmp_path):
    """A broker of this test's own."""
    own = Broker(tmp_path / "broker", QUICK_JAVA).start()
    yield own
    own.stop()


@pytest.mark.parametrize("point", some(["sink.kafka.begun", "sink.kafka.sent", "sink.kafka.numbered"], 1))
def test_a_producer_that_a_newer_jobmaster_fenced_asks_the_journal_and_ends(point, tmp_path):
    first, pause = held_at(point, SHAPE, tmp_path)
    until(lambda: recorded_rows(storage(tmp_path)) == SHAPE.rows or first.ended, "the last checkpoint of the first")
    Driver(SHAPE, tmp_path).start().finish()
    check(SHAPE, tmp_path)
    pause.go_on()
    first.join()
    assert isinstance(first.error, QueryFailed) and isinstance(first.error.__cause__, Fenced)
    check(SHAPE, tmp_path)


@pytest.mark.parametrize("point", some(["sink.kafka.begun", "sink.kafka.sent", "sink.kafka.numbered"], 1))
def test_a_producer_that_a_stranger_fenced_asks_the_journal_and_tries_again(point, tmp_path, caplog):
    first, pause = held_at(point, SHAPE, tmp_path)
    (sink,) = begun_sinks(storage(tmp_path))
    name = identity(first._query.id, sink)
    stranger = Producer({"bootstrap.servers": kafka_kit.address(), "transactional.id": name})
    stranger.init_transactions(30)
    pause.go_on()
    first.finish()
    check(SHAPE, tmp_path)
    assert "could not publish group" in caplog.text
    assert "fenced" in caplog.text or "Fatal error" in caplog.text  # the client may tell the same in either way


def begun_sinks(store: ObjectStore) -> set[str]:
    begun = (names.parse(each.name) for each in store.list(names.SINKS))
    return {each.sink for each in begun if isinstance(each, names.SinkBegunName)}


def new_topics(servers: str) -> str:
    """Make a topic for messages, and a topic for their counts."""
    topic = kafka_kit.new_topic(PARTITIONS, servers=servers)
    kafka_kit.new_topic(PARTITIONS, f"{topic}-out", servers)
    return topic


def produce(servers: str, topic: str, numbers: range) -> None:
    writer = kafka_kit.Writer(servers=servers)
    for partition in range(PARTITIONS):
        mine = [json.dumps({"k": n % KEYS, "n": n}) for n in numbers if n % PARTITIONS == partition]
        writer.put(topic, mine, partition)


def shown(servers: str, topic: str) -> dict[int, list[int]]:
    """The counts of each key, in the order in which readers of committed messages see them."""
    found: dict[int, list[int]] = {}
    for _, value in kafka_kit.committed(f"{topic}-out", PARTITIONS, servers):
        row = json.loads(value)
        found.setdefault(row["k"], []).append(row["seen"])
    return found


def expected(rows: int) -> dict[int, list[int]]:
    return {key: list(range(1, len(range(key, rows, KEYS)) + 1)) for key in range(KEYS)}


def kill_and_start(broker: Broker) -> None:
    broker.stop()
    broker.start()


def shut_down_and_start(broker: Broker) -> None:
    broker.shut_down()
    broker.start()


@pytest.mark.kill
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("restarted", [kill_and_start, shut_down_and_start])
def test_a_job_outlives_its_broker_and_each_message_counts_once(
    restarted: Callable[[Broker], None], broker: Broker, tmp_path: Path
):
    servers = broker.address
    topic = new_topics(servers)
    produce(servers, topic, range(2000))
    query = start(counting(servers, topic, tmp_path), hf.processing_time("10ms"))
    try:
        until(lambda: shown(servers, topic), "first results")
        restarted(broker)
        produce(servers, topic, range(2000, 3000))
        until(
            lambda: not query.isActive or shown(servers, topic) == expected(3000), lambda: str(query.status), PATIENCE_S
        )
    finally:
        query.stop()
    assert query.exception() is None
    assert shown(servers, topic) == expected(3000)


@pytest.mark.kill
@pytest.mark.timeout(300)
def test_a_driver_that_was_suspended_is_fenced_when_it_goes_on_and_each_message_counts_once(tmp_path: Path):
    servers = kafka_kit.address()
    topic = new_topics(servers)
    produce(servers, topic, range(1000))
    old = TopicDriver("counting", servers, topic, tmp_path)
    until(lambda: shown(servers, topic), old.log.read_text)
    old.suspend()
    new = TopicDriver("counting", servers, topic, tmp_path)
    try:
        produce(servers, topic, range(1000, 2000))
        until(lambda: shown(servers, topic) == expected(2000), new.log.read_text)
        old.resume()
        produce(servers, topic, range(2000, 2500))
        until(lambda: old.code is not None and shown(servers, topic) == expected(2500), new.log.read_text)
        assert (old.code, new.code) == (FENCED, None), new.log.read_text()
    finally:
        old.kill()
        new.kill()
