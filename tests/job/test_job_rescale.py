"""Another number of TaskManagers while the job runs: only what moves is read, and no row is lost or doubled."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from job_kit import Feed, new_job, new_storage, newest

import holdfast as hf
from holdfast.errors import RescaleFailed, SettingsError
from holdfast.ids import Role
from holdfast.storage.store import ObjectStore
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from waiting import until

ROWS = 3000


class Rescaled:
    """A job whose number of TaskManagers changes, and the counts that its input makes."""

    def __init__(self, storage: str | None = None, counts: Counter[int] | None = None, **settings: Any) -> None:
        self.feed, self.sink, self.clusters = Feed(name="feed"), hf.MemorySink(name="out"), list[LocalCluster]()
        job = new_job(storage or new_storage(), **({"parallelism": 4, "task_managers": 2} | settings))
        job.read(self.feed).key_by("k").aggregate(n=hf.count(), name="counts").write(self.sink)
        self.query = start(job, hf.processing_time("0s"), on_cluster=self.clusters.append)
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


@pytest.mark.parametrize("state", [hf.HashMapState(), hf.RocksDBState()], ids=["hashmap", "rocksdb"])
def test_two_task_managers_become_four_and_two_again_and_only_what_moves_is_read(state):
    with running(state=state) as job:
        job.work(range(ROWS))
        job.query.trigger_checkpoint()
        before = {each["task_manager"]: each["incarnation"] for each in job.query.taskManagers}
        for wanted, held in ((4, {0, 1, 2, 3}), (2, {0, 2})):
            rescale = job.query.rescale(task_managers=wanted)
            rescale.wait(30)
            job.work(range(ROWS))
            found = job.task_managers()
            assert len(found) == wanted
            assert sum(each.metrics["stateRows"] for each in found.values()) == ROWS
            assert rescale.bytes_moved > 0
        until(lambda: len(job.query.taskManagers) == 2)
        assert {each["task_manager"]: each["incarnation"] for each in job.query.taskManagers}[0] == before[0]
