"""How long a job stands still when a process of it is killed, and whether a row is lost or counted twice.

    python -m benchmarks.failover --kills 20 --json

A keyed count of a steady stream, 8 subtasks on 4 TaskManagers, checkpoints every second. In turn a TaskManager's worker
is killed (`rewind`: survivors go back in memory, the replacement restores; `restart`: all restore; `drop`: survivors
go on; `standby`: as rewind, and a standby takes the place), or the executor under it on `local-cluster` (`executor`,
`executor_standby`). A kill waits until all processes serve that served at first. All results are compared with a
recomputation in the end. `driver`, which does not run by default: the leading driver and all its executors are killed,
and a driver in waiting takes over (`benchmarks/failover_driver.py`).

    p50_s, max_s            from the kill to the first committed batch with all subtasks
    lost_rows, doubled_rows by the final counts of all keys
    lost_bound_rows         rows that the query says are lost
    survivors_max_s         from the kill to the next committed batch, whoever takes part in it
    survivor_gap_batches    batches within that time by the rate before it
    downloads_by_survivors  objects that TaskManagers other than the killed read from the store
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import holdfast as hf
from benchmarks.count import percentile
from holdfast.query import Query

KEYS = 1000
SUBTASKS, TASK_MANAGERS = 8, 4
WAIT_S_MAX = 120.0
LOCAL = f"local[{TASK_MANAGERS + 5},4]"
CLUSTER = "local-cluster[4,3,1024]"
MASTERS = {
    "rewind": LOCAL,
    "drop": LOCAL,
    "restart": LOCAL,
    "standby": LOCAL,
    "executor": CLUSTER,
    "executor_standby": CLUSTER,
}
DRIVER = "driver"
STANDBY = {"standby": 1, "executor_standby": 3}
"""Standbys by mode: an executor takes all of its TaskManagers with it."""


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = [*sorted(MASTERS), DRIVER]
    parser.add_argument("--mode", choices=modes, action="append", help=f"by default all but {DRIVER}")
    parser.add_argument("--state-mb", type=int, default=1000, help=f"in mode {DRIVER}")
    parser.add_argument("--kills", type=int, default=20, help="in each mode")
    parser.add_argument("--rows-per-s", type=int, default=50_000)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between a recovery and the next kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args(argv)
    options.mode = options.mode or list(MASTERS)
    return options


def keys(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Keys of consecutive numbers, in turn."""
    return pa.record_batch([pa.array(rows.column(0).to_numpy() % KEYS)], names=["k"])


def measure(options: argparse.Namespace, mode: str) -> dict[str, Any]:
    """Run a mode in this process, which has a Spark session of its own."""
    rng = random.Random(options.seed)
    spark = session(MASTERS[mode])
    with tempfile.TemporaryDirectory(prefix="holdfast-failover-", ignore_cleanup_errors=True) as folder:
        job = hf.Job(
            spark,
            name="failover",
            storage=(Path(folder) / "storage").as_uri(),
            parallelism=SUBTASKS,
            task_managers=TASK_MANAGERS,
            standby_task_managers=STANDBY.get(mode, 0),
            on_loss=mode if mode in ("drop", "restart") else "rewind",
            checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
            failover=hf.FailoverConfig(restarts_max=1000, losses_max=1000, drop_timeout="5min"),
        )
        numbers = job.read(hf.SequenceSource(rows_per_second=options.rows_per_s, splits=4, name="numbers"))
        numbers.map_batches(keys, "k BIGINT").key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
        query = job.start(hf.processing_time("0s"))
        until(lambda: query.totals.completed_checkpoints > 2)
        until(lambda: query.status["standbyTaskManagers"] == STANDBY.get(mode, 0))
        whole = len(query.view().processes)
        kills = [_kill(query, mode, rng, options.pause, whole) for _ in range(options.kills)]
        query.trigger_checkpoint(WAIT_S_MAX)
        lost_bound = sum(each.rows for each in query.losses)
        query.stop()
        lost, doubled = _compared(job)
    taken_s = [each["seconds"] for each in kills]
    return {
        "p50_s": round(percentile(taken_s, 50), 2),
        "max_s": round(max(taken_s), 2),
        "lost_rows": lost,
        "doubled_rows": doubled,
        "lost_bound_rows": lost_bound,
        "survivors_max_s": round(max(each["gap_s"] for each in kills), 2),
        "survivor_gap_batches": round(max(each["gap_batches"] for each in kills), 1),
        "downloads_by_survivors": round(sum(each["downloads"] for each in kills)),
        "kills": len(kills),
    }


