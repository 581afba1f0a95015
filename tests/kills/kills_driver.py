"""The program that is killed: a Spark driver that runs jobs, in sequence, until their sources are exhausted.

    python kills_driver.py <file of JSON>      {"master": "local[4]", "jobs": [{"shape": {…}, "folder": "…"}, …],
                                                "settings": {…},         of every `Job`, beside those of its shape
                                                "standby": true,         if the driver waits for the end of another
                                                "stays": true}           if it goes on when the sources are exhausted

Prints a line for each step. Ends with 0 when all is done, and with 4 when another driver has taken over.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from kills_ends import FENCED, end_with_parent
from kills_pipelines import Shape, build
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import Fenced, QueryFailed

BETWEEN_BATCHES = "200ms"
"""Time from one batch to the next of a driver that stays."""
TAKEOVER_AFTER_S = 3.0
"""The silence after which a driver takes over that has heard two heartbeats."""


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


def wait_to_lead(query: hf.StandbyQuery) -> None:
    """Say when the driver is ready to take over, with the record that its TaskManagers have, and when it leads."""
    while query.isStandby and not is_ready(query.status["standby"]):
        query.await_lead(0.02)
    print("ready, with record", query.status["standby"]["followed"], flush=True)
    query.await_lead()
    print("leads", flush=True)


def is_ready(standby: dict[str, Any]) -> bool:
    return standby["takesOverAfterSeconds"] <= TAKEOVER_AFTER_S and standby["followed"] is not None


def main() -> int:
    end_with_parent()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    told = json.loads(Path(sys.argv[1]).read_text())
    spark = session(told["master"])
    print("session", flush=True)
    for number, job in enumerate(told["jobs"]):
        shape, folder = Shape(**job["shape"]), Path(job["folder"])
        try:
            trigger = hf.processing_time(BETWEEN_BATCHES) if told.get("stays") else hf.available_now()
            standby = told.get("standby", False)
            query = build(shape, folder, spark, **told["settings"]).start(trigger=trigger, standby=standby)
            print(f"started {number}", flush=True)
            if isinstance(query, hf.StandbyQuery):
                wait_to_lead(query)
            query.awaitTermination()
        except QueryFailed as error:
            print(f"failed {number}: {error}", flush=True)
            return FENCED if isinstance(error.__cause__, Fenced) else 1
        print(f"done {number}, restarts {len(query.restarts)}, checkpoints {len(query.totals.checkpoints)}", flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
