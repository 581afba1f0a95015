"""How long a job stands still when a TaskManager with much state is killed, with and without local copies.

    python -m benchmarks.restore_sizes --state-mb 200 --state-mb 2000 --json
    python -m benchmarks.restore_sizes --standby-state --json

A TaskManager with four subtasks holds all the state, values of 1,000 incompressible bytes in RocksDB. After it was
killed the replacement restores all of it, from a folder on this machine's disk, or from local copies on the same disk.

    seconds         from the kill to the first committed batch after it
    restore_s       part of it: the replacement restores its subtasks
    from_store_mb, from_local_mb   bytes read by the replacement

With `--standby-state` a standby follows, and takes the place. `standby` has for each size the median and the longest
time from a kill to the first committed batch, the part of it in which the standby catches up, and the most that it read
for that; `owner_rate_ratio` compares the rows that the owner processes in a second
of its processor time with and without a follower, since a follower has a machine of its own.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import holdfast as hf
from benchmarks.failover import LOCAL, listening_at, session, until
from holdfast.query import Query

VALUE_BYTES = 1000
ROWS_PER_S = 2000
ROWS_PER_BATCH = 50_000
SUBTASKS = 4
RATE_S = 15.0
"""Seconds for which the owner's rate is measured."""


class Keep(hf.BatchFunction):
    """Keeps the newest value of each key."""

    value = hf.ValueState(pa.binary())

    def process(self, batch: pa.RecordBatch, keys: Any, groups: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        newest = np.zeros(keys.num_rows, np.int64)
        newest[groups] = np.arange(batch.num_rows)
        self.value.update(batch.column("v").take(pa.array(newest)))
        yield from ()


class RandomValues:
    """Step that gives each number, as a key below the number of keys, a random value."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def bytes(self, count: int) -> bytes:
        return np.random.default_rng().bytes(count)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        numbers = rows.column(0).to_numpy()
        raw = self.bytes(len(numbers) * VALUE_BYTES)
        offsets = pa.array(np.arange(len(numbers) + 1, dtype=np.int32) * VALUE_BYTES)
        values = pa.Array.from_buffers(pa.binary(), len(numbers), [None, offsets.buffers()[1], pa.py_buffer(raw)])
        return pa.record_batch([pa.array(numbers % self._keys), values], names=["k", "v"])


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, action="append", help="by default 200; with a standby 200 and 2000")
    parser.add_argument("--standby-state", action="store_true", help="with a standby that follows, and takes over")
    parser.add_argument("--copies", choices=["with", "without", "both"], default="both")
    parser.add_argument("--kills", type=int, help="for each size; by default 1, with a standby 5")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args(argv)
    options.state_mb = options.state_mb or ([200, 2000] if options.standby_state else [200])
    options.kills = options.kills or (5 if options.standby_state else 1)
    return options


def started(
    spark: Any,
    state_mb: int,
    copies: bool,
    folder: Path,
    values: Callable[[int], RandomValues] = RandomValues,
    **settings: Any,
) -> Query:
    """A query that has loaded the state, while some rows go on coming. `settings` of the job replace those here."""
    keys = state_mb * 1_000_000 // VALUE_BYTES
    common: dict[str, Any] = {
        "storage": (folder / "storage").as_uri(),
        "parallelism": SUBTASKS,
        "task_managers": 1,
        "state": hf.RocksDBState(),
        "task_manager": hf.TaskManagerConfig(
            memory="3GB", local_dir=str(folder / "local"), local_recovery=copies, local_recovery_max="20GB"
        ),
        "max_rows_per_batch": ROWS_PER_BATCH,
        "checkpoint": hf.CheckpointConfig(trigger=hf.every("1s")),
        "failover": hf.FailoverConfig(restarts_max=1000, losses_max=1000),
    }
    job = hf.Job(spark, name="restore", **(common | settings))
    load = job.read(hf.SequenceSource(keys, splits=4, name="load"))
    steady = job.read(hf.SequenceSource(rows_per_second=ROWS_PER_S, splits=4, name="steady"))
    rows = load.union(steady).map_batches(values(keys), "k BIGINT, v BINARY")
    rows.key_by("k").process(Keep(), "k BIGINT", name="keep").write(hf.NoopSink())
    query = job.start(hf.processing_time("0s"))
    until(lambda: query.totals.rows >= keys, 3600.0)
    query.trigger_checkpoint(600)
    return query


def measure(spark: Any, state_mb: int, copies: bool, kills: int, folder: Path) -> list[dict[str, float]]:
    """Load the state, then kill its TaskManager again and again while some rows come."""
    query = started(spark, state_mb, copies, folder)
    try:
        return [_kill(query) for _ in range(kills)]
    finally:
        query.stop()


def measure_standby(spark: Any, state_mb: int, kills: int, folder: Path) -> tuple[dict[str, float], float]:
    """The times of kills with a standby that follows, and the owner's rows in a second of its processor time."""
    query = started(spark, state_mb, False, folder, standby_task_managers=1, standby_state=True)
    try:
        until(lambda: follows(query), 600.0)
        rate = _rate(query)
        runs = []
        for _ in range(kills):
            until(lambda: follows(query), 600.0)
            runs.append(_kill(query))
        times = [each["seconds"] for each in runs]
        found = {
            "state_mb": state_mb,
            "p50_s": float(np.median(times)),
            "max_s": max(times),
            "restore_p50_s": float(np.median([each["restore_s"] for each in runs])),
            "read_max_mb": max(each["from_store_mb"] + each["from_local_mb"] for each in runs),
        }
        return found, rate
    finally:
        query.stop()


def rate_alone(spark: Any, state_mb: int, folder: Path) -> float:
    """The owner's rows in a second of its processor time, without a follower."""
    query = started(spark, state_mb, False, folder)
    try:
        return _rate(query)
    finally:
        query.stop()


def follows(query: Query) -> bool:
    """True if the standby holds the state of all places, and is behind by a checkpoint at most."""
    found = [each.follower for each in query.view().processes if each.follower is not None]
    return any(each.followed == len(each.places) and each.checkpoints_behind <= 1 for each in found)


def owner_of(query: Query) -> psutil.Process:
    [holder] = [each for each in query.view().processes if each.role == "TaskManager" and not each.is_standby]
    return listening_at(int(holder.address.rpartition(":")[2]))


def _rate(query: Query) -> float:
    owner, rows = owner_of(query), query.totals.rows
    before = owner.cpu_times()
    time.sleep(RATE_S)
    after = owner.cpu_times()
    return (query.totals.rows - rows) / (after.user + after.system - before.user - before.system)


def _kill(query: Query) -> dict[str, float]:
    completed = query.totals.completed_checkpoints
    until(lambda: query.totals.completed_checkpoints > completed + 2, 600.0)
    victim, before, killed_s = owner_of(query), len(query.restarts), time.monotonic()
    victim.send_signal(signal.SIGKILL)
    until(lambda: len(query.restarts) > before, 600.0)
    committed = query.totals.batches
    until(lambda: query.totals.batches > committed, 600.0)
    seconds = time.monotonic() - killed_s
    [holder] = [each for each in query.view().processes if each.role == "TaskManager" and not each.is_standby]
    return {
        "seconds": round(seconds, 2),
        "restore_s": round(holder.metrics["recoveryMs"] / 1000, 2),
        "from_store_mb": round(holder.metrics["recoveryBytesFromStore"] / 1e6),
        "from_local_mb": round(holder.metrics["recoveryBytesFromLocal"] / 1e6),
    }


def standby_state(spark: Any, options: argparse.Namespace) -> None:
    found, rates = [], {}
    for state_mb in options.state_mb:
        with tempfile.TemporaryDirectory(prefix="holdfast-standby-", ignore_cleanup_errors=True) as folder:
            measured, rates[state_mb] = measure_standby(spark, state_mb, options.kills, Path(folder))
        found.append(measured)
        if not options.json:
            print(measured, flush=True)
    smallest = min(options.state_mb)
    with tempfile.TemporaryDirectory(prefix="holdfast-standby-", ignore_cleanup_errors=True) as folder:
        alone = rate_alone(spark, smallest, Path(folder))
    print(json.dumps({"standby": found, "owner_rate_ratio": round(rates[smallest] / alone, 3)}), flush=True)


def main(argv: list[str]) -> None:
    options = arguments(argv)
    spark = session(LOCAL)
    if options.standby_state:
        standby_state(spark, options)
        return
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for state_mb in options.state_mb:
        for which in ("without", "with") if options.copies == "both" else (options.copies,):
            with tempfile.TemporaryDirectory(prefix="holdfast-restore-", ignore_cleanup_errors=True) as folder:
                runs = measure(spark, state_mb, which == "with", options.kills, Path(folder))
            found.setdefault(f"{state_mb} MB", {})[f"{which} local copies"] = runs
            if not options.json:
                print(state_mb, which, runs, flush=True)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
