"""A user's function alone, without Spark: a keyed count as a `ProcessFunction` and as a `BatchFunction`.

    python -m benchmarks.functions --kind process --keys 100000 --rows 1000000 --bad-records dead_letter --json

Keys are drawn uniformly at random from `--keys`, all of which have state before the clock starts. Timed for each batch
of 100,000 rows: begin, the function and its output as Arrow, the net changes, commit. `rows_per_s` is by the thread's
CPU time, as the median batch has it, so that other load on the machine counts less; `rows_per_s_elapsed` by the clock.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from holdfast.clock import SystemClock
from holdfast.functions.operator import BatchContext, Operator, OperatorInput
from holdfast.functions.process.declared import ProcessSpec
from holdfast.taskmanager.process_memory import GarbageCollection

BATCH_ROWS = 100_000
INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.int64()), ("n", pa.int64())])


class Count(hf.ProcessFunction):
    n = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        n = self.n.value() + 1
        self.n.update(n)
        yield {"k": row.k, "n": n}


class BatchCount(hf.BatchFunction):
    n = hf.ValueState(pa.int64(), default=0)

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Any) -> pa.RecordBatch:
        n = self.n.values().to_numpy() + np.bincount(groups, minlength=keys.num_rows)
        self.n.update(n)
        return pa.record_batch([keys["k"], pa.array(n)], names=["k", "n"])


def take(
    operator: Operator, batch: int, rows: pa.RecordBatch | None, context: BatchContext | None = None
) -> tuple[float, float]:
    """Run a batch, without rows where they are None; return the seconds of CPU and of the clock."""
    cpu_s, clock_s = time.thread_time(), time.perf_counter()
    for table in operator.tables.values():
        table.begin(batch)
    context = context or BatchContext(batch, batch * 1_000_000, "count", 0)
    operator.process([] if rows is None else [(0, rows)], context)
    for table in operator.tables.values():
        table.changes()
        table.commit()
    return time.thread_time() - cpu_s, time.perf_counter() - clock_s


def measure(kind: str, keys: int, rows: int, bad_records: Any) -> dict[str, Any]:
    function: Any = Count() if kind == "process" else BatchCount()
    operator = ProcessSpec("count", OperatorInput(INPUT, ("k",)), function, OUTPUT, bad_records).create(0, 128)
    drawn = np.random.default_rng(0)

    def batch_of(numbers: Any) -> pa.RecordBatch:
        return pa.record_batch([pa.array(numbers), pa.array(np.arange(len(numbers)))], schema=INPUT)

    warm = [batch_of(np.arange(first, min(first + BATCH_ROWS, keys))) for first in range(0, keys, BATCH_ROWS)]
    for number, batch in enumerate([*warm, warm[0]]):
        take(operator, number, batch)
    count = max(1, rows // BATCH_ROWS)
    with GarbageCollection(SystemClock()):
        seconds = [
            take(operator, len(warm) + 1 + number, batch_of(drawn.integers(0, keys, BATCH_ROWS)))
            for number in range(count)
        ]
    cpu_s, clock_s = (statistics.median(values) for values in zip(*seconds, strict=True))
    return {
        "kind": kind,
        "keys": keys,
        "rows": count * BATCH_ROWS,
        "bad_records": bad_records,
        "rows_per_s": round(BATCH_ROWS / cpu_s),
        "rows_per_s_elapsed": round(BATCH_ROWS / clock_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("process", "batch"), default="process")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--bad-records", choices=("fail", "dead_letter"), default="fail")
    parser.add_argument("--json", action="store_true", help="one JSON line instead of a table")
    arguments = parser.parse_args()
    result = measure(arguments.kind, arguments.keys, arguments.rows, arguments.bad_records)
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:20} {value:,}" if isinstance(value, int) else f"{name:20} {value}")


if __name__ == "__main__":
    main()
