"""The check of queries on Spark says of a query that does not end how far it came, instead of waiting for ever."""

import pytest

import holdfast as hf
from benchmarks.nexmark.check import unended
from holdfast.testing import start


def test_a_query_that_does_not_end_is_stopped_and_named_with_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    job = hf.Job(None, name="endless", storage="memory://nexmark-unended")
    job.read(hf.SequenceSource(rows_per_second=100)).write(hf.NoopSink())
    running = start(job, hf.processing_time("10ms"))
    assert "no end after 0 s: " in unended(running, 0.05)
    assert not running.isActive
    assert "test_nexmark_check.py" in capfd.readouterr().err, "the threads are told"


def test_a_query_that_ends_in_time_tells_nothing() -> None:
    job = hf.Job(None, name="short", storage="memory://nexmark-ended")
    job.read(hf.SequenceSource(rows=10)).write(hf.NoopSink())
    assert unended(start(job, hf.available_now()), 60) == ""
