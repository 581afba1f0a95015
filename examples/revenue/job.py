"""The job: name, revenue and number of orders of each customer, from the changes of two tables."""

from pyspark.sql import SparkSession

import holdfast as hf

ORDERS, CUSTOMERS = "public.orders", "public.customers"
SLOT = "revenue"
PUBLICATION = "shop"


def revenue(spark: SparkSession, dsn: str, folder: str) -> hf.Job:
    cdc = hf.PostgresCdcSource(dsn, SLOT, PUBLICATION, [ORDERS, CUSTOMERS], name="shop")
    job = hf.Job(
        spark,
        name="revenue",
        storage=f"file://{folder}/job",
        parallelism=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
    )
    orders, customers = job.read(cdc.table(ORDERS)), job.read(cdc.table(CUSTOMERS)).select("id AS customer", "name")
    revenues = orders.key_by("customer").aggregate(
        revenue=hf.sum("cents"), orders=hf.count(), changes=True, name="revenues"
    )
    named = revenues.key_by("customer").join(customers.key_by("customer"), name="named")
    named.write(hf.DeltaSink(f"file://{folder}/revenue", mode="upsert", keys=["customer"]))
    return job
