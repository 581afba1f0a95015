"""A first job that is started twice, and looked at: a count by key into Parquet files.

    python places_script.py <folder>

Prints the rows of both starts, and where compiled kernels were kept.
"""

import sys
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.kernels import places

ROWS = 1_000


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    job = hf.Job(
        spark, name="placed", storage=(folder / "state").as_uri(), task_managers=1, parallelism=1,
        task_manager=hf.TaskManagerConfig(local_recovery=True), state=hf.RocksDBState(),
    )  # fmt: skip
    rows = job.read(hf.SequenceSource(ROWS, splits=1))
    counts = rows.map_batches(by_ten, "k BIGINT").key_by("k").aggregate(name="counts", n=hf.count())
    counts.write(hf.ParquetSink((folder / "out").as_uri(), name="out"))
    for _ in range(2):
        job.start(hf.available_now()).awaitTermination()
        found = [row for file in folder.glob("out/**/*.parquet") for row in pq.read_table(file).to_pylist()]
        print("rows", sum(row["n"] for row in found), "keys", len({row["k"] for row in found}))
    spark.stop()
    print("kernels", next(str(each) for each in places.folders() if places.can_be_written(each)))


def by_ten(rows: "pa.RecordBatch") -> "pa.RecordBatch":
    return pa.record_batch([pc.bit_wise_and(rows.column(0), 7)], names=["k"])


if __name__ == "__main__":
    import pyarrow as pa
    import pyarrow.compute as pc

    main(Path(sys.argv[1]))