def _kill(query: Query, mode: str, rng: random.Random, pause_s: float, whole: int) -> dict[str, float]:
    """Kill a process of the `whole` number, and wait until all subtasks commit again."""
    until(lambda: len(query.view().processes) >= whole)
    before, began_s = query.totals.batches, time.monotonic()
    time.sleep(pause_s)
    rate = (query.totals.batches - before) / (time.monotonic() - began_s)
    holders = [each for each in query.view().processes if each.role == "TaskManager" and not each.is_standby]
    numbers = {each.number for each in holders}
    route = rng.choice([each for each in query.taskManagers if each["task_manager"] in numbers])
    victim = listening_at(int(route["address"].rpartition(":")[2]))
    if mode.startswith("executor"):
        victim = next(parent for parent in victim.parents() if "ExecutorBackend" in " ".join(parent.cmdline()))
    before, killed_s = _recoveries(query), time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    survivor_s = _first_commit(query, killed_s) if mode == "drop" else 0.0
    until(lambda: _recoveries(query) > before)
    committed = query.totals.batches
    until(lambda: query.totals.batches > committed)
    seconds = time.monotonic() - killed_s
    read = {(each.number, each.incarnation): each.metrics.get("recoveryObjects", 0.0) for each in holders}
    read.pop((route["task_manager"], route["incarnation"]))
    survivors = [each for each in query.view().processes if (each.number, each.incarnation) in read]
    downloads = sum(
        max(0.0, each.metrics.get("recoveryObjects", 0.0) - read[each.number, each.incarnation]) for each in survivors
    )
    gap_s = survivor_s if mode == "drop" else seconds
    return {"seconds": seconds, "gap_s": gap_s, "gap_batches": rate * gap_s, "downloads": downloads}


def _recoveries(query: Query) -> int:
    return len(query.restarts) + len(query.losses)


def _first_commit(query: Query, killed_s: float) -> float:
    """Seconds from the kill to the next committed batch, whoever takes part in it."""
    committed = query.totals.batches
    until(lambda: query.totals.batches > committed)
    return time.monotonic() - killed_s


def _compared(job: hf.Job) -> tuple[int, int]:
    """Rows lost and counted twice, by the counts of all keys: as consecutive numbers, keys differ by 1 at most."""
    counted = hf.read_state(job.storage, "counts").column("n.count").to_numpy()
    (offsets,) = _offsets(job.storage)
    expected = np.zeros(KEYS, np.int64)
    for split, stop in offsets.items():
        numbers = np.arange(int(split), int(split) + len(offsets) * int(stop), len(offsets)) % KEYS
        expected += np.bincount(numbers, minlength=KEYS)
    by_key = np.zeros(KEYS, np.int64)
    by_key[hf.read_state(job.storage, "counts").column("k").to_numpy()] = counted
    return int(np.maximum(expected - by_key, 0).sum()), int(np.maximum(by_key - expected, 0).sum())


def _offsets(storage: str) -> list[dict[str, Any]]:
    """The positions of the sources in the newest checkpoint."""
    from holdfast.stored_state.opened import open_checkpoint, open_storage

    return [dict(each) for each in open_checkpoint(open_storage(storage)).record.offsets.values()]


def listening_at(port: int) -> psutil.Process:
    for process in psutil.Process().children(recursive=True):
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections):
            return process
    raise SystemExit(f"no process listens on port {port}")


def session(master: str) -> Any:
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    builder = SparkSession.builder.master(master).appName("holdfast-failover")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.python.daemon.module": "holdfast.spark.daemon",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def until(condition: Callable[[], bool], seconds_max: float = WAIT_S_MAX) -> None:
    deadline_s = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit("the job does not go on")
        time.sleep(0.002)


def main(argv: list[str]) -> None:
    """Each mode runs in a process of its own, since a process has a single Spark context at a time."""
    options = arguments(argv)
    found = {}
    for mode in options.mode:
        if mode == DRIVER:
            from benchmarks.failover_driver import measure_driver

            found[mode] = measure_driver(options.state_mb, options.kills, options.pause)
        elif len(options.mode) == 1:
            found[mode] = measure(options, mode)
        else:
            found[mode] = _apart(argv, mode)
    print(json.dumps(found), flush=True)


def _apart(argv: list[str], mode: str) -> dict[str, Any]:
    import subprocess

    command = [sys.executable, "-m", "benchmarks.failover", *argv, "--mode", mode]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])[mode]
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
