"""A job on `local-cluster` that loses an executor for good, so that slots for its senders and short Spark jobs are
missing: fewer_slots_script.py FOLDER [URL]

The URL is that of a Spark Connect server. Its lost executor holds no TaskManager; whatever Spark starts in its place
stands still from the beginning. Writes the counts to FOLDER/found.json.
"""

import contextlib
import json
import sys
import threading
import time
from pathlib import Path

import psutil
from leaving_script import KEYS, RATE
from pyspark.sql import SparkSession

import holdfast as hf
from connect_kit import executor_at, executors_of
from waiting import until

WAIT_S = 480.0
"""Bound in seconds on each wait, below the `process_timeout` after which a batch that stands still is run again."""
TAKEN_S = 10.0
"""Seconds after which the lost senders have taken the last slots, if nobody keeps them from it."""


def session() -> SparkSession:
    return (
        SparkSession.builder.master("local-cluster[3,2,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )


def lose_for_good(lost: psutil.Process, ended: threading.Event) -> None:
    """Kill an executor, and stop each that is started later, before it can register."""
    driver = lost.parent()
    assert driver is not None
    known = executors_of(driver)
    lost.kill()
    while not ended.wait(0.1):
        for each in executors_of(driver):
            if each not in known:
                known.append(each)
                each.suspend()
    for each in known:
        with contextlib.suppress(psutil.Error):
            each.kill()


def main(folder: str, url: str = "") -> None:
    spark = SparkSession.builder.remote(url).create() if url else session()
    sink = hf.MemorySink(name="out")
    job = hf.Job(
        spark,
        name="fewer-slots",
        storage=f"file://{folder}/storage",
        parallelism=2,
        task_managers=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
    )
    rows = job.read(hf.SequenceSource(rows_per_second=RATE, splits=3, name="rows"))
    keyed = rows.map_batches(
        lambda batch: batch.append_column("k", [v.as_py() % KEYS for v in batch["value"]]), "value BIGINT, k BIGINT"
    )
    counts = keyed.key_by("k").aggregate(n=hf.count(), last=hf.max("value"), name="counts")
    counts.transform(lambda frame: frame.selectExpr("k", "n", "last")).write(sink)
    query = job.start(hf.processing_time("0s"))
    until(lambda: query.totals.completed_checkpoints >= 2 and query.totals.rows > RATE, timeout_s=WAIT_S)
    held = [executor_at(each["address"]) for each in query.taskManagers]
    driver = held[0].parent()
    assert driver is not None
    lost = next(each for each in executors_of(driver) if each not in held)
    ended = threading.Event()
    losing = threading.Thread(target=lose_for_good, args=(lost, ended))
    losing.start()
    until(lambda: not lost.is_running())
    taken_s = time.monotonic() + TAKEN_S
    until(lambda: time.monotonic() > taken_s)
    for _ in range(3):
        until(lambda before=query.totals.batches: query.totals.batches > before, timeout_s=WAIT_S)
    query.stop()
    ended.set()
    losing.join()
    found = {row["k"]: (row["n"], row["last"]) for row in sink.rows()}
    exact = all(n == last // KEYS + 1 for k, (n, last) in found.items()) and len(found) == KEYS
    Path(folder, "found.json").write_text(json.dumps({"restarts": query.restarts, "exact": exact}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
