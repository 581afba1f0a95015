"""A hot key: the rate of each operator where a key has half of all rows, beside its rate with uniform keys.

    python -m benchmarks.skew --json                       # all operators, in some two minutes
    python -m benchmarks.skew --operators join --task-managers 2

Four million rows come from Parquet files, with 100,000 keys and an event time that grows; state lies in two
TaskManagers. `ratio_to_uniform`: rate with the hot key ÷ uniform rate, by operator. The right side of the join has
uniform keys in both runs, so that the rows that meet are as many.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast as hf
from benchmarks.count import session

KEYS, FILES, ROWS_OF_A_FILE = 100_000, 4, 1_000_000
WARMUP_BATCHES = 2


def write_rows(folder: Path, hot: bool) -> None:
    """Write files of rows, a row for each microsecond; with `hot`, half of them have the key 0."""
    folder.mkdir()
    drawn = np.random.default_rng(0)
    for number in range(FILES):
        keys = drawn.integers(0, KEYS, ROWS_OF_A_FILE)
        if hot:
            keys[drawn.random(ROWS_OF_A_FILE) < 0.5] = 0
        at = pa.array(np.arange(ROWS_OF_A_FILE) + number * ROWS_OF_A_FILE).cast(pa.timestamp("us", "UTC"))
        columns = {"k": keys, "at": at, "v": drawn.integers(0, 1000, ROWS_OF_A_FILE)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")


class Sums(hf.BatchFunction):
    """The sum of each key, by arrays."""

    total = hf.ValueState(pa.int64(), default=0)

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Any) -> pa.RecordBatch:
        added = np.bincount(groups, batch.column("v").to_numpy(), keys.num_rows).astype(np.int64)
        total = self.total.values().to_numpy() + added
        self.total.update(total)
        return pa.record_batch({"total": pa.array(total)})


def _joined(rows: hf.Stream, others: hf.Stream) -> hf.Stream:
    right = others.select("k", "at", "v AS w").key_by("k")
    return rows.key_by("k").join(right, within=("-1ms", "1ms"), suffix="_right", name="joined")


OPERATORS: dict[str, Callable[[hf.Stream, hf.Stream], hf.Stream]] = {
    "aggregate": lambda rows, _: rows.key_by("k").aggregate(n=hf.count(), total=hf.sum("v"), name="counts"),
    "count_distinct": lambda rows, _: rows.key_by("k").aggregate(n=hf.count_distinct("v"), name="counts"),
    "window": lambda rows, _: rows.key_by("k", hf.window("at", "1s")).aggregate(total=hf.sum("v"), name="counts"),
    "function": lambda rows, _: rows.key_by("k").process(Sums(), "total BIGINT", name="sums"),
    "join": _joined,
}


def rate(operator: str, left: Path, right: Path, options: argparse.Namespace) -> float:
    """Run an operator over all files; return its rows per second."""
    with tempfile.TemporaryDirectory(prefix="holdfast-skew-") as folder:
        job = hf.Job(
            session("local[4]"),
            name="skew",
            storage=f"file://{folder}/storage",
            parallelism=options.task_managers,
            task_managers=options.task_managers,
            checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
            task_manager=hf.TaskManagerConfig(memory="4GB"),
            max_rows_per_batch=options.rows_per_batch,
        )
        rows = job.read(hf.FileSource(f"{left}/*.parquet", name="rows")).with_watermark("at", "1s")
        others = rows
        if operator == "join":
            others = job.read(hf.FileSource(f"{right}/*.parquet", name="others")).with_watermark("at", "1s")
        OPERATORS[operator](rows, others).write(hf.NoopSink(name="out"))
        query = job.start(trigger=hf.available_now())
        query.awaitTermination()
        totals = query.totals
        return 1000 * sum(totals.batch_rows[WARMUP_BATCHES:]) / sum(totals.batch_ms[WARMUP_BATCHES:])


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", default=",".join(OPERATORS), help="names, separated by commas")
    parser.add_argument("--task-managers", type=int, default=2)
    parser.add_argument("--rows-per-batch", type=int, default=500_000)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args(argv)
    found = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-skew-rows-") as name:
        uniform, hot = Path(name, "uniform"), Path(name, "hot")
        write_rows(uniform, False)
        write_rows(hot, True)
        for operator in options.operators.split(","):
            before, skewed = (rate(operator, left, uniform, options) for left in (uniform, hot))
            found[operator] = {"uniform_rows_per_s": round(before), "rows_per_s": round(skewed)}
            found[operator]["ratio_to_uniform"] = round(skewed / before, 2)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
