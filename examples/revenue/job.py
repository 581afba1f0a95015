"""The job: revenue and number of orders per customer, from the changes of a table of orders."""

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import holdfast as hf

TABLE = "public.orders"
SLOT = "revenue"
PUBLICATION = "orders"


def signed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Count a row that came as 1, and a row that went as -1: sums then follow updates and deletes."""
    came = pc.is_in(rows.column("_change_type"), pa.array(["insert", "update_postimage"]))
    sign = pc.if_else(came, pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))
    cents = pc.multiply(rows.column("cents"), sign)
    return pa.record_batch({"customer": rows.column("customer"), "cents": cents, "orders": sign})


def revenue(spark: SparkSession, dsn: str, folder: str) -> hf.Job:
    cdc = hf.PostgresCdcSource(dsn, SLOT, PUBLICATION, [TABLE], name="shop")
    job = hf.Job(
        spark,
        name="revenue",
        storage=f"file://{folder}/job",
        parallelism=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("200ms")),
    )
    changes = job.read(cdc.table(TABLE)).map_batches(signed, "customer INT, cents BIGINT, orders BIGINT")
    per_customer = changes.key_by("customer").aggregate(cents=hf.sum("cents"), orders=hf.sum("orders"))
    per_customer.write(hf.DeltaSink(f"file://{folder}/revenue", mode="upsert"))
    return job
