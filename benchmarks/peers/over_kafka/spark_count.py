"""The count in Spark SQL, with the RocksDB state store and its changelog; Spark's Kafka sink may write rows twice.

Arguments: the broker's address, a folder, and the jars of Spark's Kafka source.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

SERVERS, FOLDER, JARS = sys.argv[1:]
STATE = "spark.sql.streaming.stateStore"
settings = {
    "spark.ui.enabled": "false",
    "spark.jars": ",".join(map(str, Path(JARS).glob("*.jar"))),
    "spark.sql.shuffle.partitions": "2",
    f"{STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true",
}
spark = SparkSession.builder.master("local[4]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
messages = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS).option("subscribe", "in")
rows = messages.option("startingOffsets", "earliest").load().selectExpr("CAST(value AS STRING) AS value")
fields = rows.selectExpr("from_json(value, 'k BIGINT, at BIGINT') AS row").selectExpr("row.k AS k", "row.at AS at")
counts = fields.groupBy("k").agg({"*": "count", "at": "max"}).withColumnsRenamed({"count(1)": "n", "max(at)": "at"})
out = counts.selectExpr("CAST(k AS STRING) AS key", "to_json(struct(k, n, at)) AS value").writeStream
out = out.format("kafka").option("kafka.bootstrap.servers", SERVERS).option("topic", "out").outputMode("update")
out.option("checkpointLocation", f"{FOLDER}/checkpoint").trigger(processingTime="0 seconds").start().awaitTermination()
