"""Jobs without a changelog: a checkpoint is the tables as they are at its cut; switched off and on between starts."""

import pyarrow as pa
import pytest
from job_kit import Feed, new_job, new_storage, newest, pairs, script, store_of

import holdfast as hf
from holdfast import failpoints
from holdfast.formats.handles import TableHandle
from holdfast.formats.manifests import load_manifests
from holdfast.journal.fence import journal_numbers, newest_checkpoint, read_record
from holdfast.testing import run, start
from sampling import some
from waiting import until

BACKENDS = [hf.HashMapState(), hf.RocksDBState(), hf.RocksDBState(cache_max_entries=5)]
OFTEN = hf.every("5ms")


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


class Sum(hf.ProcessFunction):
    total = hf.ValueState(pa.int64(), default=0)
    seen = hf.MapState(pa.int64(), pa.int64(), default=0)

    def process(self, row, ctx):
        self.total.update(self.total.value() + row.v)
        self.seen.put(row.v, self.seen.get(row.v) + 1)
        yield {"k": row.k, "total": self.total.value(), "n": sum(n for _, n in self.seen.items())}


def checkpoint(on: bool, trigger: object = None) -> hf.CheckpointConfig:
    return hf.CheckpointConfig(trigger=trigger or hf.manual(), changelog=on)


def summed(source, sink: hf.MemorySink, storage: str, on: bool, trigger: object = None, **settings) -> hf.Job:
    job = new_job(storage, checkpoint=checkpoint(on, trigger), **settings)
    job.read(source).key_by("k").process(Sum(), "k BIGINT, total BIGINT, n BIGINT", name="sum").write(sink)
    return job


def handles(job: hf.Job) -> list[TableHandle]:
    """Handles of all tables in the newest checkpoint; older ones may be about to be deleted."""
    store = store_of(job)
    _, record = newest_checkpoint(journal_numbers(store), lambda number: read_record(store, number))
    assert record is not None
    manifests = load_manifests(store, record.manifests)
    return [table for manifest in manifests for table in manifest.tables]


@pytest.mark.parametrize("state", some(BACKENDS, 1, 2), ids=str)
def test_it_is_switched_between_starts_also_where_the_parallelism_changes(state):
    storage, sink = new_storage(), hf.MemorySink(name="out")
    switched = (True, False, True, False, False)
    batches = [pairs(*((k % 40, k + start) for k in range(60))) for start in range(len(switched))]
    shapes = [(1, 1), (4, 2), (3, 1), (2, 2), (1, 1)]
    for number, (on, (parallelism, task_managers)) in enumerate(zip(switched, shapes, strict=True), 1):
        source = script(*batches[:number], name="script")
        shape = {"parallelism": parallelism, "task_managers": task_managers, "max_parallelism": 16}
        job = summed(source, sink, storage, on, state=state, **shape)
        run(job)
        found = handles(job)
        assert {table.table for table in found} >= {"state"}
        assert not any(table.log for table in found) or on
        assert any(table.log for table in found) or not on
    rows = [row for batch in batches for row in batch]
    expected = {
        k: {"total": sum(row["v"] for row in rows if row["k"] == k), "n": sum(row["k"] == k for row in rows)}
        for k in range(40)
    }
    assert newest(sink.rows(), "k") == expected


@pytest.mark.parametrize("state", some([BACKENDS[0], BACKENDS[2]], 0), ids=str)
def test_what_is_restored_is_exactly_the_cut_however_often_task_managers_are_killed_meanwhile(state):
    storage, sink, feed, clusters = new_storage(), hf.MemorySink(name="out"), Feed(name="feed"), []
    job = summed(feed, sink, storage, False, OFTEN, state=state, parallelism=2, task_managers=2, max_rows_per_batch=7)
    query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
    rows = pairs(*((k % 11, k) for k in range(300)))
    for stop in (150, 300):
        done = len(query.totals.checkpoints)
        feed.put(rows[stop - 150 : stop])
        until(lambda done=done: len(query.totals.checkpoints) > done)
        clusters[0].kill(stop // 150 % 2)
    query.processAllAvailable()
    query.stop()
    assert len(query.restarts) >= 1
    expected = {
        k: {"total": sum(row["v"] for row in rows if row["k"] == k), "n": sum(row["k"] == k for row in rows)}
        for k in range(11)
    }
    assert newest(sink.rows(), "k") == expected


def test_a_commit_waits_until_the_cut_before_it_is_done_and_not_for_its_uploads(tmp_path):
    held, uploading = tmp_path / "held", tmp_path / "uploading"
    sink, feed = hf.MemorySink(name="out"), Feed(name="feed")
    query = start(summed(feed, sink, new_storage(), False), hf.processing_time("0s"))
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.rows == 1)
    failpoints.arm("taskmanager.cut.before", f"pause:{held}@1")
    failpoints.arm("materialize.upload.before", f"pause:{uploading}@1")
    promise = query._master.trigger_checkpoint()
    until(held.exists)
    feed.put(pairs((1, 2)))
    until(lambda: query.lastProgress is not None and query._master.parts.control._coordinator._shared.committing)
    assert query.totals.rows == 1
    held.unlink()
    until(lambda: query.totals.rows == 2)
    until(uploading.exists)
    assert not promise.done()
    uploading.unlink()
    promise.result(60)
    assert [each.batch for each in query.totals.checkpoints] == [1]
    query.stop()


def test_nothing_new_is_stored_where_nothing_was_changed_since_the_last_one():
    storage, sink, feed = new_storage(), hf.MemorySink(name="out"), Feed(name="feed")
    job = new_job(storage, checkpoint=checkpoint(False), parallelism=2, max_parallelism=2)
    job.read(feed).key_by("k").process(Sum(), "k BIGINT, total BIGINT, n BIGINT", name="sum").write(sink)
    query = start(job, hf.processing_time("0s"))
    feed.put(pairs(*((k, 1) for k in range(20))))
    query.processAllAvailable()
    first = {part.object for table in handles(job) for part in table.materialized}
    for _ in range(3):
        feed.put(pairs((0, 1)))
        query.processAllAvailable()
    last = {part.object for table in handles(job) for part in table.materialized}
    query.stop()
    assert len(first & last) == len(first) // 2, "one of the two subtasks saw no row"


def test_a_running_query_refuses_to_switch():
    query = start(summed(Feed(name="feed"), hf.MemorySink(), new_storage(), True), hf.processing_time("0s"))
    with pytest.raises(hf.SettingsError, match="only between two starts"):
        query.update(checkpoint=hf.CheckpointConfig(changelog=False))
    query.stop()


def test_the_setting_is_a_changelog_config_or_a_bool():
    with pytest.raises(hf.SettingsError, match="changelog='off': allowed is a ChangelogConfig"):
        hf.CheckpointConfig(changelog="off")  # type: ignore[arg-type]
