"""RocksDB's memory follows from `TaskManagerConfig(memory=…)`, whatever the number of tables."""

import re
from pathlib import Path

import pytest
from job_kit import new_job

import holdfast as hf
from holdfast.errors import QueryFailed
from holdfast.settings import StateBackend
from holdfast.state.base_rocksdb import RocksDBBase
from holdfast.state.rocksdb_memory import WRITE_BUFFER_BYTES_MAX, RocksDBMemory
from holdfast.testing import run
from waiting import until

MEBIBYTE = 1 << 20


def test_many_tables_share_one_bound_of_memory(tmp_path: Path) -> None:
    bound = 8 * MEBIBYTE
    memory = RocksDBMemory(2 * bound, tables=12)
    bases = [RocksDBBase(str(tmp_path), memory) for _ in range(12)]
    try:
        for step in range(40):
            for place, base in enumerate(bases):
                keys = [f"{place}-{step}-{number:06d}".encode() for number in range(200)]
                base.write(keys, [b"x" * 400] * 200, [])
                assert base.read(keys[:1]) == [b"x" * 400]
            # Buffers that are being written out come on top, until a busy machine has written them.
            until(lambda: sum(each.memory_bytes for each in bases) <= 1.6 * bound)
    finally:
        for base in bases:
            base.close()


def test_a_table_with_room_has_large_write_buffers_and_each_of_many_has_small_ones() -> None:
    assert RocksDBMemory(1024 * MEBIBYTE).open() == WRITE_BUFFER_BYTES_MAX
    memory = RocksDBMemory(96 * MEBIBYTE, tables=8)
    assert [memory.open() for _ in range(8)] == [2 * MEBIBYTE] * 8
    assert memory.open() < 2 * MEBIBYTE  # an operator may have several tables
    memory.close()


def test_rocksdb_writes_no_growing_report_of_itself(tmp_path: Path) -> None:
    base = RocksDBBase(str(tmp_path))
    try:
        options = next((base.folder / "db").glob("OPTIONS-*")).read_text()
        assert re.search(r"stats_dump_period_sec=0\b", options) and re.search(r"max_log_file_size=262144\b", options)
    finally:
        base.close()


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (hf.HashMapState(), "use more TaskManagers or RocksDBState"),
        (
            hf.RocksDBState(cache_max_entries=1_000_000),
            r"keep fewer rows in memory \(cache_max_entries=1,000,000",
        ),
    ],
)
def test_the_advice_for_state_that_is_too_large_fits_the_backend(state: StateBackend, advice: str) -> None:
    job = new_job(state=state, task_manager=hf.TaskManagerConfig(memory="16MB"), max_rows_per_batch=100_000)
    job.read(hf.SequenceSource(2_000_000, name="s")).key_by("value").aggregate(n=hf.count(), name="a").write(
        hf.NoopSink()
    )
    with pytest.raises(QueryFailed, match=f"StateTooLarge: .*{advice}"):
        run(job)
