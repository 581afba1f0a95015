"""A first program: a session with Spark's own settings, in an environment that says nothing about Python.

    python first_day_script.py <master> <folder>

Prints "RAISED" and the error if the job is refused.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf


def main(master, folder):
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )
    job = hf.Job(spark, name="first", storage=folder.as_uri(), task_managers=1, parallelism=1)
    job.read(hf.SequenceSource(10, splits=1)).key_by("value").aggregate(n=hf.count()).write(hf.NoopSink())
    try:
        query = job.start()
    except hf.JobRefused as error:
        print("RAISED", error)
        return
    query.processAllAvailable()
    began_s = time.monotonic()
    while time.monotonic() < began_s + 2:  # longer than Spark waits before it draws a bar
        query.awaitTermination(0.1)
    query.stop()
    print("rows", query.totals.rows)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
