"""A job's Spark session: a clone of the user's session with Holdfast's settings. The user's session is never stopped.

A clone keeps settings, temporary views and functions, so that transforms see the user's names. Adaptive execution is
off in the clone, because a stage must run as planned.
"""

import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkConf
from pyspark.sql import SparkSession, is_remote

from holdfast.errors import JobRefused
from holdfast.printable import logger
from holdfast.spark.host import SparkJob

log = logger(__name__)

TASKS_LOOKED_AT_MAX = 10
CLASSIC = (
    "driver='cluster' needs a session of Spark Connect. With a classic session, Spark's driver is in this program, and "
    "the job is led here; to have both in the cluster, submit the program there, for instance by spark-submit "
    "--deploy-mode cluster, and leave driver out"
)
DAEMON_MODULE, DAEMON = "spark.python.daemon.module", "holdfast.spark.daemon"
DAEMON_HINT = f'make the session with .config("{DAEMON_MODULE}", "{DAEMON}") if executors have Holdfast installed'
_JOB_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


def is_connect(spark: Any) -> bool:
    """Return True for a session of Spark Connect. Its modules need packages that a classic session does not need."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def check_session(spark: Any, driver: str) -> None:
    """Refuse objects that are not a Spark session, and a classic session if the driver shall be in the cluster."""
    if not is_connect(spark) and not isinstance(spark, SparkSession):
        raise JobRefused(f"Job(spark, ...) takes a SparkSession, found {type(spark).__name__}")
    if driver == "cluster" and not is_connect(spark):
        raise JobRefused(CLASSIC)


def new_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Make a thread for Spark jobs. On a classic session it has the caller's properties, such as the pool."""
    kind = threading.Thread if is_remote() else InheritableThread
    return kind(target=run, name=name, daemon=True)


def spark_settings(spark: SparkSession) -> SparkConf:
    """Return the settings of the session's SparkContext for reading. `getConf` would copy each by a call of its own."""
    return spark.sparkContext._conf


def has_ended(spark: SparkSession) -> bool:
    """Return True if the session's SparkContext was stopped, by anyone, or its JVM is gone."""
    java_context = spark.sparkContext._jsc
    if java_context is None:
        return True
    try:
        return bool(java_context.sc().isStopped())
    except (Py4JError, OSError):
        return True


def use_drivers_python(spark: SparkSession) -> None:
    """Run workers with the driver's Python on `local[…]`, unless a setting names another Python.

    Spark's own choice is the first `python3` of the PATH. That is a different Python if the driver was started from a
    virtual environment that is not activated.
    """
    context = spark.sparkContext
    if context.master.partition("[")[0] == "local" and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def use_warm_daemon(spark: SparkSession) -> None:
    """Fork Python workers from a process that has loaded Holdfast, unless a setting names another process.

    On `local[…]` Spark reads the setting for each new worker. Other executors read it when they start, so there only
    the program that makes the session can set it.
    """
    context = spark.sparkContext
    if spark_settings(spark).get(DAEMON_MODULE) is not None:
        return
    if context.master.partition("[")[0] != "local" or not _is_own_python(context.pythonExec):
        log.info("each Python worker loads Holdfast anew: %s", DAEMON_HINT)
        return
    try:
        context._jsc.sc().conf().set(DAEMON_MODULE, DAEMON)
    except (Py4JError, OSError, AttributeError) as error:
        log.info("each Python worker loads Holdfast anew, since Spark refused the setting (%s): %s", error, DAEMON_HINT)


def _is_own_python(command: str) -> bool:
    """Return True if the command starts the Python of this process's environment."""
    found = shutil.which(command)
    return found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()


def end_progress_bar(spark: SparkSession) -> None:
    """End the progress bar that Spark draws on the console. A TaskManager is a stage that does not end, so its bar
    would stay."""
    try:
        bar = spark.sparkContext._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().stop()
    except (Py4JError, OSError) as error:
        log.debug("Spark's progress bar was not ended: %s", error)


def cancel_group(spark: SparkSession, group: str) -> None:
    """Cancel the Spark jobs of a group; the jobs of a stopped session have ended with it."""
    try:
        spark.sparkContext.cancelJobGroup(group)
    except Exception as error:
        if not has_ended(spark):
            log.warning("the Spark jobs of group %s could not be cancelled: %s", group, error)


