"""Jobs that go on without a lost TaskManager: which rows are dropped, and that every row is counted or said lost."""

import re
import threading
from collections import Counter

import pyarrow.parquet as parquet
import pytest
from job_kit import Feed, new_job, new_storage, newest, store_of

import holdfast as hf
from holdfast import failpoints
from holdfast.exchange import dropping
from holdfast.jobmaster.processes.cluster import ProcessStarter
from holdfast.journal.fence import read_record
from holdfast.maintenance.verify import verify
from holdfast.query import Query
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from holdfast.ui import api
from sampling import some
from waiting import until

KEYS = 40


class DroppingJob:
    """A keyed count on a feed. Starts of processes are held back once it runs, until `let_go`."""

    def __init__(self, storage: str | None = None, feed: Feed | None = None, **settings: object) -> None:
        self.storage = storage or new_storage()
        self.feed, self.sink = feed or Feed(name="feed"), hf.MemorySink(name="out")
        job = new_job(
            self.storage,
            parallelism=4,
            task_managers=2,
            on_loss="drop",
            checkpoint=hf.CheckpointConfig(trigger=hf.manual()),
            **settings,
        )
        job.read(self.feed).key_by("k").aggregate(n=hf.count(), name="counts").write(self.sink)
        self.job = job
        clusters: list[LocalCluster] = []
        self.query: Query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
        self.cluster = clusters[0]
        self.waiting: list[ProcessStarter] = []
        self._start, self.cluster.start = self.cluster.start, self.waiting.append  # type: ignore[method-assign]

    def let_go(self) -> None:
        until(lambda: bool(self.waiting))
        while self.waiting:
            self._start(self.waiting.pop())

    def commit(self) -> None:
        """A row for each key, committed in a batch, without a checkpoint."""
        before = self.query.totals.rows
        self.feed.put({"k": k} for k in range(KEYS))
        until(lambda: self.query.totals.rows == before + KEYS)

    def kill_at(self, failpoint: str, task_manager: int) -> None:
        """Kill it the first time that anybody comes to the failpoint."""
        kills = iter([task_manager])
        lock = threading.Lock()

        def kill() -> None:
            with lock:
                victim = next(kills, None)
            if victim is not None:
                self.cluster.kill(victim)

        failpoints.arm(failpoint, kill)

    def counted(self) -> int:
        self.query.processAllAvailable()
        return sum(row["n"] for row in newest(self.sink.rows(), "k").values())


@pytest.fixture
def job():
    made = DroppingJob()
    yield made
    failpoints.disarm()
    made.query.stop()


def test_survivors_go_on_and_every_row_is_counted_or_said_to_be_lost(job):
    job.commit()
    job.query.trigger_checkpoint(60)
    job.commit()
    job.cluster.kill(1)
    until(lambda: bool(job.waiting))
    job.commit()
    job.commit()
    assert job.query.status["exactlyOnce"] is False
    assert re.fullmatch(
        r"Processing without a TaskManager; \d+ rows for it have been dropped", job.query.status["message"]
    )
    job.let_go()
    until(lambda: bool(job.query.losses))
    job.commit()
    counted = job.counted()
    [loss] = job.query.losses
    rows = 5 * KEYS
    assert counted + loss.rows == rows
    lost_keys = sum(loss.rows_forgotten.values())
    assert 0 < lost_keys < KEYS and sum(loss.rows_dropped.values()) == 2 * lost_keys
    assert {name.partition("/")[0] for name in loss.rows_dropped} == {"counts"}
    assert loss.positions == {"feed": {"0": (KEYS, 4 * KEYS)}}
    [shown] = api.restarts(job.query.view())["lost_rows"]
    assert shown["ranges"] == [{"source": "feed", "split": "0", "start": KEYS, "stop": 4 * KEYS}]
    assert (shown["rows_dropped"], shown["rows_forgotten"], shown["acknowledged"]) == (2 * lost_keys, lost_keys, False)
    assert job.query.restarts == []


