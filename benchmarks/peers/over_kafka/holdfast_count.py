"""The count in Holdfast, exactly once from end to end. Arguments: the broker's address and a folder."""

import sys

from pyspark.sql import SparkSession

import holdfast as hf

SERVERS, FOLDER = sys.argv[1:]
spark = SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
job = hf.Job(
    spark,
    name="counts",
    storage=f"file://{FOLDER}/storage",
    parallelism=2,
    checkpoint=hf.CheckpointConfig(trigger=hf.every("100ms")),
)
rows = job.read(
    hf.KafkaSource(SERVERS, "in", value="json", schema="k BIGINT, at BIGINT", metadata=[], group="counts", name="in")
)
counts = rows.key_by("k").aggregate("every", n=hf.count(), at=hf.max("at"), name="counts")
counts.write(hf.KafkaSink(SERVERS, "out", key="k", name="out"))
job.start(trigger=hf.processing_time("0s")).awaitTermination()