def jobs_of_group(spark: SparkSession, group: str) -> list[int]:
    """Return the ids of the jobs that Spark knows in that group; empty if Spark does not answer."""
    try:
        return list(spark.sparkContext.statusTracker().getJobIdsForGroup(group))
    except (Py4JError, OSError, AttributeError) as error:
        log.debug("Spark does not report the jobs of %s: %s", group, error)
        return []


def failed_attempt(spark: SparkSession, group: str) -> str | None:
    """Return Spark's message about a failed task of that job group, even if Spark tries the task again."""
    try:
        for task in _tasks_of(spark, group):
            if task.errorMessage().isDefined():
                return str(task.errorMessage().get())
    except (Py4JError, OSError, AttributeError) as error:
        log.debug("Spark does not report failures of the tasks of %s: %s", group, error)
    return None


def executors_of(spark: SparkSession, group: str) -> frozenset[str]:
    """Return the ids of the executors that run tasks of that job group; empty if Spark does not report them."""
    try:
        running = [task for task in _tasks_of(spark, group) if task.status() == "RUNNING"]
        return frozenset(str(task.executorId()) for task in running)
    except (Py4JError, OSError, AttributeError) as error:
        log.debug("Spark does not report where the tasks of %s run: %s", group, error)
        return frozenset()


def _tasks_of(spark: SparkSession, group: str) -> Iterator[Any]:
    tracker, store = spark.sparkContext.statusTracker(), spark.sparkContext._jsc.sc().statusStore()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    for stage in [stage for job in jobs if job is not None for stage in job.stageIds]:
        tasks = store.taskList(stage, 0, TASKS_LOOKED_AT_MAX)
        yield from (tasks.apply(index) for index in range(tasks.size()))


def ask_for_executors(spark: SparkSession, more: int) -> None:
    """Ask the cluster manager for `more` executors beside those that run, up to `spark.dynamicAllocation.maxExecutors`.

    May block until the cluster manager has answered. Unlike tasks that wait for a slot, the request takes no slot from
    other tasks.
    """
    try:
        java = spark.sparkContext._jsc.sc()
        wanted = java.getExecutorMemoryStatus().size() - 1 + more  # the driver is among them
        most = int(spark_settings(spark).get("spark.dynamicAllocation.maxExecutors") or wanted)
        java.requestTotalExecutors(min(wanted, most), 0, spark.sparkContext._jvm.PythonUtils.toScalaMap({}))
    except (Py4JError, OSError, AttributeError) as error:
        log.info("Spark was not asked for %d more executors: %s", more, error)


def leaving_executors(spark: SparkSession) -> dict[str, str]:
    """Return Spark's message about each executor that is decommissioned and still there, by its id.

    Empty if Spark runs tasks without executors (`local`), or does not report them.
    """
    try:
        leaving = spark.sparkContext._jsc.sc().schedulerBackend().executorsPendingDecommission()
        if leaving.isEmpty():
            return {}
        found = {executor: leaving.get(executor) for executor in leaving.keySet().mkString(" ").split()}
        return {executor: str(info.get().message()) for executor, info in found.items() if info.isDefined()}
    except (Py4JError, OSError, AttributeError) as error:
        log.debug("Spark does not report which executors are decommissioned: %s", error)
        return {}


def clone_session(spark: SparkSession) -> SparkSession:
    """Make a new session for the job on the same SparkContext."""
    clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    clone.conf.set("spark.sql.adaptive.enabled", "false")
    clone.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "262144")
    return clone


@contextmanager
def described(spark: SparkSession, job: SparkJob) -> Iterator[None]:
    """Give Spark jobs of this thread a group and a description inside the context, and restore the user's own values
    afterwards."""
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in _JOB_PROPERTIES}
    context.setJobGroup(job.group, job.description, interruptOnCancel=job.stays is None)
    try:
        yield
    finally:
        for name, value in before.items():
            context._jsc.setLocalProperty(name, value)


def driver_host(spark: SparkSession) -> str:
    """Return the address under which executors reach Spark's driver, and the JobMaster too."""
    return spark_settings(spark).get("spark.driver.host") or socket.gethostname()
