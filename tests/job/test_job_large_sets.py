"""A key's distinct values that are rows of their own: over checkpoints, restarts and another number of subtasks."""

import pyarrow as pa
import pytest
from job_kit import new_job, new_storage

import holdfast as hf
from holdfast.functions.aggregates.large_sets import SET_MAX
from holdfast.settings import StateBackend
from holdfast.storage.store import open_store
from holdfast.testing import TestSource, run


def values(start: int, stop: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": [value % 2 for value in range(start, stop)], "v": list(range(start, stop))})


@pytest.mark.parametrize(
    "state", [hf.HashMapState(), hf.RocksDBState(cache_max_entries=100)], ids=["hashmap", "rocksdb"]
)
def test_a_restart_knows_the_values_that_are_rows(state: StateBackend) -> None:
    storage = new_storage()
    store = open_store(storage)
    batches = [values(0, 100), values(50, 3 * SET_MAX), values(0, 3 * SET_MAX + 3)]
    for count, parallelism in ((2, 1), (3, 3)):
        job = new_job(storage, parallelism=parallelism, max_parallelism=8, state=state)
        counted = job.read(TestSource(batches[:count], "k BIGINT, v BIGINT", name="values"))
        sink = hf.MemorySink(name="out")
        counted.key_by("k").aggregate(n=hf.count_distinct("v"), name="distinct").write(sink)
        run(job, store=store)
    found = {row["k"]: row["n"] for row in sink.rows()}
    assert found == {0: 3 * SET_MAX // 2 + 2, 1: 3 * SET_MAX // 2 + 1}
