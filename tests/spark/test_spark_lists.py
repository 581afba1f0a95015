"""Lists of subtasks on Spark: a killed TaskManager's successor and the survivors see the entries of the checkpoint."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from spark_kit import kill_task_manager, new_job
from test_spark_streams import numbers

import holdfast as hf
from waiting import until


class Listing(hf.ProcessFunction):
    """Lists each row; puts out its view when it opened, as the number of entries and their sum."""

    seen = hf.UnionListState(pa.int64())

    def open(self, ctx: Any) -> None:
        union = self.seen.union()
        self.at_open = len(union), sum(union)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int, int]]:
        self.seen.add(row.v)
        yield (row.v, *self.at_open)


@pytest.mark.long
def test_after_a_kill_all_subtasks_see_the_entries_of_the_checkpoint(spark, tmp_path):
    job, sink = new_job(spark, tmp_path, task_managers=2, senders=1, max_rows_per_batch=50), hf.MemorySink(name="out")
    rows = numbers(job, 1_000_000).key_by("k")
    rows.process(Listing(), "v BIGINT, n BIGINT, total BIGINT", name="lists").write(sink)
    query = job.start()
    until(lambda: query.totals.batches > 2)
    query.trigger_checkpoint(60)
    kill_task_manager(query, 1)
    until(lambda: len(query.restarts) == 1)
    rows_then = query.totals.rows
    until(lambda: query.totals.rows > rows_then + 100)
    query.trigger_checkpoint(60)
    query.stop()
    found = sink.rows()
    values = [row["v"] for row in found]
    assert len(set(values)) == len(values)
    seen = {(row["n"], row["total"]) for row in found} - {(0, 0)}
    assert len(seen) == 1, "all subtasks opened with the entries of one checkpoint"
    n, total = seen.pop()
    before = [row["v"] for row in found if row["n"] == 0]
    assert (len(before), sum(before)) == (n, total), "which are those of the rows that were put out before it"
    listed = hf.read_state(job.storage, "lists", "seen").column("value").to_pylist()
    assert sorted(listed) == sorted(values)
