"""The program that is killed: a Spark driver that runs jobs, in sequence, until their sources are exhausted.

    python kills_driver.py <file of JSON>      {"master": "local[4]", "jobs": [{"shape": {…}, "folder": "…"}, …],
                                                "settings": {…}}         of every `Job`, beside those of its shape

Prints a line for each step. Ends with 0 when all is done, and with 4 when another driver has taken over.
"""

import json
import logging
import os
import sys
from pathlib import Path

from kills_ends import FENCED, end_with_parent
from kills_pipelines import Shape, build
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import Fenced, QueryFailed


def session(master: str) -> SparkSession:
    """A session with nothing but the settings that a driver of these tests needs."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> int:
    end_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    told = json.loads(Path(sys.argv[1]).read_text())
    spark = session(told["master"])
    print("session", flush=True)
    for number, job in enumerate(told["jobs"]):
        shape, folder = Shape(**job["shape"]), Path(job["folder"])
        try:
            query = build(shape, folder, spark, **told["settings"]).start(trigger=hf.available_now())
            print(f"started {number}", flush=True)
            query.awaitTermination()
        except QueryFailed as error:
            print(f"failed {number}: {error}", flush=True)
            return FENCED if isinstance(error.__cause__, Fenced) else 1
        print(f"done {number}, restarts {len(query.restarts)}, checkpoints {len(query.totals.checkpoints)}", flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
