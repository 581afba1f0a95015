"""A running count per key, end to end: source → state → changelog checkpoints → every output row pulled and discarded.

    python -m benchmarks.count --seconds 60 --keys 1000 --emit every --interval 1s --json

Prints a JSON line; times in milliseconds. The time before the clock starts (Spark, processes, compilation of
kernels) is `warmup_s`. `--against-flink` runs the same workload on Flink beside it and prints the ratios.
`--emit changes --combine compare` runs it with and without combining in the sender, and prints the ratio.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import holdfast as hf
from benchmarks.peers import flink

WARMUP_BATCHES = 8


def keys_like_flip_325(batch: pa.RecordBatch) -> pa.RecordBatch:
    """1,000 keys in the order of FLIP-325's benchmark: `x % 500 + 500 * (x // 1000 % 2)`, with a single division."""
    x = batch.column(0).to_numpy()
    hundreds = x // 500
    return pa.record_batch([pa.array(x - 500 * (hundreds - ((hundreds >> 1) & 1)))], names=["k"])


class RandomKeys:
    """Keys below a bound, scattered by multiplication, as the Flink peer makes them."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        x = batch.column(0).to_numpy()
        return pa.record_batch([pa.array(((x * 2654435761) & 0x7FFFFFFFFFFF) % self._keys)], names=["k"])


class MemoryWatch:
    """The most that this process and all its children used together, sampled every two seconds."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(2):
            total = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)

    def end(self) -> float:
        self._ended.set()
        self._thread.join()
        return self.peak_bytes / 2**20


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--emit", choices=["every", "changes"], default="every")
    parser.add_argument("--combine", choices=["on", "off", "compare"], default="on", help="in the sender")
    parser.add_argument("--interval", default="1s", help="between checkpoints")
    parser.add_argument("--backend", choices=["hashmap"], default="hashmap")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--task-managers", type=int, default=1)
    parser.add_argument("--senders", type=int, help="that stay; 0: short Spark jobs; by default as many as fit")
    parser.add_argument("--master", default="local[4]")
    parser.add_argument("--rows-per-batch", type=int, default=5_000_000)
    parser.add_argument("--against-flink", action="store_true")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    return parser.parse_args(argv)


def session(master: str) -> Any:
    """A Spark session without a UI; PYSPARK_PYTHON is this interpreter."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(master)
        .appName("holdfast-benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def run(options: argparse.Namespace, combine: bool) -> dict[str, Any]:
    """Run the workload; the figures."""
    begun_s = time.monotonic()
    spark = session(options.master)
    memory = MemoryWatch()
    with tempfile.TemporaryDirectory(prefix="holdfast-count-") as folder:
        job = hf.Job(
            spark,
            name="count",
            storage=f"file://{folder}/storage",
            parallelism=options.parallelism,
            task_managers=options.task_managers,
            senders=options.senders,
            checkpoint=hf.CheckpointConfig(trigger=hf.every(options.interval)),
            task_manager=hf.TaskManagerConfig(memory="4GB"),
            max_rows_per_batch=options.rows_per_batch,
            max_bytes_per_batch="4GB",
            combine=combine,
        )
        keys = keys_like_flip_325 if options.keys == 1000 else RandomKeys(options.keys)
        (
            job.read(hf.SequenceSource(splits=2, name="numbers"))
            .map_batches(keys, "k BIGINT")
            .key_by("k")
            .aggregate(emit=options.emit, n=hf.count())
            .write(hf.NoopSink())
        )
        query = job.start()
        while (query.lastProgress or {"batchId": 0})["batchId"] < WARMUP_BATCHES and query.isActive:
            time.sleep(0.05)
        figures = measure(query, options, time.monotonic() - begun_s)
        query.stop()
    figures["peak_memory_mb"] = round(memory.end())
    spark.stop()
    return figures


def measure(query: hf.Query, options: argparse.Namespace, warmup_s: float) -> dict[str, Any]:
    """Watch the running query for the time asked for. Raises the error that ended it."""
    before, started_s = query.totals, time.monotonic()
    query.awaitTermination(options.seconds)
    after, seconds = query.totals, time.monotonic() - started_s
    batch_ms = after.batch_ms[len(before.batch_ms) :]
    batch_rows = after.batch_rows[len(before.batch_rows) :]
    durations_ms = [1000 * each.duration_s for each in after.checkpoints[len(before.checkpoints) :]]
    rows = after.rows - before.rows
    return {
        "rows": rows,
        "keys": options.keys,
        "emit": options.emit,
        "seconds": round(seconds, 2),
        "rows_per_s": round(rows / seconds),
        "batch": {
            "count": len(batch_ms),
            "rows_p50": percentile(batch_rows, 50),
            "p50_ms": percentile(batch_ms, 50),
            "p99_ms": percentile(batch_ms, 99),
        },
        "checkpoints": {
            "completed": len(durations_ms),
            "failed": after.failed_checkpoints - before.failed_checkpoints,
            "p50_ms": percentile(durations_ms, 50),
            "p99_ms": percentile(durations_ms, 99),
        },
        "warmup_s": round(warmup_s, 1),
    }


def percentile(values: Any, which: float) -> float:
    return round(float(np.percentile(list(values), which)), 1) if len(values) else 0.0


def main(argv: list[str]) -> None:
    options = arguments(argv)
    figures = run(options, options.combine != "off")
    print(json.dumps(figures), flush=True)
    if options.combine == "compare":
        without = run(options, False)
        ratio = round(figures["rows_per_s"] / without["rows_per_s"], 2)
        print(json.dumps({**without, "combine": False, "ratio": ratio}), flush=True)
    if options.against_flink:
        flink.compare(figures["rows_per_s"], options.keys, options.parallelism)


if __name__ == "__main__":
    main(sys.argv[1:])
