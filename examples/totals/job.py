"""The job: orders of a topic, summed up by customer, into another topic and into a Delta table."""

from pyspark.sql import SparkSession

import holdfast as hf

ORDERS, TOTALS = "orders", "totals"


def totals(spark: SparkSession, servers: str, folder: str) -> hf.Job:
    job = hf.Job(
        spark,
        name="totals",
        storage=f"file://{folder}/job",
        parallelism=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
    )
    source = hf.KafkaSource(
        servers, ORDERS, value="json", schema="customer INT, cents BIGINT", metadata=[], name="orders", group="totals"
    )
    orders = job.read(source)
    per_order = orders.key_by("customer").aggregate("every", cents=hf.sum("cents"), orders=hf.count())
    per_order.write(hf.KafkaSink(servers, TOTALS, key="customer"))
    per_order.write(hf.DeltaSink(f"file://{folder}/totals", mode="upsert"))
    return job
