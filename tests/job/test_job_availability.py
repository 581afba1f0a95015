"""Functions, sources and sinks refuse to be cut: checkpoints wait for a boundary that nobody refuses."""

import itertools
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from job_kit import SOON, Feed, new_job, pairs, script, store_of

import holdfast as hf
from holdfast.availability import refusal
from holdfast.testing import Boundaries, ManualClock, TestSource, run, start
from holdfast.testing.local import LocalCluster
from waiting import until

SOFT = hf.SnapshotAvailability.SOFT_FAILURE
HARD = hf.SnapshotAvailability.HARD_FAILURE
AVAILABLE = hf.SnapshotAvailability.AVAILABLE
BEGIN, WRITE, END = 0, 1, 2


class Outside:
    """A system whose transactions are open in a connection, and are lost with it; by (subtask, transaction)."""

    open: dict[int, list[int]] = {}
    done: dict[int, list[int]] = {}

    @classmethod
    def clear(cls) -> None:
        cls.open, cls.done = {}, {}


@pytest.fixture(autouse=True)
def _outside() -> Iterator[None]:
    Outside.clear()
    yield
    Outside.clear()


class Transactions(hf.ProcessFunction):
    """Rows of a key: BEGIN, values, END. A copy that is made anew has lost the open group."""

    def open(self, ctx: Any) -> None:
        Outside.open.clear()

    def process(self, row: Any, ctx: Any) -> Any:
        if row.v == BEGIN:
            Outside.open[row.k] = []
        elif row.v == END:
            Outside.done.setdefault(row.k, Outside.open.pop(row.k))
            yield (row.k,)
        else:
            Outside.open[row.k].append(row.v)

    def is_snapshot_available(self) -> hf.SnapshotAvailability:
        if Outside.open:
            return SOFT.because(f"transactions {sorted(Outside.open)} are open")
        return AVAILABLE


