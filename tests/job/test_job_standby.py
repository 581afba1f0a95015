"""TaskManagers that stand by: they take the place of a lost TaskManager, and its replacement stands by."""

from collections import Counter

import pytest
from job_kit import Feed, new_job, new_storage, newest

import holdfast as hf
from holdfast.errors import SettingsError
from holdfast.jobmaster.processes.cluster import ProcessStarter
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from waiting import until


class HeldStarts:
    """Starts of a cluster that wait until they are let go."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._start = cluster.start
        self.waiting: list[ProcessStarter] = []
        cluster.start = self.waiting.append  # type: ignore[method-assign]

    def let_go(self) -> None:
        while self.waiting:
            self._start(self.waiting.pop())


def test_a_standby_takes_the_place_of_a_lost_task_manager_and_every_total_stays():
    feed, sink, clusters = Feed(name="feed"), hf.MemorySink(name="out"), list[LocalCluster]()
    job = new_job(new_storage(), parallelism=4, task_managers=2, standby_task_managers=1)
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(sink)
    query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
    counts: Counter[int] = Counter()
    starts = HeldStarts(clusters[0])

    def work() -> None:
        feed.put({"k": k} for k in range(20))
        counts.update(range(20))
        query.processAllAvailable()

    def holders() -> set[int]:
        return {each.number for each in query.view().processes if not each.is_standby}

    work()
    assert (holders(), query.status["standbyTaskManagers"]) == ({0, 1}, 1)
    clusters[0].kill(1)
    until(lambda: len(query.restarts) == 1)
    work()
    assert (holders(), query.status["standbyTaskManagers"]) == ({0, 2}, 0)
    starts.let_go()
    until(lambda: query.status["standbyTaskManagers"] == 1)
    clusters[0].kill(0)
    until(lambda: len(query.restarts) == 2)
    work()
    assert holders() == {1, 2}
    metrics = query.view().metrics.values
    assert (metrics["stateRows"], metrics["standbyTaskManagers"]) == (20, 0)
    query.stop()
    assert newest(sink.rows(), "k") == {k: {"n": n} for k, n in counts.items()}


def test_the_loss_of_a_standby_is_no_loss_of_the_job():
    feed, clusters = Feed(name="feed"), list[LocalCluster]()
    job = new_job(new_storage(), parallelism=2, task_managers=1, standby_task_managers=1)
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
    query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
    until(lambda: query.status["standbyTaskManagers"] == 1)
    clusters[0].kill(1)
    until(lambda: query.status["standbyTaskManagers"] == 1)
    feed.put([{"k": 1}])
    query.processAllAvailable()
    assert query.restarts == []
    query.stop()


def test_a_number_of_standbys_that_is_none_is_refused_by_name():
    with pytest.raises(SettingsError, match=r"standby_task_managers=-1 is not allowed: a whole number from 0"):
        new_job(new_storage(), standby_task_managers=-1)
