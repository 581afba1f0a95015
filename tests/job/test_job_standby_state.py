"""Standbys with state: they follow the logs, and the one that takes a place reads next to nothing."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from job_kit import Feed, new_job, new_storage, newest

import holdfast as hf
from holdfast.errors import CorruptObject, SettingsError
from holdfast.jobmaster.batches import following
from holdfast.jobmaster.processes.cluster import ProcessStarter
from holdfast.observe.view import FollowerView
from holdfast.taskmanager.taskmanager import TaskManager
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from sampling import some
from waiting import until

ROWS = 3000


class Followed:
    """A job with a standby that follows, and the counts that its input makes."""

    def __init__(self, **settings: Any) -> None:
        self.feed, self.sink, self.clusters = Feed(name="feed"), hf.MemorySink(name="out"), list[LocalCluster]()
        settings = {"parallelism": 4, "task_managers": 2, "standby_task_managers": 1} | settings
        self.storage = new_storage()
        job = new_job(self.storage, standby_state=True, **settings)
        job.read(self.feed).key_by("k").aggregate(n=hf.count(), name="counts").write(self.sink)
        self.query = start(job, hf.processing_time("0s"), on_cluster=self.clusters.append)
        self.counts: Counter[int] = Counter()

    def work(self, keys: range, checkpoint: bool = True) -> None:
        self.feed.put({"k": k} for k in keys)
        self.counts.update(keys)
        self.query.processAllAvailable()
        if checkpoint:
            self.query.trigger_checkpoint()

    def process(self, number: int) -> Any:
        return next(each for each in self.query.view().processes if each.number == number and each.role != "sender")

    def follower(self) -> FollowerView | None:
        return next((each.follower for each in self.query.view().processes if each.follower is not None), None)

    def is_up_to_date(self, places: tuple[int, ...] = (0, 1)) -> bool:
        found = self.follower()
        return found is not None and (found.places, found.followed, found.checkpoints_behind) == (
            places,
            len(places),
            0,
        )


@contextmanager
def followed(**settings: Any) -> Iterator[Followed]:
    made = Followed(**settings)
    try:
        yield made
        made.query.stop()
        assert newest(made.sink.rows(), "k") == {k: {"n": n} for k, n in made.counts.items()}
    finally:
        made.query.stop()


@pytest.mark.parametrize("state", some([hf.HashMapState(), hf.RocksDBState()], 1), ids=["hashmap", "rocksdb"])
def test_a_standby_with_state_takes_a_place_and_reads_only_the_pieces_that_it_lacks(state):
    with followed(state=state) as job:
        job.work(range(ROWS))
        until(job.is_up_to_date)
        held: list[ProcessStarter] = []
        job.clusters[0].start = held.append  # type: ignore[method-assign]
        job.work(range(10), checkpoint=False)
        job.clusters[0].kill(1)
        until(lambda: len(job.query.restarts) == 1)
        job.work(range(5))
        taken = job.process(2).metrics
        assert not job.process(2).is_standby
        # The newest checkpoint's piece, 4,100 bytes with the place of the other TaskManager before it; all take 21,000.
        assert taken["recoveryBytesFromStore"] + taken["recoveryBytesFromLocal"] < 8000
        assert taken["stateRows"] > ROWS / 4


def test_the_successor_of_a_lost_task_manager_follows_in_its_turn_and_takes_the_next_place():
    with followed() as job:
        job.work(range(ROWS))
        until(job.is_up_to_date)
        for lost in (0, 1):
            job.clusters[0].kill(lost)
            until(lambda lost=lost: len(job.query.restarts) == lost + 1)
            job.work(range(20))
            until(job.is_up_to_date)
        assert job.query.status["standbyTaskManagers"] == 1
        assert job.query.view().metrics.values["followedPlaces"] == 2


def test_without_a_changelog_a_standby_takes_each_new_snapshot():
    with followed(checkpoint=hf.CheckpointConfig(changelog=hf.ChangelogConfig(enabled=False))) as job:
        for _ in range(3):
            job.work(range(50))
            until(job.is_up_to_date)
        job.clusters[0].kill(0)
        until(lambda: len(job.query.restarts) == 1)
        job.work(range(5))


def test_a_standby_that_hangs_holds_its_record_for_a_bounded_time(monkeypatch):
    """The pin ends, and the next records expire as ever."""
    go_on, follow = threading.Event(), TaskManager.follow

    def hang(self: TaskManager, order: Any) -> Any:
        go_on.wait(60)
        return follow(self, order)

    monkeypatch.setattr(TaskManager, "follow", hang)
    monkeypatch.setattr(following, "PIN_S_MAX", 0.2)
    try:
        with followed() as job:
            job.work(range(20))
            parts = job.query._master.parts
            until(lambda: bool(parts.following._standbys))
            until(lambda: all(each.pinned is None and each.under_way for each in parts.following._standbys.values()))
            job.work(range(20))
            go_on.set()
            until(job.is_up_to_date)
    finally:
        go_on.set()


def test_a_standby_that_finds_a_damaged_object_says_so_and_follows_the_next_checkpoint(monkeypatch, caplog):
    follow, damaged = TaskManager.follow, [True]

    def fail(self: TaskManager, order: Any) -> Any:
        if damaged[0]:
            raise CorruptObject("dstl/1.2.3: the checksum does not fit")
        return follow(self, order)

    monkeypatch.setattr(TaskManager, "follow", fail)
    with followed() as job:
        job.work(range(20))
        until(lambda: (found := job.follower()) is not None and "dstl/1.2.3: the checksum" in found.trouble)
        damaged[0] = False
        until(job.is_up_to_date)
        assert job.follower().trouble == ""
    assert "TaskManager 2 follows others" in caplog.text


@pytest.mark.parametrize(
    "standby", [{}, {"standby_task_managers": 1, "standby_state": True}], ids=["alone", "followed"]
)
def test_state_that_a_start_gave_up_stays_away_after_a_loss_and_the_state_since_does_not(standby):
    storage, ended = new_storage(), []
    for given_up, rows in (((), 5), (("counts",), 8)):
        feed, sink, clusters = Feed(name="feed"), hf.MemorySink(name="out"), list[LocalCluster]()
        job = new_job(storage, parallelism=2, task_managers=1, **standby)
        job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(sink)
        query = start(job, hf.processing_time("0s"), on_cluster=clusters.append, drop_state=given_up)
        feed.put({"k": 1} for _ in range(rows))
        query.processAllAvailable()
        query.trigger_checkpoint()
        if given_up:
            until(lambda query=query: not standby or query.view().metrics.values.get("followedPlaces") == 1)
            clusters[0].kill(0)
            until(lambda query=query: len(query.restarts) == 1)
            feed.put([{"k": 1}])
            query.processAllAvailable()
        query.stop()
        ended.append(sink.rows()[-1]["n"])
    assert ended == [5, 4]


def test_state_without_a_standby_that_holds_it_is_refused_by_name():
    with pytest.raises(
        SettingsError, match=r"standby_state=True with standby_task_managers=0 is not allowed: True needs"
    ):
        new_job(new_storage(), standby_state=True)
