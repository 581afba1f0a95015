"""Program of the tests on cluster managers: a job of some minutes that logs its course, and compares its table with a
direct count. steady_script.py FOLDER FILES TASK_MANAGERS STANDBYS SENDERS

A file FOLDER/end ends its input. Senders "none" are short Spark jobs.
"""

import logging
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

import holdfast as hf

ROWS_A_FILE, KEYS = 200, 50
PAUSE_S = 0.2
log = logging.getLogger("steady")


def write_input(folder: Path, files: int) -> None:
    """Write the files that are missing: the program may be started again."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        path = folder / f"{number:05}.parquet"
        if not path.exists():
            values = range(number * ROWS_A_FILE, (number + 1) * ROWS_A_FILE)
            rows = pa.table({"k": [value % KEYS for value in values], "v": list(values)})
            pq.write_table(rows, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(PAUSE_S)
    return batch


def log_course(query: hf.Query) -> None:
    """Log the number of rows, and each new line of the status, until the query ends."""
    rows, said = -1, ""
    while query.isActive:
        if query.totals.rows != rows:
            rows = query.totals.rows
            log.info("rows %d", rows)
        if str(query.status["message"]) != said:
            said = str(query.status["message"])
            log.info("status: %s", said)
        time.sleep(0.1)


def result(folder: Path, files: int) -> str:
    """Compare the table with a direct count."""
    table = QueryBuilder().register("out", DeltaTable(str(folder / "out"))).execute("select * from out")
    found = {row["k"]: (row["n"], row["s"]) for row in pa.table(table).to_pylist()}
    values = range(files * ROWS_A_FILE)
    expected = {key: (len(values[key::KEYS]), sum(values[key::KEYS])) for key in range(min(KEYS, len(values)))}
    return "EQUAL" if found == expected else f"DIFFERENT: {found}, expected {expected}"


def main() -> None:
    folder, files, task_managers, standbys = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    senders = None if sys.argv[5] == "default" else int(sys.argv[5])
    write_input(folder / "in", files)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(name)s %(levelname)s %(message)s", filename=folder / "log"
    )
    logging.getLogger("holdfast").setLevel(logging.INFO)
    log.setLevel(logging.INFO)
    spark = SparkSession.builder.appName("steady").getOrCreate()
    log.info("driver %d, application %s", os.getpid(), spark.sparkContext.applicationId)
    job = hf.Job(
        spark,
        name="steady",
        storage=f"{folder.as_uri()}/state",
        task_managers=task_managers,
        standby_task_managers=standbys,
        senders=senders,
        max_rows_per_batch=ROWS_A_FILE,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")),
        task_manager=hf.TaskManagerConfig(memory="512MB"),
    )
    rows = job.read(hf.FileSource(f"{folder}/in/*.parquet", name="in"))
    slowed = rows.map_batches(slow, schema=pa.schema([("k", pa.int64()), ("v", pa.int64())]))
    counts = slowed.key_by("k").aggregate(n=hf.count(), s=hf.sum("v"))
    counts.write(hf.DeltaSink(f"{folder.as_uri()}/out", mode="upsert"))
    query = job.start(trigger=hf.available_now())
    log.info("started")
    log_course(query)
    query.awaitTermination()
    log.info("RESULT %s", result(folder, files))
    spark.stop()


if __name__ == "__main__":
    main()
