"""How long batches pause while a job gets another number of TaskManagers, and whether each row counts once.

    python -m benchmarks.rescale --json
    python -m benchmarks.rescale --state-mb 200 --rounds 3

Four subtasks hold the state, values of 1,000 incompressible bytes, in two TaskManagers; rows come at a steady rate,
with uniform keys. In each round the job gets four TaskManagers, then two again. For each size of the state:

    pause_ms_p50, pause_ms_max   longest gap between two committed batches, from the call to a second after its end;
                                 median and longest of all rescales
    gap_ms_before                the longest gap within some seconds before, without a rescale
    whole_s                      from the call to the end, median
    bytes_moved, bytes_state     bytes read for gained subtasks, mean; stored bytes of all state
    moved_ratio                  the highest ratio of bytes moved to the half of bytes_state, which has to move
    lost_rows, doubled_rows      by key, of a comparison of the last checkpoint with its positions
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import holdfast as hf
from benchmarks.failover import session, until
from benchmarks.restore_sizes import ROWS_PER_BATCH, VALUE_BYTES, Keep, RandomValues
from holdfast.query import Query
from holdfast.stored_state.opened import open_checkpoint, open_storage

SUBTASKS = 4
SMALL, LARGE = 2, 4
SPLITS = 4
ROWS_PER_S = 2000
QUIET_S = 5.0
AFTER_S = 1.0
LOOK_S = 0.1
WHOLE_S_MAX = 600.0
MASTER = f"local[{LARGE + 4},4]"


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, action="append", help="by default 200 and 2000")
    parser.add_argument("--rounds", type=int, default=2, help="changes up and down, for each size")
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="rocksdb")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args(argv)
    options.state_mb = options.state_mb or [200, 2000]
    return options


def declared(spark: Any, state_mb: int, backend: str, folder: Path) -> hf.Job:
    keys = state_mb * 1_000_000 // VALUE_BYTES
    job = hf.Job(
        spark,
        name="rescaled",
        storage=(folder / "storage").as_uri(),
        parallelism=SUBTASKS,
        task_managers=SMALL,
        senders=2,
        state=hf.RocksDBState() if backend == "rocksdb" else hf.HashMapState(),
        task_manager=hf.TaskManagerConfig(memory="3GB", local_dir=str(folder / "local")),
        max_rows_per_batch=ROWS_PER_BATCH,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
    )
    load = job.read(hf.SequenceSource(keys, splits=SPLITS, name="load"))
    steady = job.read(hf.SequenceSource(rows_per_second=ROWS_PER_S, splits=SPLITS, name="steady"))
    rows = load.union(steady).map_batches(RandomValues(keys), "k BIGINT, v BINARY").key_by("k")
    rows.process(Keep(), "k BIGINT", name="keep").write(hf.NoopSink(name="kept"))
    rows.aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="counted"))
    return job


def longest_gap_ms(query: Query, since_s: float) -> float:
    """The longest time between the ends of two batches after a moment, the last one before it included."""
    ends = [each.ended_s for each in query.view().batches]
    ends = [each for each, following in zip(ends, [*ends[1:], since_s + 1], strict=True) if following >= since_s]
    return max(np.diff(ends), default=0.0) * 1000


def rescaled(query: Query, task_managers: int) -> dict[str, float]:
    """Give the query so many TaskManagers."""
    called_s, began_s = time.time(), time.monotonic()
    rescale, gaps, whole_s = query.rescale(task_managers=task_managers), [0.0], 0.0
    until_s = began_s + WHOLE_S_MAX
    while time.monotonic() < until_s:  # all the time, since the view has only the last batches
        gaps.append(longest_gap_ms(query, called_s))
        if rescale.is_done and not whole_s:
            whole_s = time.monotonic() - began_s
            until_s = began_s + whole_s + AFTER_S
        time.sleep(LOOK_S)
    rescale.wait(0)
    return {"pause_ms": max(gaps), "whole_s": whole_s, "bytes_moved": rescale.bytes_moved}


def compared(storage: str, keys: int) -> tuple[int, int]:
    """Rows that are missing in the counts of the newest checkpoint, and rows that were counted too often."""
    expected = np.zeros(keys, np.int64)
    for positions in open_checkpoint(open_storage(storage)).record.offsets.values():
        for split, position in positions.items():
            numbers = int(split) + np.arange(int(position or 0)) * SPLITS
            expected += np.bincount(numbers % keys, minlength=keys)
    counted = hf.read_state(storage, "counts")
    found = np.zeros(keys, np.int64)
    found[counted.column("k").to_numpy()] = counted.column("n.count").to_numpy()
    return int(np.maximum(expected - found, 0).sum()), int(np.maximum(found - expected, 0).sum())


def measure(spark: Any, state_mb: int, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    job = declared(spark, state_mb, options.backend, folder)
    keys = state_mb * 1_000_000 // VALUE_BYTES
    query = job.start(hf.processing_time("0s"))
    try:
        until(lambda: query.totals.rows >= keys, 3600.0)
        query.trigger_checkpoint(600)
        time.sleep(QUIET_S)
        quiet_ms = longest_gap_ms(query, time.time() - QUIET_S)
        runs = [rescaled(query, count) for _ in range(options.rounds) for count in (LARGE, SMALL)]
        query.trigger_checkpoint(600)
        state_bytes = [each for each in query.checkpoints if each.full_bytes][-1].full_bytes
        assert not query.restarts, query.restarts
    finally:
        query.stop()
    lost, doubled = compared(job.storage, keys)
    pauses, moved = [each["pause_ms"] for each in runs], [each["bytes_moved"] for each in runs]
    return {
        "state_mb": state_mb,
        "pause_ms_p50": round(float(np.median(pauses))),
        "pause_ms_max": round(max(pauses)),
        "gap_ms_before": round(quiet_ms),
        "whole_s": round(float(np.median([each["whole_s"] for each in runs])), 2),
        "lost_rows": lost,
        "doubled_rows": doubled,
        "bytes_moved": round(float(np.mean(moved))),
        "bytes_state": state_bytes,
        "moved_ratio": round(max(moved) / (state_bytes / 2), 2),
    }


def main(argv: list[str]) -> None:
    options = arguments(argv)
    spark, found = session(MASTER), []
    for state_mb in options.state_mb:
        with tempfile.TemporaryDirectory(prefix="holdfast-rescale-", ignore_cleanup_errors=True) as folder:
            found.append(measure(spark, state_mb, options, Path(folder)))
        if not options.json:
            print(found[-1], flush=True)
    print(json.dumps({"rescale": found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
