"""Latency from new data to committed state and staged output, and until it shows in a Delta table. Files come singly.

    python -m benchmarks.latency --json

A file of `--rows` rows is moved into the source's folder; `p50_ms` and `p99_ms` are the times until the batch that
read it was committed (state changed, output staged), `published_p50_ms` until a checkpoint had completed and the
upsert was visible in the Delta table. Checkpoints are taken every `--interval`. With `--s3-latency-ms` the job's
storage lies in a stand-in for S3 whose requests take so much longer; with `--table-on-s3` the Delta table does too.
`--in-folder logs`: logs lie in a folder instead; `--in-folder storage`: all but the materialized tables does.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from benchmarks.count import percentile, session
from benchmarks.s3_counted import counted_s3
from holdfast.sinks.base import PublishContext

WARMUP_FILES = 5


@dataclass
class WatchedDelta(hf.DeltaSink):
    """Tells when a group has been published. Its copies in tasks only stage."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.published = threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "published"}

    def publish(self, number: int, committables: Sequence[bytes], context: PublishContext) -> None:
        super().publish(number, committables, context)
        if committables:
            self.published.set()


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--checkpoint-interval", "--interval", dest="interval", default="500ms")
    parser.add_argument("--senders", type=int, help="that stay; 0: short Spark jobs; by default as many as fit")
    parser.add_argument("--source", choices=["files", "stream"], default="files", help="stream: by Spark")
    parser.add_argument("--s3-latency-ms", type=float, help="storage in a stand-in for S3 with that latency")
    parser.add_argument("--table-on-s3", action="store_true", help="the Delta table as well")
    parser.add_argument("--in-folder", choices=["logs", "storage"], help="objects that are not in the stand-in")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    return parser.parse_args(argv)


class Files:
    """Drops files into the source's folder: written elsewhere first, then moved."""

    def __init__(self, folder: Path, rows: int, keys: int) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self._waiting = folder / "waiting.parquet"
        self._rows = rows
        self._keys = keys
        self.count = 0

    def drop(self) -> float:
        """Write a further file; return the time at which it was there."""
        numbers = np.arange(self.count * self._rows, (self.count + 1) * self._rows)
        pq.write_table(pa.table({"k": numbers % self._keys, "x": numbers}), self._waiting)
        self._waiting.rename(self.folder / f"{self.count:06}.parquet")
        self.count += 1
        return time.monotonic()


def run(options: argparse.Namespace) -> dict[str, Any]:
    spark = session("local[4]")
    slow = nullcontext() if options.s3_latency_ms is None else counted_s3(options.s3_latency_ms)
    with tempfile.TemporaryDirectory(prefix="holdfast-latency-") as name, slow as s3:
        result = measure(spark, Path(name), None if s3 is None else s3.options, options)
    spark.stop()
    return result


def measure(spark: Any, folder: Path, s3: Mapping[str, str] | None, options: argparse.Namespace) -> dict[str, Any]:
    """Run the job with its storage in a folder, or in the bucket of the stand-in with these options."""
    files = Files(folder, options.rows, options.keys)
    files.drop()
    table_on_s3 = s3 is not None and options.table_on_s3
    sink = WatchedDelta(
        "s3://bucket/table" if table_on_s3 else f"file://{folder}/table",
        mode="upsert",
        storage_options=dict(s3) if s3 is not None and table_on_s3 else {},
    )
    job = hf.Job(
        spark,
        name="latency",
        **storages(folder, s3, options.in_folder),
        parallelism=2,
        senders=options.senders,
        checkpoint=hf.CheckpointConfig(trigger=hf.every(options.interval)),
    )
    counts = job.read(source(spark, files.folder, options)).key_by("k")
    counts.aggregate(n=hf.count(), total=hf.sum("x")).write(sink)
    query = job.start()
    committed_ms, published_ms = watch(query, files, sink, options)
    query.stop()
    return {
        "source": options.source,
        "files": options.files,
        "rows": options.rows,
        "s3_latency_ms": options.s3_latency_ms,
        "in_folder": options.in_folder,
        "p50_ms": percentile(committed_ms, 50),
        "p99_ms": percentile(committed_ms, 99),
        "published_p50_ms": percentile(published_ms, 50),
        "published_p99_ms": percentile(published_ms, 99),
    }


def storages(folder: Path, s3: Mapping[str, str] | None, in_folder: str | None) -> dict[str, Any]:
    """Return the storages of the job's objects."""
    quick = f"file://{folder}/storage"
    if s3 is None:
        return {"storage": quick}
    if in_folder == "storage":
        options = {f"shared.{name}": value for name, value in s3.items()}
        return {"storage": quick, "shared_storages": ["s3://bucket/tables"], "storage_options": options}
    logs = {"changelog_storage": quick} if in_folder == "logs" else {}
    return {"storage": "s3://bucket/storage", "storage_options": dict(s3), **logs}


def source(spark: Any, folder: Path, options: argparse.Namespace) -> hf.FileSource | hf.StreamingDataFrameSource:
    """The files, as Holdfast reads them, or as Spark does."""
    if options.source == "files":
        return hf.FileSource(f"{folder}/*.parquet")
    return hf.StreamingDataFrameSource(spark.readStream.schema("k BIGINT, x BIGINT").parquet(str(folder)))


def watch(
    query: hf.Query, files: Files, sink: WatchedDelta, options: argparse.Namespace
) -> tuple[list[float], list[float]]:
    committed_ms: list[float] = []
    published_ms: list[float] = []
    wait_for_rows(query, files.count * options.rows)
    sink.published.wait(60)
    for number in range(WARMUP_FILES + options.files):
        sink.published.clear()
        dropped_s = files.drop()
        wait_for_rows(query, files.count * options.rows)
        committed_s = time.monotonic()
        if not sink.published.wait(60):
            raise SystemExit(f"file {number} was not published within 60 s: {query.status}")
        if number >= WARMUP_FILES:
            committed_ms.append(1000 * (committed_s - dropped_s))
            published_ms.append(1000 * (time.monotonic() - dropped_s))
    return committed_ms, published_ms


def wait_for_rows(query: hf.Query, rows: int) -> None:
    while query.totals.rows < rows:
        if query.awaitTermination(0.001):
            raise SystemExit("the query has ended")


def main(argv: list[str]) -> None:
    print(json.dumps(run(arguments(argv))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
