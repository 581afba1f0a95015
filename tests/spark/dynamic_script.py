"""A job under dynamic allocation on `local-cluster`: dynamic_script.py FOLDER [URL SERVER]

URL and SERVER: those of a Spark Connect server, and the id of its process. Executors have a slot each, and none runs at
first. Writes what it found to FOLDER/found.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

import holdfast as hf
from connect_kit import executors_of
from holdfast.spark import slots
from waiting import until

RATE, KEYS, WAIT_S = 1000, 50, 120.0


SETTINGS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.executorIdleTimeout": "3s",
    "spark.executor.cores": "1",
}


def session() -> SparkSession:
    made = (
        SparkSession.builder.master("local-cluster[4,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.memory", "512m")
    )
    return made.config(map=SETTINGS).getOrCreate()


def main(folder: str, url: str = "", server: str = "") -> None:
    slots.MORE_S_MAX = 0.0  # the start does not wait for the sender's executor
    slots.WAIT_S_MAX = WAIT_S
    spark = SparkSession.builder.remote(url).create() if url else session()

    def executors() -> int:
        if url:
            return len(executors_of(psutil.Process(int(server))))
        return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1

    sink = hf.MemorySink(name="out")
    job = hf.Job(spark, name="dynamic", storage=f"file://{folder}/storage", parallelism=4)
    rows = job.read(hf.SequenceSource(rows_per_second=RATE, splits=2, name="rows"))
    keyed = rows.map_batches(
        lambda batch: batch.append_column("k", [v.as_py() % KEYS for v in batch["value"]]), "value BIGINT, k BIGINT"
    )
    keyed.key_by("k").aggregate(n=hf.count(), last=hf.max("value"), name="counts").write(sink)
    query = job.start(hf.processing_time("0s"))
    parts = query._master.parts
    until(lambda: parts.senders.serving == 1, timeout_s=WAIT_S)
    until(lambda: query.totals.rows > RATE, timeout_s=WAIT_S)
    query.rescale(task_managers=2).wait(WAIT_S)
    found: dict[str, Any] = {"executors of two TaskManagers": executors()}
    query.rescale(task_managers=1).wait(WAIT_S)
    until(lambda: executors() < found["executors of two TaskManagers"], timeout_s=WAIT_S)
    until(lambda rows=query.totals.rows: query.totals.rows > rows + RATE, timeout_s=WAIT_S)
    query.trigger_checkpoint()
    query.stop()
    counts = {row["k"]: (row["n"], row["last"]) for row in sink.rows()}
    found["exact"] = all(n == last // KEYS + 1 for k, (n, last) in counts.items()) and len(counts) == KEYS
    found["restarts"] = query.restarts
    Path(folder, "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
