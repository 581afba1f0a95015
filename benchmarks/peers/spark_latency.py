"""Latency from new data to committed state in Spark SQL, with the workload of `benchmarks.latency`. Files come singly.

    python -m benchmarks.peers.spark_latency --json

A file of `--rows` rows is moved into the folder of a streaming query that counts and adds up by key, with the RocksDB
state store and its changelog; micro-batches follow each other at once. `p50_ms` and `p99_ms` are the times until the
batch that read the file was committed.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.count import percentile, session
from benchmarks.latency import WARMUP_FILES, Files

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WAIT_S_MAX = 60.0


def run(options: argparse.Namespace) -> dict[str, Any]:
    spark = session("local[4]")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    with tempfile.TemporaryDirectory(prefix="holdfast-spark-latency-") as name:
        files = Files(Path(name), options.rows, options.keys)
        files.drop()
        rows = spark.readStream.schema("k BIGINT, x BIGINT").parquet(str(files.folder))
        counts = rows.groupBy("k").agg({"x": "sum", "*": "count"}).writeStream.outputMode("update").format("noop")
        query = counts.option("checkpointLocation", f"{name}/checkpoint").trigger(processingTime="0 seconds").start()
        await_batch(query, -1)
        committed_ms = []
        for number in range(WARMUP_FILES + options.files):
            before = newest_batch(query)
            dropped_s = files.drop()
            await_batch(query, before)
            if number >= WARMUP_FILES:
                committed_ms.append(1000 * (time.monotonic() - dropped_s))
        query.stop()
    spark.stop()
    return {
        "peer": "spark sql",
        "files": options.files,
        "rows": options.rows,
        "p50_ms": percentile(committed_ms, 50),
        "p99_ms": percentile(committed_ms, 99),
    }


def newest_batch(query: Any) -> int:
    """Number of the newest committed batch; -1 if it had no rows, or there is none."""
    progress = query.lastProgress
    return progress["batchId"] if progress is not None and progress["numInputRows"] else -1


def await_batch(query: Any, before: int) -> None:
    """Wait for a committed batch with rows after `before`."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while newest_batch(query) <= before:
        if not query.isActive or time.monotonic() > deadline_s:
            raise SystemExit(f"the query has ended, or committed no batch within {WAIT_S_MAX:.0f} s")
        time.sleep(0.001)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    print(json.dumps(run(parser.parse_args(argv))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
