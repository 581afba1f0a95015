"""Expressions in Spark's SQL: rows a second, the time of a batch above the engine's own, and the ratio to `transform`.

    python -m benchmarks.expressions --json

`rows_per_s` is by processor time, for `price * 0.908` behind `price > 500` over batches of 10,000 rows of a DOUBLE;
`rows_per_s_decimal` for a BIGINT, of which Spark makes a DECIMAL(24,3). `us_per_batch` is the time of a batch above the
time that PyArrow's functions take by themselves. `ratio_to_transform` compares batches of 10,000 rows end to end on
Spark, by the clock, as the median batch has it: the same condition and column as a `transform`, against expressions.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast as hf
from holdfast.expressions.declared import SqlExpression
from holdfast.graph.projecting import Projection, Selection

BATCH_ROWS = 10_000
BATCHES = 24
WARM = 6
"""Batches at the start of a job that do not count."""


def processor_s(fn: Callable[[], Any], repeats: int) -> float:
    """Return the least processor time of a call, in seconds, of five rounds."""
    found = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(repeats):
            fn()
        found.append((time.process_time() - began) / repeats)
    return min(found)


def in_process(kind: pa.DataType, repeats: int) -> tuple[float, float]:
    """Return the seconds of a batch by expressions, and by PyArrow's functions alone."""
    drawn = np.random.default_rng(0)
    price = pa.array(drawn.integers(0, 1_000, BATCH_ROWS)).cast(kind)
    rows = pa.record_batch({"auction": pa.array(drawn.integers(0, 1_000, BATCH_ROWS)), "price": price})
    chosen = Selection(SqlExpression("price > 500")).bound(rows.schema)
    made = Projection({"auction": None, "euros": SqlExpression("price * 0.908")}).bound(rows.schema)

    def by_arrow() -> Any:
        some = rows.filter(pc.greater(rows.column("price"), 500))
        return some.column("auction"), pc.multiply(some.column("price"), 0.908)

    return processor_s(lambda: made(chosen(rows)), repeats), processor_s(by_arrow, repeats)


def on_spark(spark: Any, declare: Callable[[hf.Stream], hf.Stream]) -> float:
    """Return the seconds of the median batch of a job."""
    with tempfile.TemporaryDirectory() as folder:
        job = hf.Job(spark, name="expressions", storage=f"file://{folder}/state", max_rows_per_batch=BATCH_ROWS)
        source = hf.SequenceSource(rows=BATCH_ROWS * BATCHES, splits=1, name="numbers")
        declare(job.read(source)).write(hf.NoopSink(name="none"))
        query = job.start(hf.available_now())
        query.awaitTermination()
        seconds = [each["durationMs"]["triggerExecution"] / 1_000 for each in query.recentProgress]
    return statistics.median(seconds[WARM:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=400, help="batches of a round without Spark")
    parser.add_argument("--json", action="store_true", help="print a JSON line")
    parser.add_argument("--without-spark", action="store_true", help="leave ratio_to_transform out")
    given = parser.parse_args()
    step_s, own_s = in_process(pa.float64(), given.repeats)
    decimal_s, _ = in_process(pa.int64(), given.repeats)
    found: dict[str, Any] = {
        "rows_per_s": round(BATCH_ROWS / step_s),
        "rows_per_s_decimal": round(BATCH_ROWS / decimal_s),
        "us_per_batch": round((step_s - own_s) * 1e6, 1),
    }
    if not given.without_spark:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        condition, column = "value % 2 = 0", "value * 0.908D as euros"
        by_spark = on_spark(spark, lambda rows: rows.transform(lambda df: df.where(condition).selectExpr(column)))
        here = on_spark(spark, lambda rows: rows.where(condition).select(column))
        spark.stop()
        found |= {"ms_per_batch": round(here * 1e3, 1), "ms_per_batch_transform": round(by_spark * 1e3, 1)}
        found["ratio_to_transform"] = round(by_spark / here, 1)
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value:,}" for name, value in found.items()))


if __name__ == "__main__":
    main()
