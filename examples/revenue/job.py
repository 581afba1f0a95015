"""The job: revenue and number of orders per customer, from the changes of a table of orders."""

from pyspark.sql import SparkSession

import holdfast as hf

TABLE = "public.orders"
SLOT = "revenue"
PUBLICATION = "orders"


def revenue(spark: SparkSession, dsn: str, folder: str) -> hf.Job:
    cdc = hf.PostgresCdcSource(dsn, SLOT, PUBLICATION, [TABLE], name="shop")
    job = hf.Job(
        spark,
        name="revenue",
        storage=f"file://{folder}/job",
        parallelism=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
    )
    orders = job.read(cdc.table(TABLE))
    per_customer = orders.key_by("customer").aggregate(revenue=hf.sum("cents"), orders=hf.count())
    per_customer.write(hf.DeltaSink(f"file://{folder}/revenue", mode="upsert"))
    return job
