"""The Spark session a job works in: a clone of the user's, with what Holdfast needs set. Never stops the user's.

A clone keeps settings, temporary views and functions, so that transforms see what the user sees; adaptive
execution is off in it, because a stage must run as planned.
"""

import os
import socket
import sys
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import JobRefused


def check_session(spark: Any) -> None:
    """Refuse what is no classic Spark session."""
    module = type(spark).__module__
    if module.startswith("pyspark.sql.connect"):
        raise JobRefused(
            "this is a Spark Connect session; Holdfast keeps TaskManagers as Spark jobs and needs the driver process "
            "itself (a SparkContext). Create the session with SparkSession.builder.master(...), without .remote(...)"
        )
    if not isinstance(spark, SparkSession):
        raise JobRefused(f"Job(spark, ...) takes a SparkSession, found {type(spark).__name__}")


def clone_session(spark: SparkSession) -> SparkSession:
    """A session of the job's own on the same SparkContext."""
    clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    clone.conf.set("spark.sql.adaptive.enabled", "false")
    clone.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "262144")
    return clone


def slots(spark: SparkSession) -> int:
    """How many tasks Spark can run at once now, on all executors together."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def driver_host(spark: SparkSession) -> str:
    """The address that Spark's own driver serves on; the JobMaster binds this one and no other."""
    conf = spark.sparkContext.getConf()
    return conf.get("spark.driver.host") or socket.gethostname()


def driver_bind_host(spark: SparkSession) -> str:
    """`spark.driver.bindAddress`, for drivers behind an address translation; else the host itself."""
    return spark.sparkContext.getConf().get("spark.driver.bindAddress") or driver_host(spark)


def python_differs() -> str | None:
    """A hint where the executors' Python was not chosen and may be another one."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen is None:
        return f"set PYSPARK_PYTHON={sys.executable} so that executors use the driver's interpreter"
    return None
