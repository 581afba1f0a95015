"""Another layout while the job runs: only what moves is read, and no row is lost or doubled."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
from job_kit import Feed, new_job, new_storage, newest

import holdfast as hf
from holdfast import failpoints
from holdfast.errors import RescaleFailed, SettingsError, StorageError
from holdfast.execution import events as ev
from holdfast.execution import moves
from holdfast.ids import Role
from holdfast.jobmaster.batches.rescales import Rescales
from holdfast.jobmaster.batches.work import WorkQueue
from holdfast.taskmanager import moving
from holdfast.taskmanager.taskmanager import TaskManager
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from sampling import some
from waiting import until

ROWS = 3000


class Rescaled:
    """A job whose number of TaskManagers changes, and the counts that its input makes."""

    def __init__(
        self, storage: str | None = None, counts: Counter[int] | None = None, forget: bool = False, **settings: Any
    ) -> None:
        self.feed, self.sink, self.clusters = Feed(name="feed"), hf.MemorySink(name="out"), list[LocalCluster]()
        self.storage = storage or new_storage()
        job = new_job(self.storage, **({"parallelism": 4, "task_managers": 2} | settings))
        job.read(self.feed).key_by("k").aggregate(n=hf.count(), name="counts").write(self.sink)
        options = {"on_cluster": self.clusters.append, **({"forget_updates": True} if forget else {})}
        self.query = start(job, hf.processing_time("0s"), **options)
        self.counts: Counter[int] = Counter() if counts is None else counts

    def work(self, keys: range) -> None:
        self.feed.put({"k": k} for k in keys)
        self.counts.update(keys)
        self.query.processAllAvailable()

    def task_managers(self) -> dict[int, Any]:
        """The TaskManagers that hold places, by number."""
        views = self.query.view().processes
        return {each.number: each for each in views if each.role == Role.TASK_MANAGER.value and not each.is_standby}


@contextmanager
def running(**settings: Any) -> Iterator[Rescaled]:
    made = Rescaled(**settings)
    try:
        yield made
        made.query.stop()
        rows = newest(made.sink.rows(), "k")
        assert {k: rows[k]["n"] for k in rows} == {k: n for k, n in made.counts.items() if k in rows}
        assert made.query.restarts == []
    finally:
        made.query.stop()


@pytest.mark.parametrize("state", some([hf.HashMapState(), hf.RocksDBState()], 1), ids=["hashmap", "rocksdb"])
def test_two_task_managers_become_four_and_two_again_and_only_what_moves_is_read(state):
    with running(state=state) as job:
        job.work(range(ROWS))
        job.query.trigger_checkpoint()
        before = {each["task_manager"]: each["incarnation"] for each in job.query.taskManagers}
        for wanted in (4, 2):
            rescale = job.query.rescale(task_managers=wanted)
            rescale.wait(30)
            job.work(range(ROWS))
            found = job.task_managers()
            assert len(found) == wanted
            assert sum(each.metrics["stateRows"] for each in found.values()) == ROWS
            assert rescale.bytes_moved > 0
        until(lambda: len(job.query.taskManagers) == 2)
        assert {each["task_manager"]: each["incarnation"] for each in job.query.taskManagers}[0] == before[0]


def test_a_later_start_has_the_layout_of_the_rescale_unless_its_code_asks_for_another():
    storage, counts, held = new_storage(), Counter[int](), []
    for declared, rescaled in ((2, 4), (2, 3), (2, None), (1, None), (2, None)):
        with running(storage=storage, counts=counts, task_managers=declared) as job:
            job.work(range(100))
            held.append(len(job.task_managers()))
            if rescaled is not None:
                job.query.rescale(task_managers=rescaled).wait(30)
                assert job.query.status["keptSettings"] == {"task_managers": repr(rescaled)}
    assert held == [2, 4, 3, 1, 2]


def test_a_start_that_forgets_updates_has_the_layout_of_its_code():
    storage = new_storage()
    with running(storage=storage) as job:
        job.work(range(100))
        job.query.rescale(task_managers=3).wait(30)
    made = Rescaled(storage=storage, forget=True)
    try:
        made.work(range(10))
        assert len(made.task_managers()) == 2
    finally:
        made.query.stop()


LAYOUTS = ({"parallelism": 8}, {"task_managers": 4, "parallelism": 7}, {"task_managers": 1, "parallelism": 2})


@pytest.mark.parametrize("in_place", [False, True], ids=["followed", "in place"])
@pytest.mark.parametrize("state", [hf.HashMapState(), hf.RocksDBState()], ids=["hashmap", "rocksdb"])
def test_other_subtasks_hold_the_key_groups_and_every_count_goes_on(state, in_place):
    storage, counts = new_storage(), Counter[int]()
    with running(storage=storage, counts=counts, state=state) as job:
        job.work(range(ROWS))
        for wanted in LAYOUTS:
            rescale = job.query.rescale(**wanted, in_place=in_place)
            rescale.wait(30)
            job.work(range(0, ROWS, 7))
            subtasks = {
                int(name.rpartition(".")[2]): value
                for each in job.task_managers().values()
                for name, value in each.metrics.items()
                if name.startswith("stateRows.counts.")
            }
            assert sorted(subtasks) == list(range(wanted["parallelism"])) and min(subtasks.values()) > 0
            assert sum(subtasks.values()) == ROWS
            assert job.query.read_state("counts", key={"k": 7})["n.count"].to_pylist() == [counts[7]]
            assert rescale.parallelism == wanted["parallelism"] and (rescale.bytes_moved > 0) is not in_place
        assert job.query.status["keptSettings"] == {"task_managers": "1", "parallelism": "2"}
        assert job.query.view().parallelism == 2
    with running(storage=storage, counts=counts, state=state) as job:
        job.work(range(100))
        assert (len(job.task_managers()), job.query.view().parallelism) == (1, 2)
    with running(storage=storage, counts=counts, state=state, parallelism=3) as job:
        job.work(range(100))
        assert (len(job.task_managers()), job.query.view().parallelism) == (2, 3), "the code asks for another"


def test_after_a_rescale_survivors_of_a_loss_go_back_in_memory():
    made = Rescaled()
    try:
        made.work(range(ROWS))
        made.query.rescale(task_managers=1).wait(30)
        made.query.rescale(task_managers=2).wait(30)
        made.work(range(ROWS))
        made.query.trigger_checkpoint()
        survivor = made.clusters[0]._hosted[0].task_manager
        subtasks = list(survivor._hosted.subtasks.values())
        made.clusters[0].kill(max(made.task_managers()))
        until(lambda: len(made.query.restarts) == 1)
        made.work(range(100))
        assert list(survivor._hosted.subtasks.values()) == subtasks
        assert made.query.read_state("counts", key={"k": 7})["n.count"].to_pylist() == [made.counts[7]]
    finally:
        made.query.stop()


@contextmanager
def handing_over_what_is_not_recorded() -> Iterator[None]:
    """Take the newest record, whatever was committed since, and ask nobody whether it fits."""

    def hand_over(self: Rescales) -> ev.Event:
        record = self._control.newest_record
        return moves.HandedOver(record.batch) if record is not None else ev.Interrupted()

    with ExitStack() as patched:
        patched.enter_context(mock.patch.object(Rescales, "hand_over", hand_over))
        patched.enter_context(mock.patch.object(WorkQueue, "_check_all_recorded", lambda self, batch: None))
        patched.enter_context(mock.patch.object(moving, "_stands_at", lambda hosted, deployment, committed: True))
        yield


@pytest.mark.parametrize("rule", [nullcontext, handing_over_what_is_not_recorded], ids=["kept", "broken"])
def test_what_was_committed_since_the_newest_record_is_recorded_before_it_is_handed_over(rule):
    made = Rescaled()
    try:
        made.work(range(ROWS))
        made.feed.put({"k": k} for k in range(ROWS))
        until(lambda: made.query.totals.rows == 2 * ROWS)  # waiting for all of them would take a checkpoint
        with rule():
            made.query.rescale(task_managers=1).wait(30)
        made.work(range(ROWS))
        made.query.trigger_checkpoint()
        counted = hf.read_state(made.storage, "counts").column("n.count").to_pylist()
        assert (set(counted) == {3}) is (rule is nullcontext), f"{Counter(counted)} as counts and numbers of keys"
    finally:
        made.query.stop()


def test_before_the_first_row_nothing_has_to_move():
    with running() as job:
        job.query.rescale(task_managers=4).wait(30)
        job.work(range(100))
        assert len(job.task_managers()) == 4


def test_a_task_manager_that_dies_with_new_state_takes_the_job_back_to_the_layout_of_before(monkeypatch):
    """The deployment fails, the job goes back to its newest checkpoint, and the rescale succeeds the next time."""
    made = Rescaled()
    killed: list[int] = []

    def kill_once() -> None:
        if not killed:
            killed.append(2)
            made.clusters[0].kill(2)

    failpoints.arm("jobmaster.hand.over", kill_once)
    try:
        made.work(range(ROWS))
        made.query.rescale(task_managers=4).wait(30)
        made.work(range(100))
        assert killed and len(made.task_managers()) == 4
        made.query.stop()
        assert newest(made.sink.rows(), "k") == {k: {"n": n} for k, n in made.counts.items()}
    finally:
        failpoints.disarm()
        made.query.stop()


def test_a_rescale_that_fails_again_and_again_is_given_up_and_the_job_goes_on(monkeypatch):
    def fail() -> None:
        raise StorageError("a gained subtask cannot be restored")

    made = Rescaled(failover=hf.FailoverConfig(restarts_max=10))
    failpoints.arm("taskmanager.move.before", fail)
    try:
        made.work(range(100))
        rescale = made.query.rescale(task_managers=1)
        with pytest.raises(RescaleFailed, match=r"from 2 to 1 TaskManagers: failed: it failed 3 times; the last cause"):
            rescale.wait(60)
        made.work(range(100))
        assert len(made.task_managers()) == 2 and "failed" in rescale.progress
    finally:
        failpoints.disarm()
        made.query.stop()


def test_without_enough_time_the_layout_stays_and_new_processes_end(monkeypatch):
    with running() as job:
        job.work(range(100))
        monkeypatch.setattr(TaskManager, "follow", lambda self, order: go_on.wait(30))
        go_on = threading.Event()
        rescale = job.query.rescale(task_managers=4, timeout="100ms")
        with pytest.raises(RescaleFailed, match="took too long: those who gain subtasks have not caught up"):
            rescale.wait(30)
        go_on.set()
        until(lambda: len(job.query.taskManagers) == 2)
        job.work(range(100))


@pytest.mark.parametrize(
    ("settings", "wanted", "message"),
    [
        ({}, {"task_managers": 2, "parallelism": 4}, "the job has this layout already"),
        ({}, {"task_managers": 5}, "operators have parallelism=4 subtasks, and each TaskManager holds one"),
        ({}, {"parallelism": 1}, "operators have parallelism=1 subtasks, and each TaskManager holds one"),
        ({}, {"parallelism": 129}, "this storage was made with 128 key groups"),
        ({}, {"task_managers": 0}, "task_managers=0: allowed is a whole number of at least 1"),
        ({}, {"parallelism": True}, "parallelism=True: allowed is a whole number of at least 1"),
        ({}, {"senders": 2}, "this job has no senders that stay"),
        ({}, {"in_place": True}, "rescale\\(\\) names no number; give task_managers=…, parallelism=… or senders=…"),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings, wanted, message):
    with running(**settings) as job, pytest.raises(SettingsError, match=message):
        job.query.rescale(**wanted)


def test_one_rescale_at_a_time():
    with running() as job:
        job.work(range(10))
        job.query.rescale(task_managers=4)
        with pytest.raises(SettingsError, match="a rescale is under way, from 2 to 4 TaskManagers"):
            job.query.rescale(task_managers=3)
