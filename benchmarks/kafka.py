"""Messages out of a local Kafka broker: a keyed count of JSON messages, beside a loop with the bare client.

    python -m benchmarks.kafka --json

The broker is part of the measurement: it shares the processors. `rows_per_s` counts the messages of a topic by the time
of the job's batches, `with_start_per_s` by the time of the whole job, from its start in an empty storage to the last
checkpoint; `bare_client_per_s` is a loop over `consume(n)` that looks at
nothing, with the source's fetch settings and without pauses; `read_per_s` is the source alone, from the broker to Arrow
columns.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import holdfast as hf
from examples.kafka.broker import kafka
from holdfast.sources.base import SplitRead
from holdfast.sources.kafka.kafka_source import FETCHING, FETCHING_DEFAULTS
from holdfast.testing import run

PARTITIONS = 2
SCHEMA = "user BIGINT, pad STRING"


def filled_topic(servers: str, messages: int, keys: int) -> str:
    """Make a topic with JSON messages of 100 bytes."""
    topic = f"bench-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for number in range(messages):
        start = f'{{"user": {number * 7919 % keys}, "pad": "'
        while True:
            try:
                producer.produce(topic, f'{start}{"x" * (98 - len(start))}"}}', partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    return topic


def bare_client(servers: str, topic: str, messages: int) -> float:
    """Messages a second of a loop over the client's own `consume`."""
    settings = {**FETCHING_DEFAULTS, **FETCHING, "bootstrap.servers": servers, "group.id": "bench"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    began_s, seen = time.perf_counter(), 0
    while seen < messages:
        # A batch that has to be full would wait for its end, and asking without waiting would burn the processor.
        seen += len(consumer.consume(10_000, timeout=0) or consumer.consume(1, timeout=1))
    took_s = time.perf_counter() - began_s
    consumer.close()
    return messages / took_s


def source_alone(servers: str, topic: str, messages: int) -> float:
    """Messages a second from the broker to Arrow columns, partition after partition."""
    source = hf.KafkaSource(servers, topic, value="json", schema=SCHEMA, metadata=[])
    source.schema()
    began_s, seen = time.perf_counter(), 0
    for number in range(PARTITIONS):
        read = SplitRead(f"{topic}/{number}", 0, messages // PARTITIONS)
        seen += sum(batch.rows.num_rows for batch in source.read(read))
    assert seen == messages
    return messages / (time.perf_counter() - began_s)


def keyed_count(servers: str, topic: str, messages: int) -> tuple[float, float]:
    """Messages a second of a job in a single process, without Spark: by the time of its batches, and as a whole."""
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job(None, name="kafka", storage=Path(folder).as_uri(), parallelism=2, max_rows_per_batch=500_000)
        source = hf.KafkaSource(servers, topic, value="json", schema=SCHEMA, metadata=[])
        sink = hf.NoopSink()
        job.read(source).key_by("user").aggregate(n=hf.count()).write(sink)
        began_s = time.perf_counter()
        query = run(job)
        whole_s = time.perf_counter() - began_s
        return messages / (sum(query.totals.batch_ms) / 1000), messages / whole_s


def main(
    messages: Annotated[int, typer.Option(help="messages in the topic")] = 2_000_000,
    keys: Annotated[int, typer.Option(help="distinct keys")] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON line")] = False,
) -> None:
    with kafka() as servers:
        topic = filled_topic(servers, messages, keys)
        source_alone(servers, filled_topic(servers, 1_000, keys), 1_000)  # Kernels are compiled, connections made.
        bare = max(bare_client(servers, topic, messages) for _ in range(2))
        alone = max(source_alone(servers, topic, messages) for _ in range(2))
        counted = max(keyed_count(servers, topic, messages) for _ in range(2))
    found = {
        "messages": messages,
        "rows_per_s": round(counted[0]),
        "with_start_per_s": round(counted[1]),
        "read_per_s": round(alone),
        "bare_client_per_s": round(bare),
        "ratio_to_bare_client": round(counted[0] / bare, 3),
    }
    print(json.dumps(found) if as_json else "\n".join(f"{name}: {value:,}" for name, value in found.items()))


if __name__ == "__main__":
    typer.run(main)