class Answers(hf.ProcessFunction):
    """Refuses the first boundaries after the first row, with each answer in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def process(self, row: Any, ctx: Any) -> Any:
        yield (row.k,)

    def is_snapshot_available(self) -> Any:
        answer = self.answers.pop(0) if self.answers else AVAILABLE
        if isinstance(answer, Exception):
            raise answer
        return answer


def answering(*answers: Any, **settings: Any) -> tuple[hf.Job, Feed]:
    """A job that is fed, whose only operator gives these answers."""
    job, feed = new_job(**settings), Feed(name="rows")
    job.read(feed).key_by("k").process(Answers(*answers), "k BIGINT", name="op").write(hf.NoopSink())
    return job, feed


def test_a_transaction_outside_is_whole_after_a_kill_since_no_checkpoint_was_cut_inside() -> None:
    clusters: list[LocalCluster] = []
    job, feed, out = new_job(checkpoint=SOON), Feed(name="rows"), hf.MemorySink()
    job.read(feed).key_by("k").process(Transactions(), "k BIGINT", name="writer").write(out)
    query = start(job, hf.processing_time(), on_cluster=clusters.append)
    feed.put(pairs((1, BEGIN), (1, 10), (1, END)))
    query.processAllAvailable()
    recorded = query.totals.completed_checkpoints
    feed.put(pairs((2, BEGIN), (2, 20)))
    until(lambda: query.totals.refused_checkpoints > 1)
    assert query.totals.completed_checkpoints == recorded
    assert query.totals.failed_checkpoints == 0
    assert "transactions [2] are open" in query.status["message"]
    clusters[0].kill(0)
    until(lambda: len(query.restarts) == 1)
    feed.put(pairs((2, 21), (2, END)))
    query.processAllAvailable()
    query.stop()
    assert Outside.done == {1: [10], 2: [20, 21]}
    assert [row["k"] for row in out.rows()] == [1, 2]


def test_a_source_is_cut_only_where_its_plan_says_so() -> None:
    inside = Boundaries(SOFT.because("inside transaction 7"))
    rows = pairs((1, 1))
    source = TestSource([inside, rows, rows, Boundaries(AVAILABLE), rows], "k BIGINT, v BIGINT", name="rows")
    job, out = new_job(checkpoint=SOON), hf.MemorySink()
    job.read(source).key_by("k").aggregate(n=hf.count(), name="counts").write(out)
    query = run(job)
    assert all(stats.batch >= 4 for stats in query.totals.checkpoints), "batches 1 to 3 end inside the transaction"
    assert [row["n"] for row in out.rows()] == [1, 2, 3]


def test_a_job_without_operators_asks_its_sources_and_sinks() -> None:
    class Closed(hf.MemorySink):
        answers = [SOFT.because("in maintenance")] * 2

        def is_snapshot_available(self) -> hf.SnapshotAvailability:
            return self.answers.pop() if self.answers else AVAILABLE

    job = new_job()
    sink = Closed(name="out")
    job.read(script(pairs((1, 1)))).write(sink)
    query = run(job)
    assert sink.answers == []
    assert query.totals.refused_checkpoints == 1
    assert query.totals.batches >= 3, "batches without rows asked again"
    assert len(sink.rows()) == 1


def test_a_refusal_is_named_once_and_nothing_is_stored_for_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast.jobmaster.checkpoints.control")
    job, feed = answering(*[SOFT.because("not now")] * 3)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.batches == 1)
    stored = set(store_of(job).list("gathered/")) | set(store_of(job).list("dstl/"))
    with pytest.raises(TimeoutError, match=r"operator 'op', subtask 0 \(soft\): not now"):
        query.trigger_checkpoint(timeout=0.05)
    assert set(store_of(job).list("gathered/")) | set(store_of(job).list("dstl/")) == stored
    until(lambda: query.totals.completed_checkpoints == 1)
    assert query.totals.batches == 4, "batches without rows asked again"
    assert query.totals.refused_checkpoints == 1
    query.stop()
    named = [record.getMessage() for record in caplog.records if "is put off" in record.getMessage()]
    assert named == ["checkpoint 1 is put off: refused by operator 'op', subtask 0 (soft): not now"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (HARD.because("lost the connection"), "lost the connection"),
        (ValueError("no connection"), "is_snapshot_available() raised ValueError: no connection"),
        (None, "the answer whether a checkpoint may be cut is None"),
    ],
    ids=["hard", "raises", "forgets to answer"],
)
def test_a_hard_refusal_restarts_the_job_and_is_named(answer: Any, message: str) -> None:
    job, feed = answering(answer)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.batches == 1)
    with pytest.raises(hf.CheckpointFailed):
        query.trigger_checkpoint(timeout=10)
    until(lambda: len(query.restarts) == 1)
    query.stop()
    assert "operator 'op', subtask 0 (hard)" in query.restarts[0]
    assert message in query.restarts[0]


def test_tolerated_hard_refusals_restart_nothing() -> None:
    tolerant = hf.CheckpointConfig(trigger=hf.manual(), tolerable_failed_checkpoints=1)
    job, feed = answering(HARD.because("once"), checkpoint=tolerant)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    query.processAllAvailable()
    query.stop()
    assert (query.restarts, query.totals.failed_checkpoints) == ([], 1)


def test_available_now_ends_with_an_error_that_names_who_refuses_its_final_checkpoint() -> None:
    job = new_job()
    source = TestSource([pairs((1, 1)), Boundaries(SOFT.because("inside transaction 7"))], "k BIGINT, v BIGINT")
    job.read(source).key_by("k").aggregate(n=hf.count()).write(hf.NoopSink())
    query = start(job, hf.available_now(timeout="300ms"))
    with pytest.raises(hf.QueryFailed, match=r"no final checkpoint within 300ms: source 'test-1' .soft.: inside tr"):
        query.awaitTermination()


def test_a_refused_job_asks_again_less_and_less_often() -> None:
    job, feed = answering(*[SOFT.because("not now")] * 10_000, checkpoint=SOON)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    until(lambda: query.totals.batches == 4)
    query.stop()
    times = [datetime.fromisoformat(entry["timestamp"]).timestamp() for entry in query.recentProgress]
    gaps_s = [b - a for a, b in itertools.pairwise(times)]
    # The driver wakes to ask a tenth of a second late or more, so neighbours may differ by little.
    assert gaps_s[2] > 1.4 * gaps_s[0] and gaps_s == sorted(gaps_s), gaps_s
    assert all(entry["numInputRows"] == 0 for entry in query.recentProgress[1:])


def test_soft_failures_become_hard_after_a_time() -> None:
    clock = ManualClock()
    limit = hf.SoftFailureLimit(timeout="5min", clock=clock)
    assert limit.apply(SOFT.because("open")) == SOFT.because("open")
    clock.advance(300)
    assert limit.apply(SOFT.because("open")) == SOFT.because("open")
    clock.advance(1)
    assert limit.apply(SOFT.because("open")).kind == "hard_failure"
    assert limit.apply(AVAILABLE) == AVAILABLE
    assert limit.apply(SOFT.because("open")) == SOFT.because("open")


def test_soft_failures_become_hard_after_a_number_of_them() -> None:
    limit = hf.SoftFailureLimit(number=2)
    answers = [limit.apply(SOFT.because("open")) for _ in range(3)]
    assert [answer.kind for answer in answers] == ["soft_failure", "soft_failure", "hard_failure"]
    assert answers[2].message == "open (refused 3 times in a row, more than number=2)"
    assert limit.apply(HARD.because("broken")) == HARD.because("broken")


@pytest.mark.parametrize("settings", [{}, {"number": -1}, {"number": True}, {"timeout": "soon"}], ids=str)
def test_a_limit_of_soft_failures_says_what_is_wrong_with_it(settings: dict[str, Any]) -> None:
    with pytest.raises(hf.SettingsError, match="SoftFailureLimit"):
        hf.SoftFailureLimit(**settings)


def test_an_answer_says_what_it_is() -> None:
    assert refusal("x", AVAILABLE) is None
    assert str(refusal("x", SOFT)) == "x (soft): no reason was given"
    found = refusal("x", True)
    assert found is not None and found.hard


def test_soft_refusals_without_end_restart_the_job_and_then_end_it_by_name() -> None:
    limited = hf.CheckpointConfig(trigger=hf.every("20ms"), tolerable_failure_timeout="100ms")
    restarts = hf.FailoverConfig(restarts_max=2, backoff_first="10ms", backoff_max="10ms")
    job, feed = answering(*[SOFT.because("transaction 7 is open")] * 10_000, checkpoint=limited, failover=restarts)
    query = start(job, hf.processing_time())
    feed.put(pairs((1, 1)))
    with pytest.raises(hf.QueryFailed) as raised:
        query.awaitTermination(60)
    assert "operator 'op', subtask 0 (soft): transaction 7 is open" in str(raised.value)
    assert len(query.restarts) == 2
    assert query.totals.failed_checkpoints == 0
