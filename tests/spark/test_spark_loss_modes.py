"""TaskManagers that are killed on Spark: a standby takes the place, or the others go on without it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from spark_kit import kill_task_manager, new_job, worker_at
from test_spark_streams import numbers

import holdfast as hf
from holdfast.stored_state.opened import open_checkpoint, open_storage
from waiting import until


def started(spark, folder, **settings):
    """A count whose batches never end, with as many slots as there are."""
    job = new_job(spark, folder, task_managers=2, senders=1, max_rows_per_batch=2000, **settings)
    numbers(job, 1_000_000_000).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
    query = job.start()
    until(lambda: query.totals.batches > 2)
    query.trigger_checkpoint(60)
    return job, query


def counted(job: hf.Job) -> int:
    return int(sum(hf.read_state(job.storage, "counts").column("n.count").to_pylist()))


def test_a_standby_takes_the_place_of_a_killed_task_manager_and_its_successor_stands_by(spark, tmp_path):
    _, query = started(spark, tmp_path, standby_task_managers=1)
    until(lambda: query.status["standbyTaskManagers"] == 1)
    holders = [each for each in query.view().processes if each.role == "TaskManager" and not each.is_standby]
    worker_at(holders[0].address).kill()
    until(lambda: len(query.restarts) == 1)
    rows = query.totals.rows
    until(lambda: query.totals.rows > rows)
    standby = {each.number for each in query.view().processes if each.is_standby}
    assert standby <= {holders[0].number}, "the killed one's place was taken by its own successor"
    query.trigger_checkpoint(60)
    query.stop()
    assert query.losses == ()


def test_a_standby_with_state_takes_the_place_of_a_killed_task_manager_and_every_row_is_counted(spark, tmp_path):
    job, query = started(spark, tmp_path, standby_task_managers=1, standby_state=True)
    until(lambda: query.view().metrics.values.get("followedPlaces") == 2)
    victim = next(each for each in query.view().processes if each.role == "TaskManager" and not each.is_standby)
    worker_at(victim.address).kill()
    until(lambda: len(query.restarts) == 1)
    rows = query.totals.rows
    until(lambda: query.totals.rows > rows)
    query.trigger_checkpoint(60)
    query.stop()
    from holdfast.stored_state.opened import open_checkpoint, open_storage

    [offsets] = open_checkpoint(open_storage(job.storage)).record.offsets.values()
    assert counted(job) == sum(offsets.values())


def test_the_others_go_on_without_a_killed_task_manager_and_every_row_is_counted_or_lost(spark, tmp_path):
    job, query = started(spark, tmp_path, on_loss="drop", failover=hf.FailoverConfig(drop_timeout="60s"))
    kill_task_manager(query, 1)
    batches = query.totals.batches
    until(lambda: query.totals.batches > batches + 1)
    until(lambda: bool(query.losses))
    query.trigger_checkpoint(60)
    lost = sum(each.rows for each in query.losses)
    query.stop()
    [offsets] = open_checkpoint(open_storage(job.storage)).record.offsets.values()
    assert counted(job) + lost == sum(offsets.values())
    assert lost > 0 and query.restarts == []


@contextmanager
def no_slots(spark, folder: Path, tasks: int) -> Iterator[None]:
    """Tasks of the user's own take every slot that is free, and each that becomes free."""
    folder.mkdir()

    def stay(number, _):
        (folder / str(number)).touch()
        while True:
            time.sleep(0.1)

    def run_all():
        spark.sparkContext.setJobGroup("own", "the user's own tasks", interruptOnCancel=True)
        with suppress(Exception):  # cancelled
            spark.sparkContext.parallelize(range(tasks), tasks).mapPartitionsWithIndex(stay).collect()

    thread = threading.Thread(target=run_all)
    thread.start()
    try:
        until(lambda: bool(list(folder.iterdir())))
        yield
    finally:
        spark.sparkContext.cancelJobGroup("own")
        thread.join(60)


@pytest.mark.long
def test_checkpoints_complete_while_a_killed_task_manager_has_no_slot_and_declare_what_it_costs(spark, tmp_path):
    job, query = started(spark, tmp_path, on_loss="drop", failover=hf.FailoverConfig(drop_timeout="10min"))

    def opened():
        return open_checkpoint(open_storage(job.storage)).record

    with no_slots(spark, tmp_path / "own", tasks=8):
        kill_task_manager(query, 1)
        batches = query.totals.batches
        until(lambda: query.totals.batches > batches + 2)
        for completed in (2, 3):
            query.trigger_checkpoint(60)
            assert query.totals.completed_checkpoints == completed
            record = opened()
            assert len(record.older_manifests) == 1 and record.losses, "the part of the missing one is an older one"
        assert query.restarts == [], "the replacement has no slot yet"

    def is_whole():
        query.trigger_checkpoint(60)
        return opened().older_manifests == []

    until(is_whole, "the replacement to be part of a checkpoint")
    batches = query.totals.batches
    until(lambda: query.totals.batches > batches + 2)
    query.trigger_checkpoint(60)
    query.stop()
    [offsets] = opened().offsets.values()
    assert counted(job) + sum(each.rows for each in query.losses) == sum(offsets.values())
    again = job.start()
    until(lambda: again.totals.batches > 1)
    again.trigger_checkpoint(60)
    again.stop()
    [offsets] = opened().offsets.values()
    assert counted(job) + sum(each.rows for each in again.losses) == sum(offsets.values())


def test_slots_of_standbys_are_counted_at_the_start(spark, tmp_path):
    job = new_job(spark, tmp_path, task_managers=2, standby_task_managers=2)
    numbers(job, 10).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match=r"needs 5 slots at least \(4 for TaskManagers, those that stand"):
        job.start()
