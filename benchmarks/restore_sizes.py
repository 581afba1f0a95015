"""How long a job stands still when a TaskManager with much state is killed, with and without local copies.

    python -m benchmarks.restore_sizes --state-mb 200 --state-mb 2000 --json

A TaskManager with four subtasks holds all the state, values of 1,000 incompressible bytes in RocksDB. After it was
killed the replacement restores all of it, from a folder on this machine's disk, or from local copies on the same disk.

    seconds         from the kill to the first committed batch after it
    restore_s       part of it: the replacement restores its subtasks
    from_store_mb, from_local_mb   bytes read by the replacement
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from benchmarks.failover import LOCAL, listening_at, session, until
from holdfast.query import Query

VALUE_BYTES = 1000
ROWS_PER_S = 2000
ROWS_PER_BATCH = 50_000
SUBTASKS = 4


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

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        numbers = rows.column(0).to_numpy()
        raw = np.random.default_rng().bytes(len(numbers) * VALUE_BYTES)
        offsets = pa.array(np.arange(len(numbers) + 1, dtype=np.int32) * VALUE_BYTES)
        values = pa.Array.from_buffers(pa.binary(), len(numbers), [None, offsets.buffers()[1], pa.py_buffer(raw)])
        return pa.record_batch([pa.array(numbers % self._keys), values], names=["k", "v"])


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, action="append", help="by default 200")
    parser.add_argument("--copies", choices=["with", "without", "both"], default="both")
    parser.add_argument("--kills", type=int, default=1, help="for each size, with and without copies")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args(argv)
    options.state_mb = options.state_mb or [200]
    return options


def measure(spark: Any, state_mb: int, copies: bool, kills: int, folder: Path) -> list[dict[str, float]]:
    """Load the state, then kill its TaskManager again and again while some rows come."""
    keys = state_mb * 1_000_000 // VALUE_BYTES
    job = hf.Job(
        spark,
        name="restore",
        storage=(folder / "storage").as_uri(),
        parallelism=SUBTASKS,
        task_managers=1,
        state=hf.RocksDBState(),
        task_manager=hf.TaskManagerConfig(
            memory="3GB", local_dir=str(folder / "local"), local_recovery=copies, local_recovery_max="20GB"
        ),
        max_rows_per_batch=ROWS_PER_BATCH,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
        failover=hf.FailoverConfig(restarts_max=1000, losses_max=1000),
    )
    load = job.read(hf.SequenceSource(keys, splits=4, name="load"))
    steady = job.read(hf.SequenceSource(rows_per_second=ROWS_PER_S, splits=4, name="steady"))
    rows = load.union(steady).map_batches(RandomValues(keys), "k BIGINT, v BINARY")
    rows.key_by("k").process(Keep(), "k BIGINT", name="keep").write(hf.NoopSink())
    query = job.start(hf.processing_time("0s"))
    try:
        until(lambda: query.totals.rows >= keys, 3600.0)
        query.trigger_checkpoint(600)
        return [_kill(query) for _ in range(kills)]
    finally:
        query.stop()


def _kill(query: Query) -> dict[str, float]:
    completed = query.totals.completed_checkpoints
    until(lambda: query.totals.completed_checkpoints > completed + 2, 600.0)
    [route] = query.taskManagers
    victim, before, killed_s = (
        listening_at(int(route["address"].rpartition(":")[2])),
        len(query.restarts),
        time.monotonic(),
    )
    victim.send_signal(signal.SIGKILL)
    until(lambda: len(query.restarts) > before, 600.0)
    committed = query.totals.batches
    until(lambda: query.totals.batches > committed, 600.0)
    seconds = time.monotonic() - killed_s
    [holder] = [each for each in query.view().processes if each.role == "TaskManager"]
    return {
        "seconds": round(seconds, 2),
        "restore_s": round(holder.metrics["recoveryMs"] / 1000, 2),
        "from_store_mb": round(holder.metrics["recoveryBytesFromStore"] / 1e6),
        "from_local_mb": round(holder.metrics["recoveryBytesFromLocal"] / 1e6),
    }


def main(argv: list[str]) -> None:
    options = arguments(argv)
    spark = session(LOCAL)
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
