"""Programs of a job whose JobMaster runs in the cluster, behind a real Spark Connect server.

    python kills_cluster_driver.py sc://127.0.0.1:<port> <folder> starts | attaches | loses | fences | waits

`starts` starts the job, writes `runs` and stays until it is killed. `attaches` finds the job again, uses its handle,
and stops it. `loses` kills the JobMaster, and waits for the end of the rows. `fences` starts the job twice. `waits` has
a driver in waiting in the cluster, kills the leader and its program, and stops the successor. All but the first write
found.json.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from connect_kit import WAIT_S, process_at
from waiting import until

ROWS, KEYS, SPLITS = 40_000, 8, 2
STORAGE = "storage"


def connected(url):
    return SparkSession.builder.remote(url).create()


def by_key(batch):
    return pa.record_batch([batch.column("value"), pc.bit_wise_and(batch.column("value"), KEYS - 1)], names=["v", "k"])


def counting(spark, folder, rows=ROWS, rate=2_000, **settings):
    """Counts by key, and the rows themselves, each to Parquet; a table of the session joins in a transform."""
    job = hf.Job(
        spark,
        name="counts",
        driver="cluster",
        storage=f"file://{folder}/{STORAGE}",
        parallelism=2,
        task_managers=1,
        senders=1,
        max_rows_per_batch=400,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("500ms")),
        ui_port=0,
        **settings,
    )
    numbers = job.read(hf.SequenceSource(rows, splits=SPLITS, rows_per_second=rate, name="numbers"))
    keyed = numbers.map_batches(by_key, "v BIGINT, k BIGINT")
    keyed.write(hf.ParquetSink(f"file://{folder}/rows", name="rows"))
    weights = spark.range(KEYS).selectExpr("id AS k", "id + 1 AS w")
    weighed = keyed.transform(lambda df: df.join(F.broadcast(weights), "k").selectExpr("k", "w"))
    sums = weighed.key_by("k").aggregate(n=hf.count(), w=hf.sum("w"), name="counts")
    sums.write(hf.ParquetSink(f"file://{folder}/counts", name="counted"))
    return job


def written(folder, name):
    found = [str(path) for path in Path(folder, name).rglob("*.parquet")]
    return ds.dataset(found).to_table().to_pylist() if found else []


def output(folder):
    """The rows as they were written, and the newest count of each key."""
    rows, counts = written(folder, "rows"), written(folder, "counts")
    newest = {k: max((row["n"], row["w"]) for row in counts if row["k"] == k) for k in {row["k"] for row in counts}}
    return {"rows": sorted(row["v"] for row in rows), "counts": newest, "updates": [(r["k"], r["n"]) for r in counts]}


def tell(folder, **found):
    Path(folder, "found.new").write_text(json.dumps(found))
    Path(folder, "found.new").rename(Path(folder, "found.json"))


def jobmaster_of(query):
    return process_at(urlsplit(query.uiUrl).netloc)


def starts(url, folder):
    query = counting(connected(url), folder).start()
    until(lambda: query.totals.rows > 1_000, timeout_s=WAIT_S)
    Path(folder, "runs").write_text(query.runId)
    threading.Event().wait(WAIT_S)


def attaches(url, folder):
    spark = connected(url)
    query = hf.attach(f"file://{folder}/{STORAGE}", spark=spark)
    run, before = query.runId, query.totals
    until(lambda: query.totals.completed_checkpoints > before.completed_checkpoints + 1, timeout_s=WAIT_S)
    facts = {
        "run": run,
        "status": query.status["message"],
        "went on": query.lastProgress["batchId"] > 0 and query.totals.batches > before.batches,
        "checkpoint": query.trigger_checkpoint(timeout=60),
        "state": query.read_state("counts", key={"k": 3}).num_rows,
        "savepoint": query.savepoint(f"file://{folder}/savepoint").objects > 0,
    }
    query.update(timeout="2min")
    query.rescale(task_managers=2, parallelism=2, timeout="2min").wait(WAIT_S)
    facts["task managers"] = len(query.taskManagers)
    until(lambda: len(written(folder, "rows")) >= ROWS, timeout_s=WAIT_S)  # its clock makes rows available
    query.processAllAvailable()
    pid = jobmaster_of(query)
    query.stop()
    facts |= {"active": query.isActive, "rows": query.totals.rows}
    until(lambda: not pid.is_running() or pid.status() == psutil.STATUS_ZOMBIE, timeout_s=WAIT_S)
    try:
        hf.attach(f"file://{folder}/{STORAGE}", spark=spark)
    except hf.HoldfastError as error:
        facts["ended"] = str(error)
    tell(folder, **facts)


def loses(url, folder):
    spark = connected(url)
    query = counting(spark, folder).start()
    spark.stop()  # the job has sessions of its own
    runs = [query.runId]
    for _ in range(2):
        until(lambda: query.totals.completed_checkpoints > 2, timeout_s=WAIT_S)
        jobmaster_of(query).kill()
        until(lambda: query.runId != runs[-1], timeout_s=WAIT_S)
        runs.append(query.runId)
    until(lambda: query.lastProgress is not None, timeout_s=WAIT_S)
    until(lambda: len(written(folder, "rows")) >= ROWS, timeout_s=WAIT_S)
    query.processAllAvailable()
    query.stop()
    tell(folder, runs=len(set(runs)), active=query.isActive)


def fences(url, folder):
    spark = connected(url)
    first = counting(spark, folder).start()
    until(lambda: first.totals.completed_checkpoints > 1, timeout_s=WAIT_S)
    second = counting(spark, folder).start()
    try:
        first.awaitTermination(WAIT_S)
        said = "it goes on"
    except hf.QueryFailed as error:
        said = f"{type(error.__cause__).__name__}: {error}"
    until(lambda: second.totals.completed_checkpoints > 1, timeout_s=WAIT_S)
    second.stop()
    tell(folder, said=said)


def waits(url, folder):
    leads = subprocess.Popen([sys.executable, __file__, url, folder, "starts"])
    until(lambda: Path(folder, "runs").exists() or leads.poll() is not None, timeout_s=WAIT_S)
    spark = connected(url)
    standby = counting(spark, folder).start(standby=True)
    until(lambda: 0 < (now := standby.status["standby"])["processesReady"] == now["processes"], timeout_s=WAIT_S)
    leader = jobmaster_of(hf.attach(f"file://{folder}/{STORAGE}", spark=spark))
    leads.kill()
    leads.wait()
    leader.kill()
    until(lambda: "standby" not in standby.status, timeout_s=WAIT_S)
    until(lambda: standby.totals.completed_checkpoints > 1, timeout_s=WAIT_S)
    standby.stop()
    tell(folder, active=standby.isActive)


if __name__ == "__main__":
    {"starts": starts, "attaches": attaches, "loses": loses, "fences": fences, "waits": waits}[sys.argv[3]](
        *sys.argv[1:3]
    )
