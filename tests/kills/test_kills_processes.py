"""Drivers and TaskManagers of real Spark, killed with SIGKILL at named failpoints, or stopped and continued."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from kills_ends import FENCED
from kills_pipelines import Shape, check
from kills_processes import WAIT_S, DriverProcess

from holdfast.journal.fence import journal_numbers, read_record
from holdfast.storage.store import ObjectStore, open_store
from sampling import quick
from waiting import until

pytestmark = [pytest.mark.kill, pytest.mark.timeout(600)]

TASK_MANAGER_POINTS = {
    "task.sent": 4,
    "task.staged": 5,
    "sink.staged": 2,
    "sender.register.before": 1,
    "sender.unit.before": 3,
    "sender.unit.after": 2,
    "taskmanager.register.before": 1,
    "taskmanager.deploy.before": 1,
    "taskmanager.deploy.after": 1,
    "taskmanager.receive": 5,
    "taskmanager.process.before": 3,
    "taskmanager.process.subtask": 2,
    "taskmanager.process.after": 2,
    "taskmanager.output": 2,
    "taskmanager.commit.before": 3,
    "taskmanager.commit.between": 4,
    "taskmanager.commit.after": 2,
    "taskmanager.release": 3,
    "taskmanager.abort": 1,
    "taskmanager.cut.before": 2,
    "changelog.upload.before": 2,
    "changelog.upload.after": 2,
    "materialize.upload.before": 1,
    "taskmanager.cut.uploaded": 1,
    "taskmanager.cut.manifest": 1,
    "taskmanager.acknowledge.before": 1,
    "taskmanager.acknowledge.after": 1,
    "taskmanager.complete": 1,
}
"""Failpoints in processes that Spark started, and at which hit in its process each kills."""

STORED_ALONE = {"changelog.upload.before", "changelog.upload.after", "taskmanager.cut.manifest"}
"""Only TaskManagers whose logs and manifests do not travel come by these."""

LAYOUTS = {
    "logs stored alone": (0, TASK_MANAGER_POINTS),
    "logs that travel": (
        "64KB",
        {point: hit for point, hit in TASK_MANAGER_POINTS.items() if point not in STORED_ALONE},
    ),
}
"""`gathered_size_max`, and the failpoints that a job with it meets."""

DRIVER_POINTS = {
    "two of them": {"jobmaster.record.before": 2, "sink.delta.committed": 1},
    "the most telling ones": {
        "jobmaster.deploy.after": 1,
        "jobmaster.record.before": 2,
        "jobmaster.record.after": 1,
        "sink.delta.committed": 1,
    },
}
"""Failpoints in the driver, and at which hit each kills; all the others in process: see test_kills_deaths."""


def armed(points: dict[str, int], folder: Path) -> dict[str, str]:
    """Each kills once, over all processes and starts."""
    folder.mkdir()
    return {point: f"kill:{folder / point}@{hit}" for point, hit in points.items()}


def killed(folder: Path) -> set[str]:
    return {marker.name for marker in folder.iterdir()}


@pytest.mark.parametrize("layout", quick("logs stored alone", of=LAYOUTS))
def test_task_managers_and_tasks_are_killed_at_each_of_their_failpoints_within_one_driver(layout, tmp_path):
    size, hits = layout
    shape = Shape("every", "parquet", rows=200_000, keys=5000, rows_per_batch=8000, interval_s=0.3, log_handles_max=2)
    shape = replace(shape, gathered_size_max=size)
    points = armed(hits, tmp_path / "killed")
    # The death of a sender leaves nothing to be undone, and a TaskManager's comes before the undo where both meet.
    points |= {
        "jobmaster.process.after": "raise:StorageError@6",
        "jobmaster.process.before": "raise:StorageError@20",
        "jobmaster.level.after": "raise:StorageError@50",
    }
    with DriverProcess(tmp_path, {tmp_path / "job": shape}, armed=points) as driver:
        driver.finish(500)
    check(shape, tmp_path / "job")
    assert killed(tmp_path / "killed") == hits.keys()


@pytest.mark.parametrize("hits", quick("two of them", of=DRIVER_POINTS))
def test_a_driver_is_killed_again_and_again_and_each_next_one_goes_on(hits, tmp_path):
    """Processes of the killed driver, its TaskManagers too, are still alive when the next driver takes over."""
    shape = Shape("chain", "delta", rows=6000, rows_per_batch=300, interval_s=0.2)
    points = armed(hits, tmp_path / "killed")
    for start in range(len(hits) + 1):
        with DriverProcess(tmp_path, {tmp_path / "job": shape}, armed=points, name=f"driver-{start}") as driver:
            code = driver.wait()
            assert code in (0, -signal.SIGKILL), driver.text()
            if code == 0:
                break
    check(shape, tmp_path / "job")
    assert killed(tmp_path / "killed") == hits.keys()


@pytest.mark.long
def test_a_driver_that_stood_still_while_another_took_over_is_fenced_and_changes_nothing(tmp_path):
    shape = Shape("changes", "delta", rows=6000, rows_per_batch=150, interval_s=0.2)
    job = tmp_path / "job"
    with (
        DriverProcess(tmp_path, {job: shape}, name="first") as first,
        DriverProcess(
            tmp_path, {job: shape}, name="second", armed={"journal.takeover.listed": hold(tmp_path)}
        ) as second,
    ):
        until(lambda: first.ended or newest(job) >= 3, first.text, WAIT_S)
        first.suspend()
        until(lambda: second.ended or (tmp_path / "held").exists(), second.text, WAIT_S)
        (tmp_path / "held").unlink()
        second.finish()
        check(shape, job)
        before = records(job)
        first.resume()
        assert first.wait() == FENCED, first.text()
        assert records(job) == before
        check(shape, job)


def hold(folder: Path) -> str:
    return f"pause:{folder / 'held'}@1"


def newest(job: Path) -> int:
    """The highest number of the journal."""
    return max(journal_numbers(open_store((job / "storage").as_uri())), default=0)


def records(job: Path) -> list[tuple[int, int]]:
    """The journal: (number, epoch)."""
    store: ObjectStore = open_store((job / "storage").as_uri())
    return [(number, read_record(store, number).epoch) for number in journal_numbers(store)]


@pytest.mark.long
@pytest.mark.parametrize("senders", [0, 2], ids=["short jobs", "senders that stay"])
def test_work_that_is_repeated_counts_once_and_a_task_manager_is_replaced_all_the_same(senders, tmp_path):
    """`local[4,3]`: Spark tries a task again twice. Tasks and senders die after they have sent, or have staged."""
    shape = Shape("every", "delta", rows=9000, rows_per_batch=300, interval_s=0.3)
    hits = {"task.sent": 3, "task.staged": 4, "taskmanager.process.after": 4}
    points = armed(hits, tmp_path / "killed")
    with DriverProcess(
        tmp_path, {tmp_path / "job": shape}, armed=points, master="local[4,3]", settings={"senders": senders}
    ) as driver:
        driver.finish()
        text = driver.text()
    check(shape, tmp_path / "job")
    assert killed(tmp_path / "killed") == hits.keys()
    assert "attempt 1" not in text, "a batch was repeated where a unit was to be repeated"
    assert text.count("restarting from the last checkpoint") == 1
