"""Rows per second of a streaming DataFrame as a source, beside the same files read by Holdfast and by Spark alone.

    python -m benchmarks.streaming --json

Parquet files with two 64-bit columns are read to their end, into a keyed count. `stream_rows_per_s` takes the way
over Spark's query and the spool, `files_rows_per_s` is `FileSource`, `spark_rows_per_s` is Spark's query into the sink
`noop`. Each is timed from its start to its end, without the start of Spark.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

import holdfast as hf
from benchmarks.count import session

SCHEMA = "k BIGINT, x BIGINT"


def written(folder: Path, files: int, rows: int, keys: int) -> Path:
    """Write the files."""
    for number in range(files):
        values = np.arange(number * rows, (number + 1) * rows)
        pq.write_table(pa.table({"k": values * 7919 % keys, "x": values}), folder / f"{number:06}.parquet")
    return folder


def counted(spark: Any, source: hf.FileSource | hf.StreamingDataFrameSource) -> float:
    """Seconds of a keyed count over all that the source has."""
    with tempfile.TemporaryDirectory() as storage:
        job = hf.Job(spark, name="streaming", storage=Path(storage).as_uri(), parallelism=2)
        job.read(source).key_by("k").aggregate(n=hf.count(), total=hf.sum("x")).write(hf.NoopSink())
        began_s = time.monotonic()
        query = job.start(hf.available_now())
        query.awaitTermination()
        return time.monotonic() - began_s


def alone(rows: Any) -> float:
    """Seconds of Spark's query into a sink that takes nothing."""
    with tempfile.TemporaryDirectory() as checkpoint:
        began_s = time.monotonic()
        writing = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writing.trigger(availableNow=True).start().awaitTermination()
        return time.monotonic() - began_s


def main(
    files: Annotated[int, typer.Option(help="Files to read.")] = 20,
    rows: Annotated[int, typer.Option(help="Rows of a file.")] = 500_000,
    keys: Annotated[int, typer.Option(help="Distinct keys.")] = 1_000,
    per_epoch: Annotated[int, typer.Option(help="Files of an epoch.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON line.")] = False,
) -> None:
    """Measure all three, the second time each, so that imports and compilation are not among the seconds."""
    spark = session("local[4]")
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), files, rows, keys)
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per_epoch).parquet(folder)
        took_s: dict[str, float] = {}
        for _ in range(2):
            took_s = {
                "stream": counted(spark, hf.StreamingDataFrameSource(stream)),
                "files": counted(spark, hf.FileSource(f"{folder}/*.parquet")),
                "spark": alone(stream),
            }
    spark.stop()
    total = files * rows
    found = {"rows": total, **{f"{name}_rows_per_s": round(total / seconds) for name, seconds in took_s.items()}}
    print(json.dumps(found) if as_json else "\n".join(f"{name}: {value:,}" for name, value in found.items()))


if __name__ == "__main__":
    typer.run(main)
