"""A job on Spark's own Kafka reader: a program of its own, because a session gets jars only when it is made.

    python stream_kafka_script.py <servers> <topic> <folder> <folder of jars>

It reads the topic's messages, counts each value, and publishes Parquet files in the folder `out`. A start after a kill
goes on from there.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf


def main(servers: str, topic: str, folder: str, jars: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[3]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", ",".join(str(each) for each in Path(jars).glob("*.jar")))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    messages = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 500).load()
    values = messages.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS value")
    job = hf.Job(
        spark,
        name="kafka",
        storage=f"file://{folder}/storage",
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
    )
    stream = job.read(hf.StreamingDataFrameSource(values, name="messages", spool_bytes_max=1))
    stream.key_by("value").aggregate("every", n=hf.count()).write(hf.ParquetSink(f"file://{folder}/out"))
    job.start(hf.available_now()).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
