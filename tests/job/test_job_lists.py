"""Lists of subtasks in whole jobs: whatever becomes of the processes, nothing is lost, doubled or claimed twice.

The function lists each row's number. So the entries of all subtasks are 0, 1, 2, … as far as the checkpoint goes, and
each subtask sees just that when it opens.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from job_kit import Feed, manifests_and_logs, new_job, new_storage, own_logs, store_of

import holdfast as hf
from holdfast import failpoints
from holdfast.errors import CorruptObject, QueryFailed
from holdfast.testing import Fault, FaultyStore, start
from holdfast.testing.local import LocalCluster
from sampling import some
from waiting import until

Opened = tuple[int, list[int], list[int]]
"""Subtask, the union, own entries."""
OPENED: list[Opened] = []


class Listing(hf.ProcessFunction):
    seen = hf.UnionListState(pa.int64())
    share = hf.SplitListState(pa.int64())

    def open(self, ctx: Any) -> None:
        union = self.seen.union()
        OPENED.append((ctx.subtask, union, self.seen.get()))
        self.at_open = len(union)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.seen.add(row.v)
        self.share.add(row.v)
        yield row.v, self.at_open


class ListingJob:
    """The job on a feed, with a checkpoint whenever the test asks for it."""

    def __init__(self, storage: str | None = None, feed: Feed | None = None, store: Any = None, **settings: Any):
        self.storage, self.feed = storage or new_storage(), feed or Feed(name="feed")
        self.sink, clusters = hf.MemorySink(name="out"), list[LocalCluster]()
        settings = {"parallelism": 4, "task_managers": 2, "max_parallelism": 128} | settings
        job = new_job(self.storage, **settings)
        rows = job.read(self.feed).key_by("k")
        rows.process(Listing(), "v BIGINT, at_open BIGINT", name="lists").write(self.sink)
        OPENED.clear()
        self.parallelism = settings["parallelism"]
        self.query = start(
            job,
            hf.processing_time("0s"),
            store=None if store is None else store(store_of(job)),
            on_cluster=clusters.append,
        )
        self.cluster = clusters[0]

    def commit(self, rows: int = 30) -> None:
        begin, before = len(self.feed.rows), self.query.totals.rows
        self.feed.put({"k": v % 11, "v": v} for v in range(begin, begin + rows))
        until(lambda: self.query.totals.rows >= before + rows)

    def checkpoint(self) -> None:
        self.query.trigger_checkpoint(60)

    def seen(self) -> int:
        """Return the size of the union that each subtask saw last: the first entries, each with an owner."""
        newest = {subtask: (union, own) for subtask, union, own in OPENED}
        assert set(newest) == set(range(self.parallelism))
        unions = {tuple(union) for union, _ in newest.values()}
        assert len(unions) == 1
        union = unions.pop()
        assert sorted(union) == list(range(len(union)))
        assert sorted(v for _, own in newest.values() for v in own) == list(range(len(union)))
        return len(union)


@pytest.fixture
def jobs():
    made: list[ListingJob] = []

    def make(*args: Any, **settings: Any) -> ListingJob:
        made.append(ListingJob(*args, **settings))
        return made[-1]

    yield make
    failpoints.disarm()
    for each in made:
        each.query.stop()


@pytest.mark.parametrize(
    ("backend", "changelog"),
    [
        (hf.HashMapState(), True),
        (hf.RocksDBState(cache_max_entries=5), False),
        pytest.param(hf.HashMapState(), False, marks=pytest.mark.long),
        pytest.param(hf.RocksDBState(cache_max_entries=5), True, marks=pytest.mark.long),
    ],
)
def test_entries_are_restored_at_any_parallelism(jobs, backend, changelog):
    job, total = jobs(checkpoint=hf.CheckpointConfig(trigger=hf.manual(), changelog=changelog), state=backend), 0
    assert job.seen() == 0
    for parallelism in (1, 7, 2):
        job.commit()
        job.checkpoint()
        job.commit(5)
        job.query.processAllAvailable()
        job.query.stop()
        total += 35
        job = jobs(
            job.storage,
            job.feed,
            parallelism=parallelism,
            task_managers=min(2, parallelism),
            checkpoint=hf.CheckpointConfig(trigger=hf.manual(), changelog=changelog),
            state=backend,
        )
        job.query.processAllAvailable()
        assert job.seen() == total


@pytest.mark.parametrize(
    "settings",
    some([{}, {"on_loss": "restart"}, {"standby_task_managers": 1}, {"on_loss": "drop"}], 0, 3),
    ids=["rewind", "restart", "standby", "drop"],
)
def test_after_a_loss_subtasks_see_the_entries_of_the_checkpoint(jobs, settings):
    job = jobs(**settings)
    job.commit()
    job.checkpoint()
    job.commit()
    OPENED.clear()
    job.cluster.kill(1)
    until(lambda: len(job.query.restarts) == 1 or {subtask for subtask, *_ in OPENED} >= {2, 3})
    if settings.get("on_loss") == "drop":
        assert {subtask: sorted(union) for subtask, union, _ in OPENED} == {key: list(range(30)) for key in (2, 3)}
        return
    job.commit()
    assert job.seen() == 30
    job.query.processAllAvailable()
    job.query.stop()
    again = jobs(job.storage, job.feed, parallelism=3, task_managers=1)
    again.query.processAllAvailable()
    assert again.seen() == 90
    assert sorted(row["v"] for row in job.sink.rows()) == list(range(90))


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("taskmanager.commit.between", marks=pytest.mark.long),
        "taskmanager.cut.uploaded",
        pytest.param("jobmaster.acknowledged", marks=pytest.mark.long),
    ],
)
def test_a_loss_at_any_step_of_a_checkpoint_loses_no_entry(jobs, at):
    job = jobs()
    job.commit()
    job.checkpoint()
    job.commit()
    victims = [1]
    failpoints.arm(at, lambda: job.cluster.kill(victims.pop()) if victims else None)
    job.commit()
    job.query.processAllAvailable()
    until(lambda: len(job.query.restarts) == 1)
    job.commit()
    job.query.processAllAvailable()
    job.query.stop()
    again = jobs(job.storage, job.feed)
    again.query.processAllAvailable()
    assert again.seen() == 120


def test_survivors_read_the_lists_only_and_each_object_once(jobs):
    reads: list[str] = []

    def noting(store: Any) -> Any:
        def note(operation: str, name: str) -> Fault | None:
            if operation.startswith("get") and name.startswith(("dstl/", "shared/")):
                reads.append(name)
            return None

        return FaultyStore(store, note)

    job = jobs(store=noting, task_manager=hf.TaskManagerConfig(local_recovery=False), checkpoint=own_logs())
    job.commit()
    job.checkpoint()
    job.commit()
    reads.clear()
    job.cluster.kill(1)
    until(lambda: len(job.query.restarts) == 1)
    job.commit()
    assert job.seen() == 30
    assert reads and max(map(reads.count, reads)) <= 2, "once for each of two TaskManagers"


def test_savepoints_and_retained_checkpoints_have_the_lists(jobs):
    job = jobs(checkpoint=hf.CheckpointConfig(trigger=hf.manual(), retained=3))
    job.commit()
    job.checkpoint()
    number = max(each.number for each in job.query.checkpoints if each.number)
    saved, saved_in = job.query.savepoint(new_storage()), new_storage()
    job.commit()
    job.checkpoint()
    job.query.processAllAvailable()
    job.query.stop()
    other = jobs(saved_in, job.feed, start_from=saved.url, parallelism=3)
    other.query.processAllAvailable()
    assert other.seen() == 30
    other.query.stop()
    back = jobs(job.storage, job.feed, start_from=number, publish_again=True)
    back.query.processAllAvailable()
    assert back.seen() == 30


def test_lists_are_shown_as_other_states_are(jobs):
    job = jobs()
    job.commit(6)
    job.checkpoint()
    job.query.processAllAvailable()
    found = hf.read_state(job.storage, "lists", "seen")
    assert found.column_names == ["position", "value", "key_group"]
    assert sorted(found.column("value").to_pylist()) == list(range(6))
    with pytest.raises(hf.HoldfastError, match="'seen' of operator 'lists' belongs to subtasks and not to keys"):
        hf.read_state(job.storage, "lists", "seen", key={"k": 1})


def test_a_list_whose_object_is_damaged_is_refused_by_name(jobs):
    job = jobs(checkpoint=own_logs())
    job.commit()
    job.checkpoint()
    job.query.processAllAvailable()
    job.query.stop()
    broken: dict[str, bytes] = {}

    def damaged(store: Any) -> Any:
        for name in manifests_and_logs(store)[1]:
            broken[name] = store.get(name)
            store.put(name, broken[name][:-7] + b"damaged")
        return store

    with pytest.raises((QueryFailed, CorruptObject), match="lists"):
        again = jobs(job.storage, job.feed, store=damaged)
        again.query.processAllAvailable()


def test_lists_are_refused_where_there_can_be_none():
    job = new_job()
    rows = job.read(Feed("k BIGINT, at TIMESTAMP, v BIGINT", name="feed")).with_watermark("at", "1s")
    windows = rows.key_by("k", hf.window("at", "1min"))
    windows.process(Listing(), "v BIGINT, at_open BIGINT", name="lists").write(hf.NoopSink(name="out"))
    with pytest.raises(hf.JobRefused, match="Listing has states or timers, but behind a window"):
        start(job, hf.processing_time("0s"))


def test_lists_begin_with_the_rows_that_a_user_gives(jobs):
    given = pa.table({"position": [3, 1, 2, 1], "value": [103, 100, 102, 101]})
    job = jobs(initial_state={"lists": {"seen": given, "share": given}})
    entries = [100, 101, 102, 103]
    assert [union for _, union, _ in OPENED] == [entries] * 4
    assert sorted(entry for _, _, own in OPENED for entry in own) == entries
    assert max(len(own) for _, _, own in OPENED) == 1
    job.commit()
    job.checkpoint()
    job.query.processAllAvailable()
    job.query.stop()
    shown = hf.read_state(job.storage, "lists", "share").select(["position", "value"]).to_pylist()
    assert {row["value"] for row in shown} > set(entries)
    again = jobs(job.storage, job.feed, parallelism=7)
    assert [sorted(union) for _, union, _ in OPENED] == [sorted(row["value"] for row in shown)] * 7
    assert again.query.isActive


def test_initial_state_that_does_not_fit_a_list_is_refused_by_name(jobs):
    for given, message in [
        ({"k": [1], "value": [1]}, "state 'seen': its columns are k, value; expected position, value"),
        ({"position": pa.array([None], pa.int64()), "value": [1]}, "state 'seen': column 'position' has nulls"),
        ({"position": [0], "value": ["a"]}, "column 'value' is string, expected int64"),
    ]:
        with pytest.raises(hf.JobRefused, match=message):
            jobs(initial_state={"lists": {"seen": pa.table(given)}})


def test_a_state_that_becomes_a_list_is_refused_by_name(jobs):
    job = jobs()
    job.commit()
    job.checkpoint()
    job.query.processAllAvailable()
    job.query.stop()

    class Counted(hf.ProcessFunction):
        seen = hf.ValueState(pa.int64())

        def process(self, row: Any, ctx: Any) -> None:
            self.seen.update(row.v)

    other = new_job(job.storage, parallelism=4, max_parallelism=128)
    other.read(job.feed).key_by("k").process(Counted(), "v BIGINT", name="lists").write(hf.NoopSink(name="out"))
    with pytest.raises(hf.JobRefused, match="state 'seen': stored as a list of the subtask, declared as a value"):
        start(other, hf.processing_time("0s"))
