"""Sessions that are stopped under their queries, in a process of its own: the session of the tests must live on.

    python session_end_script.py <folder> <way>…

Writes `found.json`: for each of these ways of stopping, how the query ended. All sessions share a JVM, in sequence.
"""

import json
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import holdfast as hf

sys.path.append(str(Path(__file__).resolve().parents[1]))
from waiting import until

ROWS = 1_000_000
WAIT_S = 60


class Busy(hf.BatchFunction):
    """Holds its TaskManager for longer than any test waits."""

    def __init__(self, marker):
        self.marker = marker

    def process(self, batch, keys, groups, ctx):
        Path(self.marker).touch()
        threading.Event().wait(600)
        yield batch


def new_session():
    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def by_key(batch):
    value = batch.column("value")
    return pa.record_batch([pc.bit_wise_and(value, 7), value], names=["k", "v"])


def new_job(spark, storage, kind, rows=ROWS):
    job = hf.Job(
        spark,
        name=kind,
        storage=storage.as_uri(),
        parallelism=2,
        task_managers=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("0.2s")),
        max_rows_per_batch=1000,
    )
    numbers = job.read(hf.SequenceSource(rows, splits=2, name="n"))
    if kind == "without state":
        numbers.write(hf.NoopSink())
        return job
    keyed = numbers.map_batches(by_key, "k BIGINT, v BIGINT").key_by("k")
    if kind == "busy":
        keyed.process(Busy(str(storage.parent / "in the function")), "k BIGINT, v BIGINT").write(hf.NoopSink())
    else:
        keyed.aggregate(n=hf.count()).write(hf.NoopSink())
    return job


def how_it_ended(query, job):
    """Waits for the end of a query whose session was stopped; says how it came about, and the answer to a start."""
    began_s = time.monotonic()
    try:
        ended = query.awaitTermination(WAIT_S)
        error = None
    except hf.QueryFailed as failed:
        ended, error = True, failed.__cause__
    found = {"ended": ended, "error": type(error).__name__, "message": str(error), "restarts": query.restarts}
    found["seconds"] = time.monotonic() - began_s
    query.stop()
    found["active"] = query.isActive
    found["start"] = start_again(job)
    return found


def start_again(job):
    try:
        job.start()
    except hf.HoldfastError as error:
        return f"{type(error).__name__}: {error}"
    return "started"


def stopped_under(folder, kind, rows=ROWS):
    spark = new_session()
    job = new_job(spark, folder / kind, kind, rows)
    query = job.start()
    if kind == "busy":
        until((folder / "in the function").exists, timeout_s=WAIT_S)
    else:
        until(lambda: query.totals.checkpoints, timeout_s=WAIT_S)
    spark.stop()
    return how_it_ended(query, job)


def stopped_by_another_thread(folder):
    spark = new_session()
    job = new_job(spark, folder / "another", "another")
    query = job.start()
    until(lambda: query.totals.checkpoints, timeout_s=WAIT_S)
    stopper = threading.Timer(0.3, spark.stop)
    stopper.start()
    found = how_it_ended(query, job)
    stopper.join()
    return found


def stopped_before_it_runs(folder, when):
    """The session is stopped as soon as the start has come so far that a thread of that name runs."""
    spark = new_session()
    job = new_job(spark, folder / "starting", "starting")
    said = []
    starting = threading.Thread(target=lambda: said.append(start_again(job)))
    starting.start()
    until(lambda: any(thread.name.startswith(when) for thread in threading.enumerate()), timeout_s=WAIT_S)
    spark.stop()
    starting.join(WAIT_S)
    return {"start": said[0] if said else "hangs"}


def threads_left():
    """Return the threads of Holdfast that do not end by themselves within a while."""
    deadline_s = time.monotonic() + WAIT_S
    while found := [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]:
        if time.monotonic() > deadline_s:
            return found
        threading.Event().wait(0.05)
    return []


def goes_on(folder):
    """The job of the first session, on a new session: it ends where its source does."""
    spark = new_session()
    query = new_job(spark, folder / "counts", "counts", 40_000).start(hf.available_now())
    first = query.awaitTermination(WAIT_S) and query.recentProgress[0]
    spark.stop()
    return {"from": first["sources"][0]["startOffset"]}


def main(folder: Path, *ways: str) -> None:
    calls = {
        "counts": lambda: stopped_under(folder, "counts", 40_000),
        "goes on": lambda: goes_on(folder),
        "busy": lambda: stopped_under(folder, "busy"),
        "without state": lambda: stopped_under(folder, "without state"),
        "idle": lambda: stopped_under(folder, "idle", 10),
        "another thread": lambda: stopped_by_another_thread(folder),
        "starting": lambda: stopped_before_it_runs(folder, "holdfast-TaskManager"),
    }
    found = {way: calls[way]() for way in ways}
    found["threads"] = threads_left()
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
