"""Retained checkpoints are kept over restarts with all that they name, and a start goes back to any of them."""

from typing import Any

import pytest
from job_kit import Feed, new_job, new_storage, newest, pairs, store_of

import holdfast as hf
from holdfast.maintenance.verify import verify
from holdfast.stored_state.opened import retained
from holdfast.testing import start

LIVE = hf.processing_time()


def made(storage: str, feed: Feed, sink: hf.MemorySink, retained: int = 3, **settings: Any) -> hf.Job:
    settings.setdefault("checkpoint", hf.CheckpointConfig(trigger=hf.manual(), retained=retained))
    job = new_job(storage, **settings)
    job.read(feed).key_by("k").aggregate(total=hf.sum("v"), name="sums").write(sink)
    return job


def checkpoints(query: hf.Query, feed: Feed, values: range) -> None:
    """A checkpoint after each row."""
    for value in values:
        feed.put(pairs((1, value)))
        query.processAllAvailable()
        query.trigger_checkpoint(timeout=30)


def kept_in(job: hf.Job) -> list[int]:
    """Numbers of the newest checkpoint and of those that it retains, oldest first."""
    records = retained(store_of(job))
    return [*records[max(records)].retains, max(records)]


def sums(sink: hf.MemorySink) -> Any:
    return newest(sink.rows(), "k")[1]["total"]


@pytest.mark.parametrize("changelog", [True, False], ids=["changelog", "tables"])
def test_a_start_goes_back_to_a_retained_checkpoint_of_an_earlier_start(changelog: bool) -> None:
    storage, feed, sink = new_storage(), Feed(name="feed"), hf.MemorySink(name="out")
    config = hf.CheckpointConfig(trigger=hf.manual(), retained=3, changelog=changelog)
    query = start(made(storage, feed, sink, checkpoint=config), LIVE)
    checkpoints(query, feed, range(1, 6))
    query.stop()
    job = made(storage, feed, sink, checkpoint=config)
    kept = kept_in(job)
    assert len(kept) == 3
    assert verify(store_of(job)).ok

    query = start(job, LIVE)
    checkpoints(query, feed, range(6, 7))
    query.stop()
    kept = kept_in(job)
    assert len(kept) == 3
    assert verify(store_of(job)).ok

    feed.rows[-2:] = pairs((1, 100), (1, 1000))
    wanted = kept[0]
    query = start(made(storage, feed, sink, checkpoint=config, start_from=wanted, publish_again=True), LIVE)
    query.processAllAvailable()
    query.trigger_checkpoint(timeout=30)
    query.stop()
    assert sums(sink) == 1 + 2 + 3 + 4 + 100 + 1000
    assert verify(store_of(job)).ok


def test_a_job_goes_back_to_a_number_once() -> None:
    storage, feed, sink = new_storage(), Feed(name="feed"), hf.MemorySink(name="out")
    query = start(made(storage, feed, sink), LIVE)
    checkpoints(query, feed, range(1, 4))
    query.stop()
    first = kept_in(made(storage, feed, sink))[0]
    for _ in range(2):
        query = start(made(storage, feed, sink, start_from=first, publish_again=True), LIVE)
        checkpoints(query, feed, range(10, 11))
        query.stop()
    assert sums(sink) == 1 + 2 + 3 + 10 + 10
    records = retained(store_of(made(storage, feed, sink)))
    assert records[max(records)].started_from == first


def test_a_number_that_is_not_retained_and_output_that_repeats_are_refused_by_name() -> None:
    storage, feed, sink = new_storage(), Feed(name="feed"), hf.MemorySink(name="out")
    with pytest.raises(hf.JobRefused, match="no checkpoint yet"):
        start(made(storage, feed, sink, start_from=7), LIVE)
    query = start(made(storage, feed, sink, retained=2), LIVE)
    checkpoints(query, feed, range(1, 4))
    query.stop()
    kept = kept_in(made(storage, feed, sink))
    with pytest.raises(hf.JobRefused, match=f"start_from=1: .*retains {kept[0]}, {kept[1]}"):
        start(made(storage, feed, sink, start_from=1), LIVE)
    with pytest.raises(hf.JobRefused, match=f"back from checkpoint {kept[1]} to checkpoint {kept[0]}.*a second time"):
        start(made(storage, feed, sink, start_from=kept[0]), LIVE)
    assert kept_in(made(storage, feed, sink)) == kept


def test_fewer_retained_checkpoints_at_a_restart_let_go_of_the_others() -> None:
    storage, feed, sink = new_storage(), Feed(name="feed"), hf.MemorySink(name="out")
    query = start(made(storage, feed, sink), LIVE)
    checkpoints(query, feed, range(1, 4))
    query.stop()
    query = start(made(storage, feed, sink, retained=1), LIVE)
    checkpoints(query, feed, range(4, 5))
    query.stop()
    assert len(kept_in(made(storage, feed, sink))) == 1
