"""Broadcast state in jobs that drop: a replacement whose base lacks rules does not join, everybody goes back."""

import pytest
from job_kit import Feed, new_job, new_storage, tuples
from test_job_broadcast import RULES, limited, rule

import holdfast as hf
from holdfast.testing import start
from holdfast.testing.local import LocalCluster
from waiting import until


@pytest.mark.parametrize("known", [True, False], ids=["in the checkpoint", "past the checkpoint"])
def test_a_job_that_drops_goes_back_where_a_replacement_would_lack_rules(known) -> None:
    orders, rules, sink = Feed(name="orders"), Feed(RULES, name="rules"), hf.MemorySink()
    clusters: list[LocalCluster] = []
    job = new_job(parallelism=4, task_managers=2, on_loss="drop")
    limited(job, orders, rules).write(sink)
    query = start(job, hf.processing_time("0s"), on_cluster=clusters.append)
    rules.put([rule(1, 10)])
    until(lambda: query.totals.rows == 1)
    if known:
        query.trigger_checkpoint(60)
    clusters[0].kill(1)
    orders.put({"k": k, "v": 1} for k in range(20))
    until(lambda: bool(query.losses) if known else len(query.restarts) == 1)
    orders.put({"k": k, "v": 6} for k in range(20))
    query.processAllAvailable()
    query.stop()
    assert {limit for _, _, limit, _ in tuples(sink)} == {10}
    lost = sum(loss.rows for loss in query.losses)
    assert len(sink.rows()) + lost == 40 and bool(query.losses) is known
    assert bool(query.restarts) is not known


def test_batches_of_an_earlier_start_do_not_count_where_a_job_drops() -> None:
    """Each start numbers its batches anew: rules of batch 1 are newer than a record of an earlier start's batch 5."""
    storage, orders, rules = new_storage(), Feed(name="orders"), Feed(RULES, name="rules")
    clusters: list[LocalCluster] = []

    def begin(sink: hf.MemorySink) -> hf.Query:
        job = new_job(storage, parallelism=4, task_managers=2, on_loss="drop")
        limited(job, orders, rules).write(sink)
        return start(job, hf.processing_time("0s"), on_cluster=clusters.append)

    query = begin(hf.MemorySink())
    for k in range(5):
        orders.put([{"k": k, "v": k}])
        query.processAllAvailable()
    query.trigger_checkpoint(60)
    query.stop()
    sink = hf.MemorySink()
    query = begin(sink)
    rules.put([rule(1, 10)])
    until(lambda: query.totals.rows == 1)
    clusters[-1].kill(1)
    orders.put({"k": k, "v": 1} for k in range(20))
    until(lambda: bool(query.restarts or query.losses))
    query.processAllAvailable()
    query.stop()
    assert not query.losses and {limit for _, _, limit, _ in tuples(sink)} == {10} and len(sink.rows()) == 20
