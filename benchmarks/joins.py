"""The state of joins alone, without Spark: the bytes of a kept row.

    python -m benchmarks.joins --keys 100000,1000000 --json

A million rows, half of them of each side, with three columns of 8 bytes, meet within ten seconds by an int64 key. All
are kept. `bytes_per_row` has everything that is in memory: rows, the heads of keys with several rows of a side, and the
index by time.
"""

import argparse
import json
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.joins.bounds import LEFT, RIGHT, SIDES, Within
from holdfast.functions.joins.declared import JoinSpec
from holdfast.functions.operator import BatchContext, EventTime, OperatorInput

KIND = pa.timestamp("us", "UTC")
SCHEMAS = {
    LEFT: pa.schema([("user", pa.int64()), ("shown", KIND), ("ad", pa.int64())]),
    RIGHT: pa.schema([("who", pa.int64()), ("at", KIND), ("link", pa.int64())]),
}
SECOND, SPAN_US, BATCHES = 1_000_000, 600_000_000, 10


def spec_of(how: Any) -> JoinSpec:
    inputs = tuple(
        OperatorInput(schema, (schema.names[0],), EventTime((schema.names[1],), schema.names[1]))
        for schema in SCHEMAS.values()
    )
    bounds = Within(("shown", "at"), -10 * SECOND, 10 * SECOND)
    return JoinSpec("joined", inputs, bounds, how, None, "drop", "fail")  # type: ignore[arg-type]


def batch_of(side: int, rows: int, keys: int, drawn: np.random.Generator) -> pa.RecordBatch:
    columns = [drawn.integers(0, keys, rows), drawn.integers(0, SPAN_US, rows), drawn.integers(0, 1 << 40, rows)]
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, SCHEMAS[side], strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[side])


def measure(keys: int, rows: int, how: Any = "inner") -> dict[str, Any]:
    operator, drawn = spec_of(how).create(0, 128), np.random.default_rng(0)
    for number in range(1, BATCHES + 1):
        for table in operator.tables.values():
            table.begin(number)
        inputs = [(side, batch_of(side, rows // BATCHES // 2, keys, drawn)) for side in (LEFT, RIGHT)]
        operator.process(inputs, BatchContext(number, 0, "joined", 0))
        for table in operator.tables.values():
            table.commit()
    kept = sum(len(operator.tables[name]) for name in SIDES)
    held = sum(table.memory_bytes for table in operator.tables.values()) + operator.memory_bytes
    heads = operator.tables["heads"]
    found = {"keys": keys, "rows": kept, "bytes_per_row": round(held / kept, 1), "heads": len(heads)}
    return {**found, "bytes_per_head": round(heads.memory_bytes / len(heads), 1) if len(heads) else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", default="100000,1000000", help="numbers of keys that rows are drawn from")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--how", default="inner")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for keys in options.keys.split(","):
        found = measure(int(keys), options.rows, options.how)
        print(json.dumps(found) if options.json else ", ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