def test_checkpoints_complete_and_output_is_published_while_a_task_manager_is_missing(job):
    job.commit()
    job.query.trigger_checkpoint(60)
    job.commit()
    job.cluster.kill(1)
    until(lambda: bool(job.waiting))
    job.commit()
    shown = len(job.sink.rows())
    number = job.query.trigger_checkpoint(60)
    until(lambda: len(job.sink.rows()) > shown and bool(job.query.losses))
    record = read_record(store_of(job.job), number)
    [loss] = record.losses
    assert len(record.manifests) == 2 and record.older_manifests == [
        each for each in record.manifests if each.endswith("tm-000000000001")
    ]
    assert job.query.losses == (loss,) and not job.query.status["exactlyOnce"]
    lost_keys = sum(loss.rows_forgotten.values())
    assert 0 < lost_keys < KEYS and sum(loss.rows_dropped.values()) == lost_keys
    assert loss.positions == {"feed": {"0": (KEYS, 3 * KEYS)}}
    assert verify(store_of(job.job)).problems == []
    job.commit()
    job.query.trigger_checkpoint(60)
    job.commit()
    job.let_go()
    until(lambda: job.query.losses[0].batches[1] > loss.batches[1] + 1)
    job.commit()
    assert job.counted() + job.query.losses[0].rows == 6 * KEYS
    [total] = job.query.losses
    assert total.rows == 4 * lost_keys and total.positions == {"feed": {"0": (KEYS, 5 * KEYS)}}
    assert job.query.restarts == []


@pytest.mark.parametrize("checkpoints", [1, 2])
def test_a_restart_from_a_checkpoint_of_an_outage_counts_the_loss_that_it_declares(job, checkpoints):
    job.commit()
    job.query.trigger_checkpoint(60)
    job.commit()
    job.cluster.kill(1)
    until(lambda: bool(job.waiting))
    for _ in range(checkpoints):
        job.commit()
        job.query.trigger_checkpoint(60)
    until(lambda: bool(job.query.losses) and job.query.losses[0].batches[1] == checkpoints + 2)
    before = job.query.losses
    feed = job.feed
    job.query.stop()
    store = store_of(job.job)
    store.delete([info.name for info in store.list("history/")])  # as after a crash that came first
    again = DroppingJob(job.storage, feed=feed)
    try:
        until(lambda: again.query.losses == before)
        again.commit()
        assert again.counted() + before[0].rows == (3 + checkpoints) * KEYS
    finally:
        again.query.stop()


def test_everybody_goes_back_to_a_checkpoint_of_the_outage_and_its_loss_stays(job):
    job.commit()
    job.query.trigger_checkpoint(60)
    job.commit()
    job.cluster.kill(1)
    until(lambda: bool(job.waiting))
    job.query.trigger_checkpoint(60)
    until(lambda: bool(job.query.losses))
    declared = job.query.losses
    job.commit()
    job.query._master.restart("asked for")
    job.let_go()
    until(lambda: len(job.query.restarts) == 1)
    assert job.counted() + declared[0].rows == 3 * KEYS
    assert job.query.losses == declared


def test_no_checkpoint_is_taken_without_a_task_manager_of_which_no_checkpoint_has_a_part(job):
    job.commit()
    job.cluster.kill(1)
    until(lambda: bool(job.waiting))
    job.commit()
    with pytest.raises(TimeoutError):
        job.query.trigger_checkpoint(0.3)
    job.let_go()
    until(lambda: bool(job.query.losses))
    job.commit()
    assert job.counted() + job.query.losses[0].rows == 3 * KEYS


def test_the_batch_under_way_goes_on_where_its_task_manager_dies_while_it_processes(job):
    job.commit()
    job.query.trigger_checkpoint(60)
    job.kill_at("taskmanager.process.before", 1)
    job.commit()
    job.let_go()
    until(lambda: bool(job.query.losses))
    assert job.counted() + job.query.losses[0].rows == 2 * KEYS
    assert job.query.restarts == []


