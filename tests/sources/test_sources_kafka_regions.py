"""Partitions of a topic as regions: a message that cannot be processed stops its own partition, until it is skipped."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
import kafka_kit
from holdfast.testing import start
from waiting import until

PARTITIONS, ROWS, POISON = 3, 30, 17


def refuse(batch: pa.RecordBatch) -> pa.RecordBatch:
    if POISON in batch.column("n").to_pylist():
        raise ValueError("no such customer")
    return batch


def numbers(folder: Path) -> list[int]:
    return sorted(n for file in folder.rglob("*.parquet") for n in pq.read_table(file)["n"].to_pylist())


def dead_letters(folder: Path) -> list[tuple[str, str, str]]:
    rows = [row for file in (folder / "letters").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    return [(row["split"], row["position"], row["payload"]) for row in rows]


def test_a_poisoned_message_parks_its_partition_alone_and_is_skipped_by_its_offset(tmp_path: Path):
    topic, writer = kafka_kit.new_topic(PARTITIONS), kafka_kit.Writer()
    for n in range(ROWS):
        writer.put(topic, [json.dumps({"n": n})], n % PARTITIONS)
    job = hf.Job(
        None,
        name="kafka",
        storage=f"file://{tmp_path}/storage",
        regions=hf.RegionConfig(max_consecutive_failures=0, on_poison="park"),
        failover=hf.FailoverConfig(backoff_first="10ms", backoff_max="50ms"),
        checkpoint=hf.CheckpointConfig(trigger=hf.every("50ms")),
        bad_records="dead_letter",
        dead_letters=f"file://{tmp_path}/letters",
    )
    source = hf.KafkaSource(kafka_kit.address(), topic, value="json", schema="n BIGINT", metadata=[])
    rows = job.read(source).map_batches(refuse, pa.schema([("n", pa.int64())]))
    rows.write(hf.ParquetSink(f"file://{tmp_path}/out", name="out"))
    query = start(job, hf.processing_time("10ms"))
    split, offset = f"{topic}/{POISON % PARTITIONS}", POISON // PARTITIONS
    until(lambda: [each["split"] for each in query.status["splitsBehind"] if each["parked"]] == [split])
    until(lambda: numbers(tmp_path / "out") == [n for n in range(ROWS) if n % PARTITIONS != POISON % PARTITIONS])
    query.skip(split, offset)
    until(lambda: numbers(tmp_path / "out") == [n for n in range(ROWS) if n != POISON])
    until(lambda: dead_letters(tmp_path) == [(split, str(offset), json.dumps({"n": POISON}, separators=(",", ":")))])
    query.stop()
