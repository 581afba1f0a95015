"""Uses of a job on Spark Connect beyond the plain case, in a process of its own.

    python connect_uses_script.py sc://127.0.0.1:<port> <folder>

Writes a JSON file with what was found.
"""

import json
import sys
import types
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf

MANUAL = hf.CheckpointConfig(trigger=hf.manual())
PADDING = bytes(range(256)) * (3 << 12)
"""Three megabytes in a function, which do not travel with each task."""

travels = types.ModuleType("travels_with_the_job")
exec("def tenfold(value):\n    return value * 10\n", travels.__dict__)
sys.modules[travels.__name__] = travels


def keyed(rows):
    assert len(PADDING) == 3 << 20
    values = rows.column(0).to_pylist()
    return pa.record_batch([[v % 4 for v in values], [travels.tenfold(v) for v in values]], names=["k", "v"])


def summing(spark, folder, name, rows, sink, **settings):
    """A job of sums by key, from a DataFrame of Spark's and a table of the user's session."""
    settings = {"storage": f"file://{folder}/{name}", "task_managers": 1, "senders": 0, "checkpoint": MANUAL} | settings
    job = hf.Job(spark, name=name, ship_modules=[travels], **settings)
    weights = spark.range(4).selectExpr("id AS k", "id + 1 AS w")
    source = hf.DataFrameSource(
        lambda session, start, end: session.range(start["at"], end["at"]).selectExpr("id AS value"),
        lambda session: {"at": rows},
        "value BIGINT",
        initial_offset={"at": 0},
        name="ids",
    )
    stream = job.read(source).map_batches(keyed, "k BIGINT, v BIGINT")
    weighed = stream.transform(lambda df: df.join(F.broadcast(weights), "k").selectExpr("k", "v * w AS v"))
    weighed.key_by("k").aggregate(total=hf.sum("v"), name="sums").write(sink)
    return job


def expected(rows):
    return {k: sum(v * 10 * (k + 1) for v in range(rows) if v % 4 == k) for k in range(4)}


def newest(sink):
    return {row["k"]: row["total"] for row in sink.rows()}


def streamed(spark, folder, files):
    """The sums by key of a streaming DataFrame over so many files of ten rows; a later start reads only new ones."""
    Path(folder, "in").mkdir(exist_ok=True)
    for number in range(files):
        values = pa.array(range(number * 10, number * 10 + 10), pa.int64())
        pq.write_table(pa.table({"v": values}), Path(folder, "in", f"{number}.parquet"))
    job, sink = hf.Job(spark, name="streaming", storage=f"file://{folder}/streaming"), hf.MemorySink(name="out")
    spark.range(2).selectExpr("id AS k").createOrReplaceTempView("keys")
    rows = spark.readStream.schema("v BIGINT").option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    rows.createOrReplaceTempView("stream")
    keyed = spark.sql("SELECT k, v FROM stream JOIN keys ON v % 2 = k")
    job.read(hf.StreamingDataFrameSource(keyed, name="files")).key_by("k").aggregate(total=hf.sum("v")).write(sink)
    job.start(hf.available_now()).awaitTermination(120)
    return newest(sink)


def main(url, folder):
    spark = SparkSession.builder.remote(url).create()
    found = {}
    one, other = hf.MemorySink(name="out"), hf.MemorySink(name="out")
    first = summing(spark, folder, "one", 1_000, one).start(hf.processing_time(), ui_port=0)
    second = summing(spark, folder, "other", 500, other).start(hf.processing_time())
    for query in (first, second):
        query.processAllAvailable()
        query.trigger_checkpoint(timeout=60)
    found["two at once"] = newest(one) == expected(1_000) and newest(other) == expected(500)
    with urllib.request.urlopen(f"{first.uiUrl}/api/v1/job") as answer:
        found["page"] = json.load(answer)["name"]
    first.savepoint(f"file://{folder}/savepoint")
    first.stop()
    second.stop()
    third = hf.MemorySink(name="out")
    job = summing(spark, folder, "third", 2_000, third)
    job.start(hf.available_now(), start_from=f"file://{folder}/savepoint").awaitTermination(120)
    found["from a savepoint"] = newest(third) == expected(2_000)
    condition, euros = F.col("value") % 3 == 1, (F.col("value") * 0.908).cast("double").alias("euros")
    sizes, chosen = F.transform(F.array("value"), lambda each: each + 1)[0], hf.MemorySink(name="out")
    columns = hf.Job(spark, name="columns", storage=f"file://{folder}/columns", checkpoint=MANUAL)
    numbers = columns.read(hf.SequenceSource(10, name="numbers")).select(value="bigint(value)")
    numbers.where(condition).select(euros, size=sizes).write(chosen)
    columns.start(hf.available_now()).awaitTermination(120)
    of_server = spark.range(10).withColumnRenamed("id", "value").where(condition).select(euros, sizes.alias("size"))
    found["columns"] = sorted(chosen.rows(), key=lambda row: row["size"]) == [
        row.asDict() for row in of_server.orderBy("size").collect()
    ]
    raises = hf.Job(spark, name="raises", storage=f"file://{folder}/raises", checkpoint=MANUAL)
    numbers = raises.read(hf.SequenceSource(10, name="numbers"))
    numbers.transform(lambda df: df.selectExpr("10 / (value - 7) AS v")).write(hf.NoopSink())
    try:
        raises.start(hf.available_now()).awaitTermination(120)
    except hf.QueryFailed as error:
        found["raises"] = str(error)
    found["streaming"] = [streamed(spark, folder, files) for files in (2, 4)]
    Path(folder, "uses.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