@pytest.mark.parametrize(
    "at", some(["taskmanager.process.after", "taskmanager.output", "taskmanager.commit.before"], 0, 2)
)
def test_a_death_at_any_step_of_a_batch_is_survived_by_it(job, at):
    job.commit()
    job.query.trigger_checkpoint(60)
    job.kill_at(at, 0)
    job.commit()
    job.let_go()
    until(lambda: bool(job.query.losses))
    job.commit()
    assert job.counted() + job.query.losses[0].rows == 3 * KEYS
    assert job.query.restarts == []


def test_a_return_to_the_checkpoint_repairs_a_loss_that_is_not_final(job):
    job.commit()
    job.query.trigger_checkpoint(60)
    job.cluster.kill(1)
    job.commit()
    job.let_go()
    until(lambda: bool(job.query.losses))
    job.query._master.restart("asked for")
    until(lambda: len(job.query.restarts) == 1)
    assert job.counted() == 2 * KEYS
    assert job.query.losses == () and job.query.status["exactlyOnce"]


def test_past_the_time_limit_everybody_goes_back_and_nothing_is_lost():
    job = DroppingJob(failover=hf.FailoverConfig(drop_timeout="100ms"))
    job.commit()
    job.query.trigger_checkpoint(60)
    job.cluster.kill(1)
    until(lambda: bool(job.waiting))
    job.feed.put({"k": k} for k in range(KEYS))
    until(lambda: job.query.view().phase == "gathering")
    job.let_go()
    until(lambda: len(job.query.restarts) == 1)
    assert job.counted() == 2 * KEYS and job.query.losses == ()
    assert "missing for longer than drop_timeout='100ms'" in job.query.restarts[0]
    job.query.stop()


def test_a_loss_is_remembered_over_a_restart_until_it_is_acknowledged(job):
    job.commit()
    job.query.trigger_checkpoint(60)
    job.cluster.kill(1)
    job.commit()
    job.let_go()
    until(lambda: bool(job.query.losses))
    job.counted()
    before = job.query.losses
    job.query.stop()
    again = DroppingJob(job.storage)
    until(lambda: again.query.losses == before)
    assert not again.query.status["exactlyOnce"] and "exactly-once has ended" in again.query.status["message"]
    again.query.acknowledge_losses()
    assert again.query.status["exactlyOnce"] and again.query.losses[0].acknowledged
    again.query.stop()
    third = DroppingJob(job.storage)
    until(lambda: bool(third.query.losses))
    assert third.query.status["exactlyOnce"]
    third.query.stop()


@pytest.mark.parametrize("kept_max", [1000, 3])
def test_dropped_rows_are_put_into_the_dead_letter_folder_up_to_a_bound(tmp_path, monkeypatch, caplog, kept_max):
    monkeypatch.setattr(dropping, "KEPT_MAX", kept_max)
    job = DroppingJob(bad_records="dead_letter", dead_letters=(tmp_path / "letters").as_uri())
    job.commit()
    job.query.trigger_checkpoint(60)
    job.cluster.kill(1)
    until(lambda: bool(job.waiting))
    job.commit()
    job.let_go()
    until(lambda: bool(job.query.losses))
    job.counted()
    [loss] = job.query.losses
    job.query.stop()
    letters = [
        row for file in (tmp_path / "letters").rglob("*.parquet") for row in parquet.read_table(file).to_pylist()
    ]
    dropped = sum(loss.rows_dropped.values())
    assert dropped > 3 and len(letters) == min(kept_max, dropped)
    assert Counter(row["reason"] for row in letters) == Counter(
        {"TaskManager 1 is missing, and the job goes on without it (on_loss='drop')": len(letters)}
    )
    [said] = [each.getMessage() for each in caplog.records if "exactly-once has ended" in each.getMessage()]
    assert str(loss) in said
