"""A job whose JobMaster runs in the cluster, behind a real Spark Connect server, in a process of its own.

    python cluster_driver_script.py sc://127.0.0.1:<port> <folder>

A second handle, made by `attach`, stops the job. Writes a JSON file with the findings.
"""

import json
import sys
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf

ROWS, KEYS = 2_000, 4


def counting(spark, folder, sink):
    """Weighed sums by key, with a table of the user's session in a transform."""
    job = hf.Job(
        spark,
        name="counts",
        storage=f"file://{folder}/storage",
        driver="cluster",
        senders=1,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
    )
    weights = spark.range(KEYS).select((F.col("id")).alias("k"), (F.col("id") + 1).alias("w"))
    numbers = job.read(hf.SequenceSource(ROWS, splits=2, name="numbers"))
    weighed = numbers.transform(
        lambda df: df.withColumn("k", F.col("value") % KEYS).join(F.broadcast(weights), "k").select("k", "w")
    )
    weighed.key_by("k").aggregate(w=hf.sum("w"), name="sums").write(sink)
    return job


def refused(call):
    try:
        call()
    except hf.HoldfastError as error:
        return str(error)
    return "it was not refused"


def main(url, folder):
    spark = SparkSession.builder.remote(url).create()
    storage = f"file://{folder}/storage"
    found = {"memory": refused(counting(spark, folder, hf.MemorySink(name="out")).start)}
    ticks = counting(spark, folder, hf.NoopSink(name="out"))
    ticks.read(spark.readStream.format("rate").load()).write(hf.NoopSink(name="ticks"))
    found["streaming"] = refused(ticks.start)
    found["not yet"] = refused(lambda: hf.attach(storage, spark=spark))
    query = counting(spark, folder, hf.ParquetSink(f"file://{folder}/out", name="out")).start()
    other = hf.attach(storage, spark=spark)
    found["same"] = (other.id, other.runId) == (query.id, query.runId) and other.status["message"]
    other.processAllAvailable()
    found["state"] = other.read_state("sums", key={"k": 1}).num_rows
    found["no operator"] = refused(lambda: other.read_state("none", key={"k": 1}))
    other.stop()
    found["ended"] = query.awaitTermination(60) and not query.isActive and query.totals.rows
    found["afterwards"] = refused(lambda: hf.attach(storage, spark=spark))
    rows = ds.dataset([str(path) for path in Path(folder, "out").rglob("*.parquet")]).to_table().to_pylist()
    found["sums"] = {row["k"]: max(each["w"] for each in rows if each["k"] == row["k"]) for row in rows}
    Path(folder, "cluster_driver.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
