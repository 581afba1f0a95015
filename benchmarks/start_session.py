"""A session of `benchmarks.start`, run as a file, so that it measures whichever Holdfast PYTHONPATH names.

Prints a JSON line with the processor time (driver, Spark's JVM and Python workers added up) and the wall time of each
start, until the job's first batch is committed.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
POLL_S = 0.01
ENDED_S = 2.0
"""Time in seconds in which the processes of a stopped query end, so that they count for no other start."""


def cpu_s() -> float:
    """Return the processor time of this process and all below it, those included that have ended."""
    parents, used = {}, {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(each.parent.name)] = int(fields[1])
        used[int(each.parent.name)] = sum(map(int, fields[11:15])) / TICKS
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used.get(pid, 0.0) for pid in family)


def measured(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    cpu, wall = cpu_s(), time.monotonic()
    made = work()
    return {"cpu_s": round(cpu_s() - cpu, 2), "wall_s": round(time.monotonic() - wall, 2)}, made


def started(spark: Any, folder: Path) -> Any:
    """Start a job that counts by key, and wait for its first committed batch."""
    import holdfast as hf

    job = hf.Job(spark, name=folder.name, storage=(folder / "storage").as_uri())
    rows = job.read(hf.SequenceSource(rows_per_second=10.0))
    rows.key_by("value").aggregate(name="count", n=hf.count()).write(hf.NoopSink())
    query = job.start()
    while not query.totals.batches:
        time.sleep(POLL_S)
    return query


def main() -> None:
    begun_s = time.monotonic()
    import numpy
    import pyarrow
    from pyspark.sql import SparkSession

    del numpy, pyarrow
    cpu = time.process_time()
    import holdfast as hf

    for name in ("Job", "SequenceSource", "NoopSink", "count"):
        getattr(hf, name)
    figures: dict[str, Any] = {"import_cpu_s": round(time.process_time() - cpu, 3)}
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    building = SparkSession.builder.master("local[4]").appName("start")
    for name, value in settings.items():
        building = building.config(name, value)
    spark = building.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.range(1).count()
    figures["spark_s"] = round(time.monotonic() - begun_s, 2)
    with tempfile.TemporaryDirectory(prefix="holdfast start ") as name:
        for step, place in (("first", "a"), ("second_job", "b"), ("again", "b")):
            figures[step], query = measured(lambda place=place: started(spark, Path(name) / place))
            query.stop()
            time.sleep(ENDED_S)
    spark.stop()
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    sys.exit(main())
