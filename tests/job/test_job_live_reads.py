"""State read while the job runs: committed rows of a key, from the owner, never those of a batch in flight."""

import threading

import job_kit
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import testing
from holdfast.errors import HoldfastError
from waiting import until

BACKENDS = [hf.HashMapState(), hf.RocksDBState(cache_max_entries=2), hf.RocksDBState(cache_max_entries=0)]
SOON = hf.processing_time("0s")


class Remembering(hf.ProcessFunction):
    """Keeps a total, a map and a timer for each key; waits in the midst of a batch if it is told to."""

    total = hf.ValueState(pa.int64(), default=0)
    by_value = hf.MapState(pa.int64(), pa.string())

    def process(self, row, ctx):
        self.total.update(self.total.value() + row.v)
        self.by_value.put(row.v, f"value {row.v}")
        if row.v < 0:
            self.total.clear()
        yield (row.k, row.v)


def remembering(storage, feed, gate=None, **settings):
    job = job_kit.new_job(storage, parallelism=4, task_managers=2, **settings)
    rows = job.read(feed).key_by("k").process(Remembering(), "k BIGINT, v BIGINT", name="keep")
    if gate is not None:
        rows = rows.map_batches(gate, "k BIGINT, v BIGINT")
    rows.write(hf.NoopSink(name="nothing"))
    return job


class Held:
    """A step after the operator that waits while it is closed: the batch is processed then, and not committed."""

    opened, reached = threading.Event(), threading.Event()

    def __call__(self, rows):
        self.reached.set()
        assert self.opened.wait(job_kit.WAIT_S_MAX)
        return rows


def row(query, k, state=None):
    return query.read_state("keep", state, key={"k": k}).drop_columns(["key_group"]).to_pylist()


@pytest.mark.parametrize("backend", BACKENDS, ids=["memory", "small-cache", "no-cache"])
def test_a_read_while_a_batch_is_in_flight_shows_the_rows_before_it(backend):
    feed, gate = job_kit.Feed(name="feed"), Held()
    gate.opened.set()
    query = testing.start(remembering(job_kit.new_storage(), feed, gate, state=backend), SOON)
    try:
        feed.put(job_kit.pairs(*((k, 10 + k) for k in range(8)), (1, 1)))
        query.processAllAvailable()
        before = query.read_state("keep", key={"k": 1}).schema.metadata[b"batch"]
        gate.opened.clear()
        gate.reached.clear()
        feed.put(job_kit.pairs((1, 500), (2, -1), (99, 7)))
        assert gate.reached.wait(job_kit.WAIT_S_MAX)
        assert row(query, 1) == [{"k": 1, "total": 12}]
        assert row(query, 2) == [{"k": 2, "total": 12}]
        assert row(query, 99) == row(query, 12345) == []
        assert sorted(row(query, 1, "by_value"), key=lambda entry: entry["map_key"]) == [
            {"k": 1, "map_key": 1, "value": "value 1"},
            {"k": 1, "map_key": 11, "value": "value 11"},
        ]
        assert query.read_state("keep", key={"k": 1}).schema.metadata[b"batch"] == before
        gate.opened.set()
        query.processAllAvailable()
        assert row(query, 1) == [{"k": 1, "total": 512}]
        assert row(query, 2) == [{"k": 2, "total": None}]
        assert row(query, 99) == [{"k": 99, "total": 7}]
        assert int(query.read_state("keep", key={"k": 1}).schema.metadata[b"batch"]) > int(before)
    finally:
        gate.opened.set()
        query.stop()


def test_reads_change_nothing_that_a_checkpoint_stores_and_a_restart_restores():
    storage, feed = job_kit.new_storage(), job_kit.Feed(name="feed")
    query = testing.start(remembering(storage, feed), SOON)
    try:
        for number in range(20):
            feed.put(job_kit.pairs((number % 5, number)))
            query.processAllAvailable()
            assert sum(len(row(query, k)) for k in range(7)) == min(5, number + 1)
        expected = {k: row(query, k) for k in range(7)}
        query.trigger_checkpoint(job_kit.WAIT_S_MAX)
    finally:
        query.stop()
    stored = hf.read_state(storage, "keep").drop_columns(["key_group"]).to_pylist()
    assert sorted(map(str, stored)) == sorted(str(each) for rows in expected.values() for each in rows)
    again = testing.start(remembering(storage, feed), SOON)
    try:
        until(lambda: {k: row(again, k) for k in range(7)} == expected)
    finally:
        again.stop()


def test_read_state_live_asks_the_query_of_this_program_and_says_where_else_to_look():
    storage, feed = job_kit.new_storage(), job_kit.Feed(name="feed")
    query = testing.start(remembering(storage, feed), SOON)
    try:
        feed.put(job_kit.pairs((1, 4)))
        query.processAllAvailable()
        assert hf.read_state(storage, "keep", key={"k": 1}, live=True).column("total").to_pylist() == [4]
        with pytest.raises(HoldfastError, match="give a key"):
            hf.read_state(storage, "keep", live=True)
        with pytest.raises(HoldfastError, match="the key names user"):
            query.read_state("keep", key={"user": 1})
        with pytest.raises(HoldfastError, match="has no operator 'kept'; it has 'keep'"):
            query.read_state("kept", key={"k": 1})
        with pytest.raises(HoldfastError, match="is none of its keys"):
            query.read_state("keep", key={"k": "x"})
        with pytest.raises(HoldfastError, match="has no state 'gone'"):
            query.read_state("keep", "gone", key={"k": 1})
    finally:
        query.stop()
    with pytest.raises(HoldfastError, match="has ended"):
        query.read_state("keep", key={"k": 1})
    with pytest.raises(HoldfastError, match="no query runs on the storage"):
        hf.read_state(storage, "keep", key={"k": 1}, live=True)
