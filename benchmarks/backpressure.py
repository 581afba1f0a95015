"""Checkpoints while batches take long, on Spark: how long a requested checkpoint takes, and how much it covers.

    python -m benchmarks.backpressure --json                            # 20 batches of 10 s
    python -m benchmarks.backpressure --batch-s 2 --batches 30 --json

A function takes `--batch-s` for the rows of a batch: it changes the state of `--keys` keys, then waits as it would for
a service that is slow (`--work wait`), or computes (`--work compute`, which keeps the cores of all subtasks busy). So a
batch is under way almost always. At a random moment of each batch a checkpoint is asked for.

    batch_s                     median time from a commit to the next
    checkpoint_ms_p50, …_p99    from the request until the record is written
    covered_age_s_p50           how long before the request the last commit was, all of which the checkpoint covers
    uncovered                   checkpoints whose record is of an earlier batch than the last commit: has to be 0
    aligned_ms_p50, …_p99       the same requests, if a checkpoint had to wait for the batch in flight, as a barrier
                                waits behind the rows before it
    incremental_bytes_p50       stored for a checkpoint
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from benchmarks.count import percentile, session

WARMUP_BATCHES = 1
LOOK_S = 0.002


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-s", type=float, default=10.0)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rows", type=int, default=200_000, help="of a batch")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--work", choices=["wait", "compute"], default="wait")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    return parser.parse_args(argv)


class Slow(hf.BatchFunction):
    """Counts rows by key, and takes a fixed time for each row."""

    n = hf.ValueState(pa.int64(), default=0)

    def __init__(self, row_s: float, computes: bool) -> None:
        self._row_s = row_s
        self._computes = computes

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Any) -> None:
        ends_s = time.monotonic() + self._row_s * batch.num_rows
        self.n.update(pa.array(self.n.values().to_numpy() + np.bincount(groups, minlength=keys.num_rows)))
        while self._computes and time.monotonic() < ends_s:
            np.sort(np.random.default_rng(0).random(20_000))
        time.sleep(max(0.0, ends_s - time.monotonic()))


@dataclass
class Requests:
    """The checkpoints that were asked for: their times, and those of the commits around each."""

    checkpoint_ms: list[float] = field(default_factory=list)
    covered_age_s: list[float] = field(default_factory=list)
    aligned_ms: list[float] = field(default_factory=list)
    uncovered: int = 0

    def ask(self, query: hf.Query, committed: int, committed_s: float) -> None:
        """Ask for a checkpoint; wait for it, and for the next commit."""
        begun_s = time.monotonic()
        query.trigger_checkpoint(timeout=120)
        took_s = time.monotonic() - begun_s
        self.uncovered += query.totals.checkpoints[-1].batch < committed
        next_s = next(commits(query, committed))[1]
        self.checkpoint_ms.append(1000 * took_s)
        self.covered_age_s.append(begun_s - committed_s)
        self.aligned_ms.append(1000 * (next_s - begun_s + took_s))


def commits(query: hf.Query, after: int) -> Iterator[tuple[int, float]]:
    """Number and time of each later batch, as soon as it is committed."""
    while True:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > after:
            after = progress["batchId"]
            yield after, time.monotonic()
        elif query.awaitTermination(LOOK_S):
            raise SystemExit(f"the query has ended: {query.exception()}")


def run(options: argparse.Namespace) -> dict[str, Any]:
    spark = session("local[4]")
    with tempfile.TemporaryDirectory(prefix="holdfast-backpressure-") as name:
        query = job_of(spark, options, Path(name)).start()
        requests, times_s = watch(query, options)
        stored = [each.incremental_bytes for each in query.totals.checkpoints[1:]]
        query.stop()
    spark.stop()
    return {
        "batches": options.batches,
        "work": options.work,
        "batch_s": round(float(np.median(np.diff(times_s))), 2),
        "checkpoint_ms_p50": percentile(requests.checkpoint_ms, 50),
        "checkpoint_ms_p99": percentile(requests.checkpoint_ms, 99),
        "covered_age_s_p50": percentile(requests.covered_age_s, 50),
        "uncovered": requests.uncovered,
        "aligned_ms_p50": percentile(requests.aligned_ms, 50),
        "aligned_ms_p99": percentile(requests.aligned_ms, 99),
        "incremental_bytes_p50": percentile(stored, 50),
    }


def job_of(spark: Any, options: argparse.Namespace, folder: Path) -> hf.Job:
    parallelism = 2
    job = hf.Job(
        spark,
        name="backpressure",
        storage=f"file://{folder}/storage",
        parallelism=parallelism,
        task_managers=2,
        max_rows_per_batch=options.rows,
        checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
    )
    rows = job.read(hf.SequenceSource(1 << 40, splits=2, name="numbers"))
    keys = options.keys

    def with_key(batch: pa.RecordBatch) -> pa.RecordBatch:
        value = batch.column("value")
        k = pc.subtract(value, pc.multiply(pc.divide(value, keys), keys))
        return pa.record_batch([k], names=["k"])

    function = Slow(options.batch_s * parallelism / options.rows, options.work == "compute")
    slow = rows.map_batches(with_key, "k BIGINT").key_by("k").process(function, "k BIGINT", name="slow")
    slow.write(hf.NoopSink(name="none"))
    return job


def watch(query: hf.Query, options: argparse.Namespace) -> tuple[Requests, list[float]]:
    requests, times_s, rng = Requests(), list[float](), random.Random(options.seed)
    for number, committed_s in commits(query, -1):
        times_s.append(committed_s)
        if len(times_s) <= WARMUP_BATCHES:
            query.trigger_checkpoint(timeout=120)
            continue
        time.sleep(options.batch_s * rng.uniform(0.05, 0.8))
        requests.ask(query, number, committed_s)
        if len(requests.checkpoint_ms) == options.batches:
            return requests, times_s
    raise AssertionError("unreachable")


def main(argv: list[str]) -> None:
    print(json.dumps(run(arguments(argv))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
