"""The Spark session a job works in: a clone of the user's, with what Holdfast needs set. Never stops the user's.

A clone keeps settings, temporary views and functions, so that transforms see what the user sees; adaptive
execution is off in it, because a stage must run as planned.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from holdfast.errors import JobRefused

_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


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


def has_ended(spark: SparkSession) -> bool:
    """Whether the session's SparkContext was stopped, from here or by Spark itself, or its JVM is gone."""
    java_context = spark.sparkContext._jsc
    if java_context is None:
        return True
    try:
        return bool(java_context.sc().isStopped())
    except (Py4JError, OSError):
        return True


def clone_session(spark: SparkSession) -> SparkSession:
    """A session of the job's own on the same SparkContext."""
    clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    clone.conf.set("spark.sql.adaptive.enabled", "false")
    clone.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "262144")
    return clone


@contextmanager
def described(spark: SparkSession, group: str, description: str) -> Iterator[None]:
    """Spark jobs of this thread carry a group and a description inside; afterwards the user's own again."""
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in _JOB_PROPERTIES}
    context.setJobGroup(group, description)
    try:
        yield
    finally:
        for name, value in before.items():
            context._jsc.setLocalProperty(name, value)


def driver_host(spark: SparkSession) -> str:
    """The address that Spark's own driver serves on; the JobMaster binds this one and no other."""
    conf = spark.sparkContext.getConf()
    return conf.get("spark.driver.host") or socket.gethostname()
