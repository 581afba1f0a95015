"""A whole job on the cluster named on the command line, in a process of its own: a JVM has a single SparkContext.

    python cluster_script.py <master, or sc://host:port> <folder> [<first port> <last port>]

Writes a JSON file: the answer, and where things ran. On Spark Connect the state is read as a DataFrame, too.
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

import holdfast as hf

ROWS = 4000
KEYS = 8


def by_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    value = batch.column("value")
    return pa.record_batch([pc.bit_wise_and(value, KEYS - 1), value], names=["k", "v"])


class Total(hf.ProcessFunction):
    total = hf.ValueState(pa.int64(), default=0)

    def process(self, row, ctx):
        self.total.update(self.total.value() + row.v)
        yield {"k": row.k, "total": self.total.value()}


def session(master: str) -> SparkSession:
    if master.startswith("sc://"):
        return SparkSession.builder.remote(master).create()
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.memory", "512m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main(master: str, folder: str, *ports: str) -> None:
    spark = session(master)
    sink = hf.MemorySink(name="out")
    restarts = []
    for rows, task_managers in ((ROWS // 2, 2), (ROWS, 1)):
        job = hf.Job(
            spark,
            name="cluster",
            storage=f"file://{folder}/storage",
            parallelism=3,
            task_managers=task_managers,
            checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
            max_rows_per_batch=800,
            port_range=tuple(map(int, ports)) or (0, 0),
        )
        numbers = job.read(hf.SequenceSource(rows, splits=2, name="numbers")).map_batches(by_key, "k BIGINT, v BIGINT")
        even = numbers.transform(lambda df: df.where("v % 2 = 0"))
        even.key_by("k").process(Total(), "k BIGINT, total BIGINT", name="totals").write(sink)
        query = job.start(hf.available_now())
        hosts = [each["address"] for each in query.taskManagers]
        query.awaitTermination()
        restarts += query.restarts
    totals = {str(row["k"]): row["total"] for row in sink.rows()}
    found = {"totals": totals, "rows": len(sink.rows()), "hosts": hosts, "restarts": restarts}
    if master.startswith("sc://"):
        state = spark.read.format("holdfast").option("storage", f"file://{folder}/storage").option("operator", "totals")
        found["stored"] = {str(row["k"]): row["total"] for row in state.load().collect()}
    else:
        found["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    Path(folder, "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
