"""Calls that hang while nothing has died, and work that ends by an error that nobody expected: the query goes on, or
ends soon."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from job_kit import new_job, newest, pairs, script

import holdfast as hf
from holdfast import failpoints
from holdfast.execution import course
from holdfast.jobmaster.processes import taskmanagers
from holdfast.testing import local
from holdfast.testing.run import run, start
from waiting import until

END_S_MAX = 20.0
"""Bound in seconds on the end of a query, on a machine that is busy with other work."""


@pytest.fixture(autouse=True)
def _disarmed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "holdfast"):  # whatever earlier tests made of it
        yield
    failpoints.disarm()


@contextmanager
def hanging_once(point: str, hangs_now: threading.Event | None = None) -> Iterator[None]:
    """The first thread that meets the failpoint hangs until the end of the block."""
    hangs, go_on = threading.Lock(), threading.Event()

    def hang() -> None:
        if hangs.acquire(blocking=False):
            if hangs_now is not None:
                hangs_now.set()
            go_on.wait(60)

    failpoints.arm(point, hang)
    try:
        yield
    finally:
        go_on.set()


def counting(sink: hf.MemorySink, **settings: object) -> hf.Job:
    job = new_job(**settings)
    job.read(script(pairs((1, 1), (2, 2)), pairs((1, 3)))).key_by("k").aggregate(n=hf.count()).write(sink)
    return job


def test_a_cut_that_hangs_ends_its_process_and_the_checkpoint_is_taken_by_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = hf.MemorySink()
    with hanging_once("taskmanager.cut.before"):
        query = start(counting(sink, failover=hf.FailoverConfig(cut_timeout="2s")), hf.available_now())
        query.awaitTermination(60)
    assert not query.isActive
    assert {key: row["n"] for key, row in newest(sink.rows(), "k").items()} == {1: 2, 2: 1}
    assert "TaskManager 0 has been cutting checkpoint 1 for 1 s; after cut_timeout='2s' it is ended" in caplog.text
    assert len(query.restarts) == 1


def test_the_news_of_a_checkpoint_that_hangs_does_not_hold_up_the_next_cut_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = hf.MemorySink()
    query = start(counting(sink, failover=hf.FailoverConfig(cut_timeout="2s")), hf.processing_time("0s"))
    try:
        with hanging_once("taskmanager.complete"):
            until(lambda: query.lastProgress)
            query.trigger_checkpoint(30)
            until(lambda: len(query.restarts) == 1)
            query.processAllAvailable()
    finally:
        query.stop()
    assert {key: row["n"] for key, row in newest(sink.rows(), "k").items()} == {1: 2, 2: 1}
    assert "TaskManager 0 has been taking the news of checkpoint" in caplog.text


def test_work_that_ends_by_an_unexpected_error_ends_the_query_at_once() -> None:
    def broken() -> None:
        raise RuntimeError("a mistake in Holdfast")

    failpoints.arm("jobmaster.committed", broken)
    began_s = time.monotonic()
    with pytest.raises(hf.QueryFailed, match="a mistake in Holdfast"):
        run(counting(hf.MemorySink()))
    assert time.monotonic() - began_s < END_S_MAX


def test_the_end_names_a_call_that_never_returns_and_leaves_it_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(taskmanagers, "QUICK_S", 0.01)  # a call that takes less is not known by name
    monkeypatch.setattr(course, "END_S_MAX", 2.0)
    monkeypatch.setattr(local, "CLOSE_S_MAX", 0.1)
    hangs = threading.Event()
    with hanging_once("taskmanager.process.before", hangs):
        query = start(counting(hf.MemorySink()), hf.processing_time("0s"))
        assert hangs.wait(60)
        began_s = time.monotonic()
        query.stop()
        assert time.monotonic() - began_s < END_S_MAX
    assert "has: run; left behind: TaskManager 0 has been processing batch 1, level 1 for " in caplog.text
    assert "TaskManager 0 is left to itself: a call to it has not returned" in caplog.text
