"""A job on `local-cluster`, one of whose executors is decommissioned while rows come: leaving_script.py FOLDER [URL]

The URL is that of a Spark Connect server. There executors are named by their process ids, and get the signal with which
Kubernetes announces the end of a pod.
Writes to FOLDER/found.json how soon the notice showed, the longest time without a batch, the restarts and the counts.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf
from connect_kit import executor_at
from holdfast.spark.session import is_connect
from waiting import until

RATE = 2000
KEYS = 100


def decommission(spark: SparkSession, executor: str) -> None:
    """Do as a cluster manager does once a notice for the executor's machine has come."""
    if is_connect(spark):
        os.kill(int(executor), signal.SIGPWR)
        return
    jvm, backend = spark.sparkContext._jvm, spark.sparkContext._jsc.sc().schedulerBackend()
    info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("spot notice", jvm.scala.Option.empty())
    assert backend.decommissionExecutor(executor, info, False, False)


def executor_of(query: hf.Query, task_manager: int) -> str:
    """Return the executor that a TaskManager runs on."""
    if is_connect(query._master.parts.cluster._host.session):
        [address] = [each["address"] for each in query.taskManagers if each["task_manager"] == task_manager]
        return str(executor_at(address).pid)
    cluster = query._master.parts.cluster
    hosting = cluster._hosting
    [process] = [each for each in hosting._live() if each.role.value == "TaskManager" and each.number == task_manager]
    [executor] = hosting._host.executors_of(hosting._group_of(process))
    return executor


def session() -> SparkSession:
    return (
        SparkSession.builder.master("local-cluster[3,2,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.decommission.enabled", "true")
        .getOrCreate()
    )


def main(folder: str, url: str = "") -> None:
    spark = SparkSession.builder.remote(url).create() if url else session()
    sink = hf.MemorySink(name="out")
    job = hf.Job(
        spark,
        name="leaving",
        storage=f"file://{folder}/storage",
        parallelism=4,
        task_managers=2,
        senders=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
    )
    rows = job.read(hf.SequenceSource(rows_per_second=RATE, splits=2, name="rows"))
    keyed = rows.map_batches(
        lambda batch: batch.append_column("k", [v.as_py() % KEYS for v in batch["value"]]), "value BIGINT, k BIGINT"
    )
    keyed.key_by("k").aggregate(n=hf.count(), last=hf.max("value"), name="counts").write(sink)
    query = job.start(hf.processing_time("0s"))
    until(lambda: query.totals.completed_checkpoints >= 2 and query.totals.rows > 5 * RATE)
    before = {each["task_manager"]: each["incarnation"] for each in query.taskManagers}
    executor = executor_of(query, 0)
    leaving = [number for number in before if executor_of(query, number) == executor]
    began_s = time.monotonic()
    decommission(spark, executor)
    until(lambda: "to leave: executor" in query.status["message"])
    noticed_s = time.monotonic() - began_s
    gap = Gap(query)
    until(lambda: gap.look() and all(each["task_manager"] not in leaving for each in query.taskManagers))
    until(lambda: gap.look() and gap.batches > 10)
    query.trigger_checkpoint()
    moved_s = time.monotonic() - began_s
    now = {each["task_manager"]: executor_of(query, each["task_manager"]) for each in query.taskManagers}
    query.stop()
    counts = {row["k"]: (row["n"], row["last"]) for row in sink.rows()}
    found = {
        "noticed_s": noticed_s,
        "moved_s": moved_s,
        "gap_s": gap.longest_s,
        "restarts": query.restarts,
        "executor": executor,
        "leaving": leaving,
        "now": now,
        "exact": all(n == last // KEYS + 1 for k, (n, last) in counts.items()) and len(counts) == KEYS,
    }
    Path(folder, "found.json").write_text(json.dumps(found))
    spark.stop()


class Gap:
    """The longest time between two batches, of looks that come often."""

    def __init__(self, query: hf.Query) -> None:
        self._query = query
        self._seen, self._since_s = query.totals.batches, time.monotonic()
        self.longest_s, self.batches = 0.0, 0

    def look(self) -> bool:
        now_s, batches = time.monotonic(), self._query.totals.batches
        if batches != self._seen:
            self.longest_s = max(self.longest_s, now_s - self._since_s)
            self.batches += batches - self._seen
            self._seen, self._since_s = batches, now_s
        return True


if __name__ == "__main__":
    main(*sys.argv[1:])
