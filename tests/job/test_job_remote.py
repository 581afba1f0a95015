"""The handle of a query in another process: the same values and errors as those of the query itself."""

import pickle

import pytest
from job_kit import Feed, new_job, pairs
from msgspec import msgpack

import holdfast as hf
from holdfast.failure import Failure, failure_of
from holdfast.query_calls import (
    CAUSES_MAX,
    READS,
    CallAnswer,
    LastWord,
    QueryCall,
    QueryServant,
    StartedQuery,
    decoded,
    error_of,
)
from holdfast.remote_query import RemoteQuery
from holdfast.testing import start


class OtherProcess:
    """A link to a query, over which only bytes go."""

    def __init__(self, query):
        self.query, self.servant = query, QueryServant(query)
        self.started = StartedQuery(query.id, query.name, query.runId, query.view().epoch)
        self.last_word, self.trouble = None, ""

    def ask(self, call):
        answer = msgpack.decode(
            self.servant.answer(QueryCall(*pickle.loads(pickle.dumps(tuple(call))))), type=CallAnswer
        )
        if answer.failure is not None:
            raise error_of(answer.failure)
        return answer.value

    def wait(self, timeout_s):
        if not self.query.isActive:
            self.last_word = msgpack.decode(msgpack.encode(self.servant.last_word()), type=LastWord)
        return not self.query.isActive


@pytest.fixture
def both():
    """(query, its handle in another process, feed) of a running count; stopped at the end."""
    job, feed = new_job(), Feed(name="feed")
    job.read(feed).key_by("k").aggregate(n=hf.count(), name="per-key").write(hf.MemorySink(name="out"))
    query = start(job, hf.processing_time())
    yield query, RemoteQuery(OtherProcess(query)), feed
    query.stop()


def test_each_member_has_the_value_that_it_has_in_the_query_itself(both):
    query, handle, feed = both
    feed.put(pairs((1, 10), (2, 20), (1, 5)))
    handle.processAllAvailable()
    assert handle.trigger_checkpoint(timeout=30) == query.view().checkpoints[-1].number
    query.processAllAvailable()
    for name in READS.keys() - {"view"}:
        assert getattr(handle, name) == getattr(query, name), name
    assert handle.view().graph == query.view().graph and handle.view().checkpoints == query.view().checkpoints
    assert (handle.id, handle.runId, handle.name) == (query.id, query.runId, query.name)
    assert handle.read_state("per-key", key={"k": 1}) == query.read_state("per-key", key={"k": 1})
    assert handle.read_state("per-key", key={"k": 1}).schema.metadata[b"batch"]
    assert "3 rows" in repr(handle) and type(handle.checkpoints) is type(query.checkpoints)


def test_errors_of_a_query_are_raised_by_its_handle(both):
    _, handle, _ = both
    with pytest.raises(hf.SettingsError, match=r"rescale\(\) names no number"):
        handle.rescale()
    with pytest.raises(hf.HoldfastError, match="no operator 'other'"):
        handle.read_state("other", key={"k": 1})
    with pytest.raises(hf.SettingsError, match="no_such_setting"):
        handle.update(no_such_setting=1)
    handle.update(checkpoint=hf.CheckpointConfig(trigger=hf.every("7s")))
    assert "7" in handle.view().settings["trigger"]


def test_a_rescale_is_followed_from_outside(both):
    query, handle, feed = both
    feed.put(pairs((1, 10)))
    handle.processAllAvailable()
    rescale = handle.rescale(parallelism=query.view().parallelism + 1)
    rescale.wait(60)
    assert rescale.is_done and rescale.error is None and "done" in repr(rescale)
    assert query.view().parallelism == rescale.parallelism


def test_a_rescale_that_a_run_does_not_know_is_refused_by_name(both):
    query, handle, _ = both
    with pytest.raises(hf.HoldfastError, match=f"rescale earlier-1 is not known to run {query.runId}"):
        handle._ask("rescale_facts", "earlier-1")


def test_a_handle_shows_what_a_query_that_ended_has_left(both):
    query, handle, feed = both
    feed.put(pairs((1, 10)))
    handle.processAllAvailable()
    assert handle.isActive and handle.awaitTermination(0.01) is False
    assert handle.stop() is None and not query.isActive
    assert not handle.isActive and handle.awaitTermination() is True and handle.exception() is None
    assert handle.status == query.status and handle.totals == query.totals and handle.view().message == "Stopped"
    with pytest.raises(hf.HoldfastError, match="has ended, and trigger_checkpoint needs one that runs"):
        handle.trigger_checkpoint()
    assert handle.stop() is None
    with pytest.raises(hf.HoldfastError, match="has ended, and made no savepoint for this call"):
        handle.stop(with_savepoint="memory://savepoint")


def test_the_error_that_ended_a_query_comes_with_its_cause(both):
    _, handle, _ = both
    handle._link.last_word = LastWord(failure_of(_failed(), causes_max=CAUSES_MAX))
    handle._link.wait = lambda timeout_s: True
    with pytest.raises(hf.QueryFailed, match="query 'test' ended: PositionLost") as raised:
        handle.awaitTermination()
    assert isinstance(raised.value.__cause__, hf.PositionLost)


def _failed():
    try:
        raise hf.QueryFailed("query 'test' ended: PositionLost: the rows are gone") from hf.PositionLost("gone")
    except hf.QueryFailed as error:
        return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError("late"), TimeoutError),
        (hf.CheckpointFailed("no"), hf.CheckpointFailed),
        (OSError("x"), hf.HoldfastError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), hf.HoldfastError),
    ],
)
def test_errors_cross_by_the_names_of_their_classes(error, kind):
    made = error_of(msgpack.decode(msgpack.encode(failure_of(error)), type=Failure))
    assert type(made) is kind and str(error) in str(made)


def test_a_query_answers_no_call_that_is_not_for_handles(both):
    query, _, _ = both
    answer = msgpack.decode(QueryServant(query).answer(QueryCall("_master")), type=CallAnswer)
    assert answer.failure is not None and "no member '_master'" in answer.failure.message
    assert decoded("restarts", b"\x90") == []
