"""Run Nexmark's queries on Spark while a TaskManager is killed, and compare the results with DuckDB's.

python -m benchmarks.nexmark.check --queries all --events 2000000 --kill

Files of a `ParquetSink` keep no order, so results of which the last counts for each key go through a `CallbackSink`.

A query that fails is named, and the others go on. A query that has not ended after `--limit` seconds is stopped, and
named with its status; the threads of the driver are written to stderr then.
"""

import argparse
import contextlib
import faulthandler
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from benchmarks.count import session
from benchmarks.nexmark import sql
from benchmarks.nexmark.expected import difference
from benchmarks.nexmark.measure import events_folder, rows_of
from benchmarks.nexmark.queries import QUERIES, Events, NexmarkQuery

BATCHES_MIN = 40
"""Batches that a query has at least, so that it runs long enough to be killed behind a checkpoint; more are slower."""
ROWS_PER_BATCH_MAX = 200_000


def rows_per_batch(name: str, events: Path) -> int:
    """Rows of a batch of the query: so few that also a query of rare events has `BATCHES_MIN` batches."""
    counts = rows_of(events)
    return min(ROWS_PER_BATCH_MAX, max(1, sum(counts[kind] for kind in QUERIES[name].reads) // BATCHES_MIN))


def sink_of(query: NexmarkQuery, folder: Path) -> hf.Sink:
    """Return a sink into Parquet files whose names are in the order of the results, if a later result counts alone."""
    if not query.keys:
        return hf.ParquetSink(folder.as_uri())
    folder.mkdir()

    def write(rows: pa.Table, number: int) -> None:
        pq.write_table(rows, folder / f"{number:012}.parquet")

    return hf.CallbackSink(write)


def kill_a_task_manager(query: hf.Query, folder: Path) -> None:
    """SIGKILL to a TaskManager's Python worker, once the job has completed a checkpoint or published something."""
    while query.isActive and not query.totals.completed_checkpoints and not any(folder.glob("*.parquet")):
        time.sleep(0.02)
    ports = {int(each["address"].rsplit(":", 1)[1]) for each in query.taskManagers}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(found.laddr and found.laddr.port in ports for found in process.net_connections("tcp")):
                process.kill()
                return


def unended(running: hf.Query, limit_s: float) -> str:
    """Wait for the end of a query; empty if it came in time, otherwise the query is stopped and its status told."""
    if running.awaitTermination(limit_s):
        return ""
    told = (
        f"no end after {limit_s:.0f} s: {running.status['message']}; {running.totals.rows} rows in "
        f"{running.totals.batches} batches, {len(running.restarts)} restarts"
    )
    faulthandler.dump_traceback(all_threads=True)
    running.stop()
    return told


def check(spark: Any, name: str, events: Path, kill: bool, limit_s: float, in_sql: bool = False) -> str:
    """Run a query; how its results differ from the database's, empty where they don't."""
    query = QUERIES[name]
    with tempfile.TemporaryDirectory(prefix="holdfast-nexmark-") as temporary:
        folder = Path(temporary)
        job = hf.Job(
            spark,
            name=name,
            storage=(folder / "storage").as_uri(),
            parallelism=2,
            task_managers=2,
            checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
            failover=hf.FailoverConfig(start_timeout="10min"),
            max_rows_per_batch=rows_per_batch(name, events),
            max_event_time_skew="10s",
        )
        streams = Events(job, str(events))
        (sql.built(name, job, streams) if in_sql else query.build(streams)).write(sink_of(query, folder / "out"))
        running = job.start(trigger=hf.available_now(drain=True))
        if kill:
            threading.Thread(target=kill_a_task_manager, args=(running, folder / "out"), daemon=True).start()
        if told := unended(running, limit_s):
            return f"{name}: {told}"
        if kill and query.stateful and not running.restarts:
            return f"{name}: nothing was killed"
        files = sorted((folder / "out").glob("*.parquet"), key=lambda file: file.name)
        return difference(name, pq.read_table([str(file) for file in files]), events, query.keys)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", default="all", help="names such as q5,q7")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--kill", action="store_true", help="a TaskManager of each query with state")
    parser.add_argument("--sql", action="store_true", help="the queries in SQL")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each query")
    options = parser.parse_args()
    folder, spark, wrong = events_folder(options.events, 0), session("local[5]"), 0
    for name in QUERIES if options.queries == "all" else options.queries.split(","):
        begun_s = time.monotonic()
        try:
            problem = check(spark, name, folder, options.kill, options.limit, options.sql)
        except hf.HoldfastError as error:
            problem = f"{name}: {error}"
        wrong += bool(problem)
        print(problem or f"{name}: equal after {time.monotonic() - begun_s:.1f} s", flush=True)
    spark.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
