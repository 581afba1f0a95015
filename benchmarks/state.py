"""The state table alone, without Spark: a keyed running count in batches of 100,000 rows.

    python -m benchmarks.state --backend hashmap --keys 1000000 --key-type int64 --rows 20000000 --json

Keys are drawn uniformly at random from `--keys`, all of which are in the table before the clock starts. Timed for
each batch: begin, look-up (with what undo needs), the count, the net changes as Arrow, commit. Not timed: making
the input, compiling kernels (`warmup_s` covers both, and filling the table).
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state.compiled import kernel
from holdfast.state.table import StateTable

BATCH_ROWS = 100_000
DISTINCT_BATCHES = 50
"""Input is made once and used in turn, so that it does not fill the memory."""
STEPS = ("lookup", "count", "changes", "commit")


@kernel
def running_count(slots: Any, counts: Any, valid: Any, present: Any, out: Any) -> None:
    """One more for each row's key, and the count so far as the row's output."""
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        counts[slot] += 1
        valid[slot] = True
        present[slot] = True
        out[i] = counts[slot]


def key_batches(keys: int, key_type: str, numbers: Iterator[npt.NDArray[np.int64]]) -> Iterator[pa.RecordBatch]:
    """Batches of keys; a string key has 16 bytes."""
    names = pa.array([f"{i:016d}" for i in range(keys)]) if key_type == "string" else None
    for number in numbers:
        column = pa.array(number)
        yield pa.record_batch({"k": column if names is None else names.take(column)})


def process(table: StateTable, batch: int, rows: pa.RecordBatch) -> list[float]:
    """One batch; returns the seconds of each of `STEPS`."""
    clock = [time.perf_counter()]
    table.begin(batch)
    slots = table.lookup(rows)
    clock.append(time.perf_counter())
    column = table.column("n")
    running_count(slots, column.values, column.valid, table.present, np.empty(len(slots), np.int64))
    clock.append(time.perf_counter())
    table.changes()
    clock.append(time.perf_counter())
    table.commit()
    clock.append(time.perf_counter())
    return np.diff(clock).tolist()


def measure(keys: int, key_type: str, rows: int) -> dict[str, object]:
    """Run the benchmark; the result is what `--json` prints."""
    started = time.perf_counter()
    arrow_type = pa.int64() if key_type == "int64" else pa.string()
    table = StateTable(pa.schema([("k", arrow_type)]), pa.schema([("n", pa.int64())]), 128)
    every_key = (np.arange(start, min(start + BATCH_ROWS, keys)) for start in range(0, keys, BATCH_ROWS))
    for number, batch in enumerate(key_batches(keys, key_type, every_key)):
        process(table, number, batch)
    random = np.random.default_rng(keys)
    count = -(-rows // BATCH_ROWS)
    drawn = (random.integers(0, keys, BATCH_ROWS) for _ in range(min(count, DISTINCT_BATCHES)))
    batches = list(key_batches(keys, key_type, drawn))
    process(table, 0, batches[0])
    warmed = time.perf_counter()
    steps = np.array([process(table, number, batches[number % len(batches)]) for number in range(count)])
    seconds = float(steps.sum())
    return {
        "backend": "hashmap",
        "keys": keys,
        "key_type": key_type,
        "rows": count * BATCH_ROWS,
        "rows_per_s": round(count * BATCH_ROWS / seconds),
        "ns_per_row": round(seconds / (count * BATCH_ROWS) * 1e9, 2),
        "ns_per_row_p50": {
            step: round(statistics.median(times) / BATCH_ROWS * 1e9, 2)
            for step, times in zip(STEPS, steps.T, strict=True)
        },
        "bytes_per_entry": round(table.memory_bytes / len(table), 1),
        "commit_ms_p50": round(statistics.median(steps[:, STEPS.index("commit")]) * 1000, 3),
        "warmup_s": round(warmed - started, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.state", description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=["hashmap"], default="hashmap")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--key-type", choices=["int64", "string"], default="int64")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--json", action="store_true", help="one JSON line instead of a line for each figure")
    arguments = parser.parse_args()
    result = measure(arguments.keys, arguments.key_type, arguments.rows)
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:16} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
