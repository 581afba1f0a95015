"""A topic in and a topic out by Spark: the client in the workers of senders that stay, and over a driver's restart."""

import json
import os

import pyarrow as pa
import pyarrow.compute as pc
from spark_kit import new_job, run

import holdfast as hf
import kafka_kit

PARTITIONS, KEYS, ROWS = 3, 5, 300


def in_a_worker(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add the process that reads."""
    keys = pc.cast(pc.cast(batch.column("key"), pa.string()), pa.int64())
    process = pa.array([os.getpid()] * batch.num_rows, pa.int64())
    return pa.record_batch([keys, batch.column("n"), process], names=["k", "n", "process"])


def produce(topic: str, numbers: range) -> None:
    writer = kafka_kit.Writer()
    for key in range(KEYS):
        writer.put(topic, [json.dumps({"n": n}) for n in numbers if n % KEYS == key], key % PARTITIONS, key=str(key))


def test_a_topic_is_counted_into_a_topic_by_senders_that_stay_and_goes_on_after_a_restart(spark, tmp_path):
    source, out = kafka_kit.new_topic(PARTITIONS), kafka_kit.new_topic(2)

    def job() -> hf.Job:
        made = new_job(spark, tmp_path, name="kafka", max_rows_per_batch=100, checkpoint=hf.CheckpointConfig())
        read = hf.KafkaSource(kafka_kit.address(), source, value="json", schema="n BIGINT", metadata=["key"])
        rows = made.read(read).map_batches(in_a_worker, "k BIGINT, n BIGINT, process BIGINT")
        totals = rows.key_by("k").aggregate("every", seen=hf.count(), total=hf.sum("n"), process=hf.last("process"))
        totals.write(hf.KafkaSink(kafka_kit.address(), out, key="k"))
        return made

    for numbers in (range(ROWS), range(ROWS, 2 * ROWS)):
        produce(source, numbers)
        run(job())
    found = [json.loads(value) for _, value in kafka_kit.committed(out, 2)]
    assert os.getpid() not in {row["process"] for row in found}
    for key in range(KEYS):
        rows = [row for row in found if row["k"] == key]
        assert [row["seen"] for row in rows] == list(range(1, 2 * ROWS // KEYS + 1))
        assert rows[-1]["total"] == sum(range(key, 2 * ROWS, KEYS))
