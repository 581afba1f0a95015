"""JVMs of the tests start with little processor time: classes come from an archive, and only the quick compiler works.

    python tests/quick_jvm.py        makes the archive, which takes a Spark session of some seconds

Starting Spark's JVM and answering a first query takes most of the processor time of a test that has a session of its
own: some 30 s on the machine where the archive was introduced, 10 s with both settings. The archive is a dynamic
archive of class data sharing (JEP 350). A JVM that does not fit the archive, for instance an executor with another
class path, loads its classes as usual.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / "spark.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
"""One small collector and the first compiler alone; a JVM says nothing of an archive that does not fit."""


def use_quick_jvms() -> None:
    """Have each Spark driver started by this process or its children, and their executors and workers, start quickly.

    Python workers are forked from a process that has imported Holdfast already, as docs/guide/recovery.md advises.
    """
    options = f"{QUICK} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else QUICK
    # spark-submit adds the variable to a driver's options; Spark takes properties of the JVM as its settings.
    settings = {"spark.executor.extraJavaOptions": options, "spark.python.daemon.module": "holdfast.spark.daemon"}
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join([options, *(f'"-D{name}={value}"' for name, value in settings.items())])


def main() -> None:
    """Run a session that loads the classes which most tests need, and keep them in the archive."""
    made = ARCHIVE.with_suffix(".new")
    made.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={made}"
    from pyspark.sql import SparkSession

    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.sql("select id % 3 k, count(*) n from range(10) group by 1 order by 1").toArrow()
    spark.range(4).repartition(2).mapInArrow(_as_they_are, "id BIGINT").collect()
    spark.createDataFrame([(1, "a")], "k INT, v STRING").collect()
    spark.sparkContext.parallelize([1, 2], 2).barrier().mapPartitions(_as_they_are).collect()
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    # The JVM writes the archive when it ends, and it ends when its standard input is closed.
    jvm.stdin.close()
    jvm.wait()
    made.replace(ARCHIVE)


def _as_they_are(values: Iterator[Any]) -> Iterator[Any]:
    """A step of Spark's that runs in Python."""
    return values


if __name__ == "__main__":
    main()
