"""TaskManagers whose machine is to go: another takes the place between two batches, and nothing is repeated."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from job_kit import Feed, new_job, new_storage, newest

import holdfast as hf
from holdfast import failpoints
from holdfast.ids import Role
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from sampling import some
from waiting import until

NOTICE = "executor 1 is to go: spot notice"


class Leaving:
    """A job on TaskManagers that are told to go, and the counts that its input makes."""

    def __init__(self, **settings: Any) -> None:
        self.feed, self.sink, clusters = Feed(name="feed"), hf.MemorySink(name="out"), list[LocalCluster]()
        job = new_job(new_storage(), **({"parallelism": 4, "task_managers": 2} | settings))
        job.read(self.feed).key_by("k").aggregate(n=hf.count(), name="counts").write(self.sink)
        self.query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
        self.cluster, self.counts = clusters[0], Counter[int]()

    def work(self) -> None:
        keys = range(1000)
        self.feed.put({"k": k} for k in keys)
        self.counts.update(keys)
        self.query.processAllAvailable()

    def holders(self) -> dict[int, int]:
        """The TaskManagers that hold places, and their incarnations."""
        views = self.query.view().processes
        return {
            each.number: each.incarnation
            for each in views
            if each.role == Role.TASK_MANAGER.value and not each.is_standby
        }


@contextmanager
def running(restarts: int = 0, **settings: Any) -> Iterator[Leaving]:
    made = Leaving(**settings)
    try:
        made.work()
        made.query.trigger_checkpoint()
        yield made
        made.work()
        made.query.stop()
        assert {k: row["n"] for k, row in newest(made.sink.rows(), "k").items()} == made.counts
        assert len(made.query.restarts) == restarts
    finally:
        made.query.stop()


@pytest.mark.parametrize("standby_state", [False, True])
@pytest.mark.parametrize("standbys", [0, 1])
def test_another_task_manager_takes_the_place_and_nothing_is_repeated(standbys, standby_state):
    with running(standby_task_managers=standbys, standby_state=standby_state and bool(standbys)) as job:
        before = job.holders()
        job.cluster.leave(0, NOTICE)
        job.work()
        until(lambda: 0 not in job.holders())
        assert len(job.holders()) == 2
        assert job.holders()[1] == before[1], "who stays goes on"
        until(lambda: job.query.status["standbyTaskManagers"] == standbys)


def test_the_status_names_who_leaves_and_why(caplog):
    with running(on_loss="drop") as job:
        job.cluster.leave(0, NOTICE)
        assert f"TaskManager 0 is to leave: {NOTICE}" in job.query.status["message"]
        assert f"TaskManager 0 is to leave: {NOTICE}" in caplog.text


def test_all_task_managers_leave_at_once_while_rows_come():
    with running() as job:
        before = job.holders()
        for number in before:
            job.cluster.leave(number)
        until(lambda: job.work() or not before.items() & job.holders().items())


def test_a_standby_that_leaves_is_replaced_and_no_place_moves():
    with running(standby_task_managers=1) as job:
        before = job.holders()
        job.cluster.leave(2)
        until(lambda: [each["task_manager"] for each in job.query.taskManagers] == [0, 1, 3])
        assert job.holders() == before


def test_a_notice_that_comes_twice_counts_once():
    with running() as job:
        job.cluster.leave(0)
        job.cluster.leave(0)
        until(lambda: [each["task_manager"] for each in job.query.taskManagers] == [1, 2])


def test_a_rescale_that_is_asked_for_meanwhile_follows_the_move():
    with running() as job:
        job.cluster.leave(0)
        job.query.rescale(task_managers=3).wait(30)
        until(lambda: len(job.holders()) == 3 and 0 not in job.holders())


@pytest.mark.parametrize("place", some(["taskmanager.move.before", "jobmaster.hand.over"], 1))
def test_a_machine_that_goes_too_soon_costs_a_restart_and_no_row(place):
    with running(restarts=1) as job:
        killed = []

        def kill() -> None:
            if not killed:
                killed.append(place)
                job.cluster.kill(0)

        failpoints.arm(place, kill)
        try:
            job.cluster.leave(0)
            until(lambda: job.work() or killed)
            until(lambda: job.query.restarts)
        finally:
            failpoints.disarm()
