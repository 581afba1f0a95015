"""A job on Spark Connect that loses a worker, and an executor or the whole server, in a process of its own.

    python kills_connect.py sc://127.0.0.1:<port> <folder> losses | server | client | stream | stream-again

`losses` writes what it found into found.json. `server` waits for the end of its server, and writes the query's error.
`client` writes the ports of its processes into ports.json, and stays. `stream` reads a streaming DataFrame, loses the
process that stores its epochs, a TaskManager and an executor, and stays; `stream-again` goes on with it, and stops.
"""

import json
import sys
import threading
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import holdfast as hf
from connect_kit import WAIT_S, command_of, executor_at, process_at
from holdfast.ports import parted
from waiting import until

ROWS = 12_000
KEYS = 8


def by_key(batch):
    return pa.record_batch([pc.bit_wise_and(batch.column("value"), KEYS - 1)], names=["k"])


def counting(url, folder, sink):
    spark = SparkSession.builder.remote(url).create()
    job = hf.Job(
        spark,
        name="counts",
        storage=f"file://{folder}/storage",
        parallelism=2,
        task_managers=2,
        senders=1,
        max_rows_per_batch=400,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("500ms")),
    )
    numbers = job.read(hf.SequenceSource(ROWS, splits=2, rows_per_second=2_000, name="numbers")).map_batches(
        by_key, "k BIGINT"
    )
    filtered = numbers.transform(lambda df: df.where("k >= 0"))
    filtered.key_by("k").aggregate(n=hf.count(), name="counts").write(sink)
    return spark, job.start()


def losses(url, folder):
    sink = hf.MemorySink(name="out")
    spark, query = counting(url, folder, sink)
    until(lambda: query.totals.rows > 1_000, timeout_s=WAIT_S)
    process_at(query.taskManagers[0]["address"]).kill()
    until(lambda: len(query.restarts) == 1, timeout_s=WAIT_S)
    until(lambda rows=query.totals.rows: query.totals.rows > rows + 1_000, timeout_s=WAIT_S)
    executor_at(query.taskManagers[1]["address"]).kill()
    until(lambda: len(query.restarts) >= 2, timeout_s=WAIT_S)

    def counted():
        return {row["k"]: row["n"] for row in sink.rows()}

    until(lambda: sum(counted().values()) == ROWS, timeout_s=WAIT_S)
    query.stop()
    found = {"counts": counted(), "restarts": query.restarts}
    Path(folder, "found.json").write_text(json.dumps(found))
    spark.stop()


def server(url, folder):
    _, query = counting(url, folder, hf.MemorySink(name="out"))
    until(lambda: query.totals.rows > 1_000, timeout_s=WAIT_S)
    Path(folder, "runs").touch()
    try:
        query.awaitTermination(WAIT_S)
        said = "it goes on"
    except hf.HoldfastError as error:
        said = f"{type(error).__name__}: {error}"
    Path(folder, "said.new").write_text(said)
    Path(folder, "said.new").rename(Path(folder, "said"))


def client(url, folder):
    _, query = counting(url, folder, hf.MemorySink(name="out"))
    until(lambda: query.totals.rows > 1_000, timeout_s=WAIT_S)
    ports = [parted(each["address"])[1] for each in query.taskManagers]
    Path(folder, "ports.new").write_text(json.dumps(ports))
    Path(folder, "ports.new").rename(Path(folder, "ports.json"))
    threading.Event().wait(WAIT_S)


def every_value(url, folder):
    """A job that counts each value of a stream of rates, and stores the counts in files."""
    spark = SparkSession.builder.remote(url).create()
    job = hf.Job(
        spark,
        name="rates",
        storage=f"file://{folder}/storage",
        parallelism=2,
        task_managers=1,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("300ms")),
    )
    rates = spark.readStream.format("rate").option("rowsPerSecond", 500).load()
    source = hf.StreamingDataFrameSource(rates, trigger_interval="200ms", name="rates")
    sink = hf.ParquetSink(f"file://{folder}/out", name="out")
    job.read(source).key_by("value").aggregate("every", n=hf.count()).write(sink)
    return spark, job.start()


def await_rows(query, more):
    until(lambda rows=query.totals.rows: query.totals.rows > rows + more, timeout_s=WAIT_S)


def stream(url, folder):
    _, query = every_value(url, folder)
    await_rows(query, 500)
    for each in psutil.process_iter():
        if "foreach_batch_worker" in " ".join(command_of(each)):
            each.kill()
    until(lambda: "Spark's query fails, and is started again" in query.status["message"], timeout_s=WAIT_S)
    await_rows(query, 500)
    process_at(query.taskManagers[0]["address"]).kill()
    until(lambda: len(query.restarts) == 1, timeout_s=WAIT_S)
    await_rows(query, 500)
    executor_at(query.taskManagers[0]["address"]).kill()
    until(lambda: len(query.restarts) == 2, timeout_s=WAIT_S)
    await_rows(query, 500)
    Path(folder, "runs").touch()
    threading.Event().wait(WAIT_S)


def stream_again(url, folder):
    spark, query = every_value(url, folder)
    await_rows(query, 1_000)
    query.trigger_checkpoint(timeout=60)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    modes = {"losses": losses, "server": server, "client": client, "stream": stream, "stream-again": stream_again}
    modes[sys.argv[3]](*sys.argv[1:3])
