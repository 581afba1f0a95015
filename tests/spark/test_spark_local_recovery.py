"""Local recovery on Spark: a TaskManager that takes the place of a killed TaskManager reads its copies on the disk."""

import pytest
from spark_kit import kill_task_manager, new_job, newest, write_rows

import holdfast as hf
from sampling import quick
from waiting import until

KEYS = 500
BACKENDS = {"hashmap": hf.HashMapState(), "rocksdb": hf.RocksDBState(cache_max_entries=50)}


def recovered(query: hf.Query, where: str) -> int:
    return int((query.lastProgress or {}).get("metrics", {}).get(f"recoveryBytesFrom{where}", 0))


@pytest.mark.parametrize("state", quick("rocksdb", of=BACKENDS))
def test_a_killed_task_managers_state_is_read_from_the_local_disk(spark, tmp_path, state):
    folder, sink = tmp_path / "in", hf.MemorySink()
    folder.mkdir()
    job = new_job(
        spark,
        tmp_path,
        parallelism=1,
        state=state,
        task_manager=hf.TaskManagerConfig(local_recovery=True, local_dir=str(tmp_path / "local")),
    )
    rows = job.read(hf.FileSource(f"{folder}/*.parquet", schema="k BIGINT, v BIGINT"))
    rows.key_by("k").aggregate(emit="changes", total=hf.sum("v"), name="total").write(sink)
    query = job.start(hf.processing_time())
    try:
        write_rows(folder / "0.parquet", [{"k": k, "v": 1} for k in range(KEYS)])
        query.processAllAvailable()
        query.trigger_checkpoint(60)
        kill_task_manager(query, 0)
        write_rows(folder / "1.parquet", [{"k": k, "v": 10} for k in range(KEYS)])
        until(lambda: bool(query.restarts) or query.exception() is not None)
        query.processAllAvailable()
        assert newest(sink) == dict.fromkeys(range(KEYS), 11)
        until(lambda: recovered(query, "Local") > 0)
        assert recovered(query, "Store") == 0
    finally:
        query.stop()
    assert query.exception() is None
