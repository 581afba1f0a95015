"""The driver process: sums up orders until it is killed.

python -m examples.totals.driver <host:port> <folder>
"""

import os
import sys

from pyspark.sql import SparkSession

import holdfast as hf
from examples.totals.job import totals


def main(servers: str, folder: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[4]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    totals(spark, servers, folder).start(trigger=hf.processing_time("50ms")).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
