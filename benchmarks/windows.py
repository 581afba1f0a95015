"""Windows alone, without Spark: the cost of a row on its way to the state and in it, and the bytes of a key and window.

    python -m benchmarks.windows --kind sliding --keys 1000 --rows 2000000 --json
    python -m benchmarks.windows --open 1,100,10000 --json

First: counts and sums by key and window of rows in order of time, 10,000 a second of event time, half of them of a hot
key that changes; the watermark follows, so windows close all along. `send_ns` and `process_ns`: for each row, of the
combining sender and of the operator, output and commit included. Then, with `--open`, a million keys and windows spread
over so many open windows: `ns_per_row` of rows that come to them, and `state_bytes` of each, the index included.
"""

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as pa

import holdfast as hf
from holdfast.functions.operator import BatchContext, EventTime, Operator, OperatorInput
from holdfast.functions.windows.aggregate import WindowedAggregates, WindowSpec
from holdfast.functions.windows.session import SessionSpec

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
SECOND = 1_000_000
BATCH_ROWS = 200_000
ROWS_PER_S = 10_000
DELAY_S = 2
KINDS = {
    "tumbling": hf.window("at", "10s"),
    "sliding": hf.window("at", "10s", "2s"),
    "session": hf.session_window("at", "10s"),
}


def spec_of(kind: str, **aggregates: Any) -> WindowedAggregates:
    declared = OperatorInput(SCHEMA, ("k",), EventTime(("at",), "at"), KINDS[kind], 1)
    return (SessionSpec if kind == "session" else WindowSpec)("windows", declared, aggregates)


def batch_of(keys: Any, times: Any) -> pa.RecordBatch:
    stamps = pa.array(times).cast(pa.timestamp("us")).cast(SCHEMA.field("at").type)
    return pa.RecordBatch.from_arrays([pa.array(keys), stamps, pa.array(keys)], schema=SCHEMA)


def step(
    spec: WindowedAggregates,
    operator: Operator,
    number: int,
    rows: pa.RecordBatch,
    marks: tuple[Any, Any],
    combine: bool,
) -> tuple[float, float, int]:
    """Run a batch: return the seconds of the sender and of the operator, and the rows that came out."""
    begun_s = time.thread_time()
    sender = spec.combiner(combine, marks[1])
    assert sender is not None
    parts = [*sender.take(rows), *sender.finish()]
    sent_s = time.thread_time()
    for table in operator.tables.values():
        table.begin(number)
    result = operator.process(parts, BatchContext(number, 0, "windows", 0, *marks))
    for table in operator.tables.values():
        table.commit()
        table.release(number)
    out = sum(batch.num_rows for batch in result.output)
    return sent_s - begun_s, time.thread_time() - sent_s, out


def measure(kind: str, keys: int, rows: int, combine: bool) -> dict[str, Any]:
    spec = spec_of(kind, n=hf.count(), total=hf.sum("v"))
    operator, drawn, closed = spec.create(0, 128), np.random.default_rng(0), None
    spent: list[tuple[float, float, int]] = []
    for number in range(1, max(3, rows // BATCH_ROWS) + 1):
        place = np.arange((number - 1) * BATCH_ROWS, number * BATCH_ROWS)
        hot = drawn.random(BATCH_ROWS) < 0.5
        batch = batch_of(
            np.where(hot, place // 500 % keys, drawn.integers(0, keys, BATCH_ROWS)), place * SECOND // ROWS_PER_S
        )
        watermark = int(place[-1]) * SECOND // ROWS_PER_S - DELAY_S * SECOND
        spent.append(step(spec, operator, number, batch, (watermark, closed), combine))
        closed = watermark
    sent, processed, out = zip(*spent[1:], strict=True)
    return {
        "kind": kind,
        "keys": keys,
        "combine": combine,
        "send_ns": round(statistics.median(sent) / BATCH_ROWS * 1e9),
        "process_ns": round(statistics.median(processed) / BATCH_ROWS * 1e9),
        "rows_out_per_row": round(sum(out) / len(out) / BATCH_ROWS, 2),
    }


def measure_open(windows: int, entries: int = 1_000_000) -> dict[str, Any]:
    spec = spec_of("tumbling", n=hf.count())
    operator, drawn = spec.create(0, 128), np.random.default_rng(0)

    def rows(some: Any) -> pa.RecordBatch:
        return batch_of(some // windows, some % windows * 10 * SECOND)

    for number, start in enumerate(range(0, entries, BATCH_ROWS), 1):
        step(spec, operator, number, rows(np.arange(start, min(entries, start + BATCH_ROWS))), (None, None), False)
    spent = [
        step(spec, operator, 1000 + number, rows(drawn.integers(0, entries, BATCH_ROWS)), (None, None), False)[1]
        for number in range(5)
    ]
    table = operator.tables["state"]
    return {
        "open_windows": windows,
        "ns_per_row": round(statistics.median(spent) / BATCH_ROWS * 1e9),
        "state_bytes": round((table.memory_bytes + operator.memory_bytes) / len(table), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default="sliding")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--no-combine", action="store_true")
    parser.add_argument("--open", help="numbers of open windows, such as 1,100,10000")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.open:
        found = [measure_open(int(windows)) for windows in options.open.split(",")]
    else:
        found = [measure(options.kind, options.keys, options.rows, not options.no_combine)]
    for each in found:
        print(json.dumps(each) if options.json else ", ".join(f"{name} {value}" for name, value in each.items()))


if __name__ == "__main__":
    main()
