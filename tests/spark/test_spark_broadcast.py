"""Broadcast state on Spark: with senders that stay and with short Spark jobs, and over the death of a TaskManager."""

from collections.abc import Iterator
from typing import Any

import pytest
from spark_kit import kill_task_manager, new_job, tuples, write_rows

import holdfast as hf
from sampling import quick


class Ruled(hf.ProcessFunction):
    """Gives each order with all rules of its batch."""

    rules = hf.BroadcastState()

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, str]]:
        yield row.k, ", ".join(f"{key}: {value.limit}" for key, value in self.rules.items())


@pytest.mark.parametrize("senders", quick("senders that stay", of={"senders that stay": None, "short Spark jobs": 0}))
def test_all_subtasks_have_the_rules_though_each_task_manager_dies_once(spark, tmp_path, senders):
    for name in ("rules", "orders"):
        (tmp_path / name).mkdir()
    job = new_job(spark, tmp_path, parallelism=3, task_managers=2, senders=senders)
    rules = job.read(hf.FileSource(f"{tmp_path}/rules/*.parquet", schema="kind STRING, limit BIGINT", name="rules"))
    orders = job.read(hf.FileSource(f"{tmp_path}/orders/*.parquet", schema="k BIGINT", name="orders"))
    known = rules.transform(lambda df: df.where("kind != 'none'")).key_by("kind")
    sink = hf.MemorySink()
    orders.key_by("k").process(Ruled(), "k BIGINT, rules STRING", broadcast={"rules": known}).write(sink)
    query = job.start(hf.processing_time())
    try:
        expected = []
        steps = [[("a", 1), ("b", 2)], [("a", 3), ("none", 0)], [("b", None), ("c", 4)]]
        shown = ["a: 1, b: 2", "a: 3, b: 2", "a: 3, c: 4"]
        for number, (step, text) in enumerate(zip(steps, shown, strict=True)):
            rows = [{"kind": kind, "limit": limit} for kind, limit in step]
            write_rows(tmp_path / f"rules/{number}.parquet", rows)
            query.processAllAvailable()
            if number:
                kill_task_manager(query, number % 2)
            write_rows(tmp_path / f"orders/{number}.parquet", [{"k": k} for k in range(12)])
            query.processAllAvailable()
            expected += [(k, text) for k in range(12)]
        assert tuples(sink) == sorted(expected)
        assert len(query.restarts) == 2
    finally:
        query.stop()
