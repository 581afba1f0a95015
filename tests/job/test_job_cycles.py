"""Checkpoints leave no objects that hold each other: such cycles wait for a garbage collection, which is rare."""

import gc
from collections import Counter

import pytest
from job_kit import Feed, new_job, new_storage

import holdfast as hf
from holdfast.storage.store import open_store
from holdfast.testing import start
from waiting import until

CHECKPOINTS = 12


@pytest.mark.parametrize(
    "state", [hf.RocksDBState(cache_max_entries=20), pytest.param(hf.HashMapState(), marks=pytest.mark.long)], ids=str
)
def test_checkpoints_and_materializations_leave_no_cycles(state, tmp_path):
    storage, feed = new_storage(), Feed(name="feed")
    job = new_job(
        storage,
        state=state,
        parallelism=2,
        checkpoint=hf.CheckpointConfig(trigger=hf.manual(), changelog=hf.ChangelogConfig(log_handles_max=4)),
        task_manager=hf.TaskManagerConfig(local_dir=str(tmp_path), local_recovery=True),
    )
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="counts").write(hf.NoopSink())
    query = start(job, hf.processing_time("0s"), store=open_store(storage))

    def checkpoints(count):
        for number in range(count):
            feed.put({"k": k, "v": number} for k in range(50))
            query.processAllAvailable()
            query.trigger_checkpoint(60)

    try:
        checkpoints(3)  # kernels and caches are there
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        checkpoints(CHECKPOINTS)
        until(lambda: query.totals.completed_checkpoints >= CHECKPOINTS)
        gc.collect()
        own = Counter(type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("holdfast."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        query.stop()
    assert own.total() < CHECKPOINTS, own
