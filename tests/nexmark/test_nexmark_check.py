"""The check of queries on Spark says of a query that does not end how far it came, instead of waiting for ever."""

from pathlib import Path

import pytest

import holdfast as hf
from benchmarks.nexmark.check import BATCHES_MIN, ROWS_PER_BATCH_MAX, rows_per_batch, unended
from benchmarks.nexmark.events import write_events
from holdfast.testing import start


def test_a_query_that_does_not_end_is_stopped_and_named_with_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    job = hf.Job(None, name="endless", storage="memory://nexmark-unended")
    job.read(hf.SequenceSource(rows_per_second=100)).write(hf.NoopSink())
    running = start(job, hf.processing_time("10ms"))
    assert "no end after 0 s: " in unended(running, 0.05)
    assert not running.isActive
    assert "most recent call first" in capfd.readouterr().err, "the threads are told"


def test_a_query_that_ends_in_time_tells_nothing() -> None:
    job = hf.Job(None, name="short", storage="memory://nexmark-ended")
    job.read(hf.SequenceSource(rows=10)).write(hf.NoopSink())
    assert unended(start(job, hf.available_now()), 60) == ""


def test_queries_of_rare_events_have_batches_enough_to_be_killed_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_events(tmp_path / "events", 50_000, seed=0)
    assert rows_per_batch("q3", tmp_path / "events") == 50_000 * 4 // 50 // BATCHES_MIN
    assert rows_per_batch("q5", tmp_path / "events") == 50_000 * 46 // 50 // BATCHES_MIN
    monkeypatch.setattr("benchmarks.nexmark.check.rows_of", lambda _: {"bids": 10**8})
    assert rows_per_batch("q5", tmp_path / "events") == ROWS_PER_BATCH_MAX
