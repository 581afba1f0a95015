"""The job: per carrier and origin, the number of flights and cancellations, and sum, mean and worst arrival delay."""

from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf


def delays(spark: SparkSession, folder: Path, rows_per_batch: int) -> hf.Job:
    """Reads `flights.csv` in the folder, and keeps the Delta table `delays` there up to date."""
    job = hf.Job(
        spark,
        name="delays",
        storage=(folder / "storage").as_uri(),
        parallelism=2,
        task_managers=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("500ms")),
        max_rows_per_batch=rows_per_batch,
    )
    flights = job.read(hf.FileSource(str(folder / "flights.csv"), name="flights", null_values=("NA",)))
    (
        flights.transform(lambda df: df.selectExpr("*", "int(dep_time is null) as cancelled"))
        .key_by("carrier", "origin")
        .aggregate(
            flights=hf.count(),
            cancelled=hf.sum("cancelled"),
            delay_sum=hf.sum("arr_delay"),
            delay_mean=hf.mean("arr_delay"),
            delay_worst=hf.max("arr_delay"),
            name="delays",
        )
        .write(hf.DeltaSink((folder / "delays").as_uri(), mode="upsert", name="table"))
    )
    return job
