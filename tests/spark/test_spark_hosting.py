"""The end of a TaskManager: noticed as its connection breaks, and reported with the cause that Spark knows."""

import pyarrow as pa
import pytest
from spark_kit import kill_task_manager, new_job
from test_spark_streams import numbers

import holdfast as hf
from holdfast.graph.program import Leg, LegOutput, SinkTarget, SourceOrigin
from holdfast.spark import hosting
from holdfast.spark.failures import cause_of_death, step_failure
from waiting import until

KILLED = "its Python worker process was killed, or it crashed"
WORKER_GONE = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting …\n\tat …"
FAULT = "Python worker exited unexpectedly (crashed): Fatal Python error: Segmentation fault\n\nCurrent thread …"
EXECUTOR = "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: "


@pytest.fixture
def running(spark, tmp_path):
    """A query whose batches never end, so that calls are under way whenever a TaskManager is killed."""
    job = new_job(spark, tmp_path, task_managers=2, max_rows_per_batch=100)
    numbers(job, 10_000_000).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    query = job.start()
    yield query
    query.stop()


def test_a_task_manager_that_was_killed_is_reported_as_killed_whoever_noticed_first(running):
    for kills in range(1, 4):
        before = running.totals.rows
        until(lambda before=before: running.totals.rows > before + 1000)
        kill_task_manager(running, kills % 2)
        until(lambda wanted=kills: len(running.restarts) == wanted)
        assert running.restarts[-1].endswith(KILLED)


def test_a_kernel_that_ran_out_of_memory_meanwhile_is_named(running, tmp_path, monkeypatch):
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 5\noom_kill 100000\n")
    monkeypatch.setattr(hosting, "KERNEL_COUNTERS", counters)
    kill_task_manager(running, 0)
    until(lambda: len(running.restarts) == 1)
    assert KILLED in running.restarts[0] and "meanwhile for lack of memory" in running.restarts[0]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (WORKER_GONE, KILLED),
        (FAULT, f"{KILLED}: Segmentation fault"),
        (
            EXECUTOR + "Command exited with code 137",
            "executor 3 was lost: Command exited with code 137 (killed by SIGKILL, also sent by the kernel when "
            "memory runs out)",
        ),
        (EXECUTOR + "Command exited with code 1", "executor 3 was lost: Command exited with code 1"),
        (EXECUTOR + "worker lost", "executor 3 was lost: worker lost"),
    ],
)
def test_what_spark_says_of_a_task_is_told_in_one_line(words, cause):
    assert cause_of_death(words) == cause


AWAY = "Job aborted …\nTraceback (most recent call last):\n  …\nholdfast.errors.StorageError: s3://b: timed out\n"
SPILLED = "Job aborted … java.io.IOException: No space left on device\n\tat java.base/…"
BY_USER = "Traceback (most recent call last):\n  …\nOSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (AWAY, hf.StorageError, "s3://b: timed out"),
        (SPILLED, hf.StorageError, "No space left on device"),
        (BY_USER, hf.UserFunctionError, "No space left on device"),
        ("Job aborted: a stage was cancelled", RuntimeError, "cancelled"),
    ],
)
def test_an_outage_in_a_task_of_spark_is_told_apart_from_a_failing_step(words, kind, text):
    leg = Leg(0, 0, SourceOrigin("numbers"), (), (LegOutput(0, 0, SinkTarget("out"), pa.schema([])),))
    found = step_failure(leg, RuntimeError(words))
    assert type(found) is kind and text in str(found)
