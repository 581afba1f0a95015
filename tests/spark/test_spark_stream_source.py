"""Streaming DataFrames as sources: Spark's own readers, restarts, and a TaskManager that dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from spark_kit import kill_task_manager, new_job, newest, run, tuples, write_rows

import holdfast as hf
import kafka_kit
from holdfast import failpoints
from waiting import until

ROOT = Path(__file__).resolve().parents[2]


WAIT_S = 240.0
"""Patience in seconds: the first epoch waits for the imports of a Python worker."""


def files(spark, folder):
    """A stream of Parquet files with k and v, a file for each epoch."""
    reader = spark.readStream.schema("k BIGINT, v BIGINT").option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder / "in"))


def write(folder, number, rows=100):
    write_rows(folder / "in" / f"{number}.parquet", [{"k": v % 8, "v": v} for v in values(number, rows)])


def values(number, rows=100):
    return range(number * rows, (number + 1) * rows)


def sums(count, rows=100):
    found = {}
    for v in range(count * rows):
        found[v % 8] = found.get(v % 8, 0) + v
    return found


def totals(spark, folder, **settings):
    """A job that sums the files' rows, and its sink."""
    job, sink = new_job(spark, folder, **settings), hf.MemorySink()
    stream = job.read(files(spark, folder).where("v >= 0"))
    stream.key_by("k").aggregate(total=hf.sum("v")).write(sink)
    return job, sink


def test_files_are_read_to_their_end_and_a_second_start_goes_on_there(spark, tmp_path):
    for number in range(3):
        write(tmp_path, number)
    job, sink = totals(spark, tmp_path)
    query = run(job)
    assert newest(sink) == sums(3)
    assert query.lastProgress["sources"][0]["endOffset"]["segment"] == 3
    write(tmp_path, 3)
    job, sink = totals(spark, tmp_path)
    run(job)
    assert newest(sink) == sums(4)
    stored = [path.name for path in (tmp_path / "storage" / "segments").rglob("*") if path.is_file()]
    assert stored == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_rates_go_on_after_a_task_manager_died_and_after_a_restart_without_a_gap(spark, tmp_path):
    def started():
        job, sink = new_job(spark, tmp_path, checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms"))), hf.MemorySink()
        rates = spark.readStream.format("rate").option("rowsPerSecond", 200).load()
        stream = job.read(hf.StreamingDataFrameSource(rates, trigger_interval="100ms", name="rates"))
        stream.key_by("value").aggregate("every", n=hf.count()).write(sink)
        return job.start(), sink

    query, first = started()
    until(first.rows, timeout_s=WAIT_S)
    kill_task_manager(query, 0)
    seen = len(first.rows())
    until(lambda: len(first.rows()) > seen + 100, timeout_s=WAIT_S)
    query.stop()
    query, second = started()
    until(lambda: len(second.rows()) > 100, timeout_s=WAIT_S)
    query.stop()
    found = tuples(first) + tuples(second)
    assert sorted(found) == [(value, 1) for value in range(len(found))]


def test_another_checkpoint_of_sparks_is_refused_by_its_id(spark, tmp_path):
    write(tmp_path, 0)
    run(totals(spark, tmp_path)[0])
    job = new_job(spark, tmp_path)
    moved = hf.StreamingDataFrameSource(files(spark, tmp_path), checkpoint_location=f"file://{tmp_path}/other")
    job.read(moved).key_by("k").aggregate(total=hf.sum("v")).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match=r"belongs to query .* and the checkpoint_location holds query"):
        job.start()


def test_a_dataframe_that_spark_cannot_stream_is_refused_with_sparks_reason(spark, tmp_path):
    (tmp_path / "in").mkdir()
    job = new_job(spark, tmp_path)
    job.read(files(spark, tmp_path).groupBy("k").count()).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match=r"Spark does not start this streaming DataFrame.*append"):
        job.start()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_messages_of_sparks_kafka_reader_count_once_although_the_driver_and_a_task_manager_are_killed(tmp_path):
    topic = kafka_kit.new_topic(3)
    for partition in range(3):
        kafka_kit.Writer().put(topic, [str(number).encode() for number in range(partition, 3000, 3)], partition)
    jars = subprocess.run(
        [ROOT / "scripts" / "jars.sh", "examples/kafka/spark_reader.xml"], check=True, capture_output=True, text=True
    )
    script = [sys.executable, str(Path(__file__).with_name("stream_kafka_script.py"))]
    arguments = [kafka_kit.address(), topic, str(tmp_path), jars.stdout.strip()]
    killed = [tmp_path / name for name in ("driver", "task-manager")]
    points = zip(("stream.epoch.stored", "taskmanager.process.after"), killed, strict=True)
    armed = ",".join(f"{point}=kill:{marker}" for point, marker in points)
    environment = {**os.environ, failpoints.ENVIRONMENT_VARIABLE: armed}
    starts = [
        subprocess.run([*script, *arguments], capture_output=True, text=True, timeout=400, env=environment, check=False)
        for _ in range(2)
    ]
    assert [start.returncode for start in starts] == [-signal.SIGKILL, 0], starts[-1].stderr[-4000:]
    assert all(marker.exists() for marker in killed)
    found = ds.dataset(tmp_path / "out").to_table().to_pylist()
    assert sorted((row["value"], row["n"]) for row in found) == [(value, 1) for value in range(3000)]
