"""The cluster of this process: a TaskManager that is killed reaches nothing any more, and nobody reaches it."""

import pytest

import holdfast as hf
from holdfast.errors import QueryFailed
from holdfast.testing import TestSource, start
from holdfast.testing.local import LocalCluster
from holdfast.testing.run import run
from waiting import until


def counting(storage: str, batches: int) -> tuple[hf.Job, hf.MemorySink]:
    job = hf.Job(
        None, name="local", storage=storage, task_managers=2, parallelism=4,
        checkpoint=hf.CheckpointConfig(trigger=hf.every("10ms")),
    )  # fmt: skip
    sink = hf.MemorySink()
    rows = [[{"k": key} for key in range(8)] for _ in range(batches)]
    job.read(TestSource(rows, "k BIGINT")).key_by("k").aggregate(n=hf.count()).write(sink)
    return job, sink


def test_a_killed_task_manager_is_replaced_and_every_row_counts_once() -> None:
    clusters: list[LocalCluster] = []
    job, sink = counting("memory://killed-once", batches=60)
    query = start(job, hf.available_now(), on_cluster=clusters.append)
    until(lambda: query.totals.batches > 5, "the first batches")
    clusters[0].kill(1)
    query.awaitTermination(60)
    assert query.exception() is None
    assert len(query.restarts) == 1
    assert {row["k"]: row["n"] for row in sink.rows()} == dict.fromkeys(range(8), 60)


def test_killing_a_task_manager_that_is_not_there_does_nothing() -> None:
    clusters: list[LocalCluster] = []
    job, _ = counting("memory://nobody", batches=2)
    query = start(job, hf.available_now(), on_cluster=clusters.append)
    clusters[0].kill(17)
    query.awaitTermination(60)
    assert query.restarts == []


def test_a_run_raises_the_error_that_ended_the_query() -> None:
    job = hf.Job(None, name="raises", storage="memory://raises")

    def broken(rows: object) -> object:
        raise ValueError("a mistake of the user")

    stream = job.read(TestSource([[{"k": 1}]], "k BIGINT"))
    stream.map_batches(broken, "k BIGINT").write(hf.MemorySink())  # type: ignore[arg-type]
    with pytest.raises(QueryFailed, match="a mistake of the user"):
        run(job)
