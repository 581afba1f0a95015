"""Jobs with Kafka whose broker dies, and whose producers are fenced: by a newer JobMaster, and by a stranger."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kills_in_process import Driver
from kills_pipelines import KILLED_OFTEN, Shape, check
from test_kills_fencing import held_at, recorded_rows, storage

import holdfast as hf
import kafka_kit
from examples.kafka.broker import Broker
from holdfast import failpoints
from holdfast.errors import Fenced, QueryFailed
from holdfast.sinks.kafka.kafka_sink import identity
from holdfast.testing import start
from waiting import until

SHAPE = Shape(rows=400, sink="kafka", interval_s=0.005)
PARTITIONS, KEYS = 2, 7


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


@pytest.fixture
def broker(tmp_path):
    """A broker of this test's own."""
    own = Broker(tmp_path / "broker").start()
    yield own
    own.stop()


@pytest.mark.parametrize("point", ["sink.kafka.begun", "sink.kafka.sent", "sink.kafka.numbered"])
def test_a_producer_that_a_newer_jobmaster_fenced_asks_the_journal_and_ends(point, tmp_path):
    first, pause = held_at(point, SHAPE, tmp_path)
    until(lambda: recorded_rows(storage(tmp_path)) == SHAPE.rows or first.ended, "the last checkpoint of the first")
    Driver(SHAPE, tmp_path).start().finish()
    check(SHAPE, tmp_path)
    pause.go_on()
    first.join()
    assert isinstance(first.error, QueryFailed) and isinstance(first.error.__cause__, Fenced)
    check(SHAPE, tmp_path)


def test_a_producer_that_a_stranger_fenced_asks_the_journal_and_tries_again(tmp_path):
    first, pause = held_at("sink.kafka.sent", SHAPE, tmp_path)
    name = identity(first._query.id, "kafka_0")
    stranger = Producer({"bootstrap.servers": kafka_kit.address(), "transactional.id": name})
    stranger.init_transactions(30)
    pause.go_on()
    first.finish()
    check(SHAPE, tmp_path)


def counting(folder: Path, servers: str) -> hf.Job:
    """Kafka to Kafka: each message's key with the number of its messages so far."""
    job = hf.Job(
        None,
        name="counting",
        storage=(folder / "storage").as_uri(),
        parallelism=2,
        max_rows_per_batch=200,
        checkpoint=hf.CheckpointConfig(trigger=hf.every(0.05), tolerable_failed_checkpoints=1000),
        failover=KILLED_OFTEN,
    )
    source = hf.KafkaSource(servers, "in", value="json", schema="k BIGINT, n BIGINT", metadata=[], group="lag")
    job.read(source).key_by("k").aggregate("every", seen=hf.count()).write(hf.KafkaSink(servers, "out", key="k"))
    return job


def produce(servers: str, numbers: range) -> None:
    writer = kafka_kit.Writer(servers=servers)
    for partition in range(PARTITIONS):
        mine = [json.dumps({"k": n % KEYS, "n": n}) for n in numbers if n % PARTITIONS == partition]
        writer.put("in", mine, partition)


def shown(servers: str) -> dict[int, list[int]]:
    """The counts of each key, in the order in which readers of committed messages see them."""
    found: dict[int, list[int]] = {}
    for _, value in kafka_kit.committed("out", PARTITIONS, servers):
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


@pytest.mark.long
@pytest.mark.parametrize("restarted", [kill_and_start, shut_down_and_start])
def test_a_job_outlives_its_broker_and_each_message_counts_once(
    restarted: Callable[[Broker], None], broker: Broker, tmp_path: Path
):
    servers = broker.address
    for topic in ("in", "out"):
        kafka_kit.new_topic(PARTITIONS, topic, servers)
    produce(servers, range(2000))
    query = start(counting(tmp_path, servers), hf.processing_time("10ms"))
    try:
        until(lambda: shown(servers), "first results")
        restarted(broker)
        produce(servers, range(2000, 3000))
        until(lambda: not query.isActive or shown(servers) == expected(3000), lambda: str(query.status))
    finally:
        query.stop()
    assert query.exception() is None
    assert shown(servers) == expected(3000)
