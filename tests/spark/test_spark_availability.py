"""Functions on executors refuse to be cut; the answers come with commits, over Flight."""

from pathlib import Path
from typing import Any

import pytest
from spark_kit import kill_task_manager, new_job, write_rows

import holdfast as hf
from waiting import until

pytestmark = pytest.mark.spark

BEGIN, END = 0, 9


class Sums(hf.ProcessFunction):
    """Sums up the values between BEGIN and END in memory: a cut in between would lose it."""

    def __init__(self) -> None:
        self.sums: dict[int, int] = {}

    def process(self, row: Any, ctx: Any) -> Any:
        if row.v == BEGIN:
            self.sums[row.k] = 0
        elif row.v == END:
            yield row.k, self.sums.pop(row.k)
        else:
            self.sums[row.k] += row.v

    def is_snapshot_available(self) -> hf.SnapshotAvailability:
        if self.sums:
            return hf.SnapshotAvailability.SOFT_FAILURE.because(f"sums of {sorted(self.sums)} are open")
        return hf.SnapshotAvailability.AVAILABLE


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_a_function_holds_in_memory_survives_a_kill_since_it_was_not_cut_in_between(
    spark: Any, tmp_path: Path
) -> None:
    often = hf.CheckpointConfig(trigger=hf.every("100ms"))
    (tmp_path / "in").mkdir()
    sink, job = hf.MemorySink(), new_job(spark, tmp_path, checkpoint=often, task_managers=1)
    rows = hf.FileSource(f"{tmp_path}/in/*.parquet", schema="k BIGINT, v BIGINT", name="rows")
    job.read(rows).key_by("k").process(Sums(), "k BIGINT, total BIGINT", name="sums").write(sink)
    query = job.start(hf.processing_time())
    try:
        write_rows(tmp_path / "in" / "1.parquet", [{"k": 1, "v": v} for v in (BEGIN, 3, END, BEGIN, 4)])
        until(lambda: query.totals.refused_checkpoints > 1)
        assert "(soft): sums of [1] are open" in query.status["message"]
        assert query.totals.completed_checkpoints == 0
        kill_task_manager(query, 0)
        until(lambda: len(query.restarts) == 1)
        write_rows(tmp_path / "in" / "2.parquet", [{"k": 1, "v": v} for v in (5, END)])
        query.processAllAvailable()
    finally:
        query.stop()
    assert [tuple(row.values()) for row in sink.rows()] == [(1, 3), (1, 9)]
