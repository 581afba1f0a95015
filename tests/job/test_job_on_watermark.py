"""Checkpoints by event time: cut at the first batch boundary at which the watermark is past a full hour."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from job_kit import Feed, new_job, new_storage

import holdfast as hf
from holdfast.testing import start
from waiting import until

BEGIN = datetime(2026, 1, 1)
HOURLY = hf.CheckpointConfig(trigger=hf.on_watermark("1h"))
LIVE = hf.processing_time("5ms")


class Minutes:
    """A job that copies rows of a feed, one each ten minutes of event time, into folders by hour."""

    def __init__(self, folder: Path, *, delay: str = "0s") -> None:
        self.feed = Feed("at TIMESTAMP_NTZ, hour STRING", name="feed")
        self.storage, self.folder, self.delay = new_storage(), folder, delay
        self.only = pc.scalar(True)
        self.query: hf.Query | None = None

    def start(self, trigger: Any = HOURLY.trigger) -> hf.Query:
        job = new_job(self.storage, checkpoint=hf.CheckpointConfig(trigger=trigger))
        finished = hf.PartitionTime("%Y-%m-%dT%H", "1h")
        sink = hf.ParquetSink(f"file://{self.folder}", name="out", partition_by=["hour"], finished=finished)
        job.read(self.feed).with_watermark("at", self.delay).where(self.only).write(sink)
        self.query = start(job, LIVE)
        return self.query

    def put(self, *minutes: int) -> None:
        """Put rows, each in a batch of its own."""
        assert self.query is not None
        for minute in minutes:
            at = BEGIN + timedelta(minutes=minute)
            before = self.query.totals.rows
            self.feed.put([{"at": at, "hour": at.strftime("%Y-%m-%dT%H")}])
            until(lambda wanted=before + 1: self.query.totals.rows >= wanted)

    def cuts(self) -> list[object]:
        """Checkpoints that completed since the start, in order."""
        assert self.query is not None
        return [each for each in self.query.checkpoints if each.outcome == "completed"]

    def published(self) -> int:
        return sum(pq.read_metadata(file).num_rows for file in self.folder.rglob("part-*.parquet"))

    def finished(self) -> dict[str, int]:
        """Rows of each hour that is finished."""
        found = {}
        for mark in self.folder.rglob("_SUCCESS"):
            files = mark.parent.glob("*.parquet")
            found[mark.parent.name.rpartition("T")[2]] = sum(pq.read_metadata(file).num_rows for file in files)
        return found


def test_each_hour_of_event_time_is_published_and_finished_at_the_first_boundary_past_it(tmp_path: Path) -> None:
    minutes = Minutes(tmp_path / "out")
    query = minutes.start()
    try:
        minutes.put(*range(0, 60, 10))
        assert minutes.cuts() == [] and minutes.finished() == {}
        minutes.put(60)
        until(lambda: minutes.finished() == {"00": 6})
        minutes.put(*range(70, 120, 10))
        assert len(minutes.cuts()) == 1, "the second hour is not over"
        minutes.put(360)
        until(lambda: minutes.finished() == {"00": 6, "01": 6})
        assert len(minutes.cuts()) == 2, "several hours at once are a single checkpoint"
    finally:
        query.stop()


def test_the_delay_of_the_watermark_counts_and_quiet_sources_do_not_hold_an_hour_back(tmp_path: Path) -> None:
    minutes = Minutes(tmp_path / "out", delay="15min")
    query = minutes.start()
    try:
        minutes.put(20, 30, 40, 50, 60, 70)
        assert minutes.cuts() == []
        minutes.put(80)
        until(lambda: minutes.finished() == {"00": 4})
        assert len(minutes.cuts()) == 1
    finally:
        query.stop()


def test_an_update_to_event_time_holds_at_once_and_another_trigger_ends_it(tmp_path: Path) -> None:
    minutes = Minutes(tmp_path / "out")
    query = minutes.start(hf.manual())
    try:
        minutes.put(0, 30)
        query.update(trigger=hf.on_watermark("1h"), keep=True)
        minutes.put(50)
        assert minutes.cuts() == []
        minutes.put(60)
        until(lambda: minutes.finished() == {"00": 3})
        query.update(trigger=hf.manual())
        minutes.put(150)
        assert len(minutes.cuts()) == 1
    finally:
        query.stop()
    query = minutes.start(hf.manual())
    try:
        assert query.status["keptSettings"] == {"trigger": "OnWatermark(interval='1h')"}
        minutes.put(190)
        until(lambda: set(minutes.finished()) >= {"00", "01"})
    finally:
        query.stop()


def test_an_hour_that_ends_without_rows_is_cut_by_an_updated_trigger() -> None:
    """One source falls silent in the first hour; with its time-out the watermark passes the hour, and no row comes."""
    ahead, silent = (Feed("at TIMESTAMP_NTZ", name=name) for name in ("ahead", "silent"))
    job = new_job(checkpoint=hf.CheckpointConfig(trigger=hf.manual()))
    ahead_rows = job.read(ahead).with_watermark("at", "0s")
    ahead_rows.union(job.read(silent).with_watermark("at", "0s", "300ms")).write(hf.NoopSink())
    query = start(job, LIVE)
    try:
        query.update(trigger=hf.on_watermark("1h"))
        silent.put([{"at": BEGIN + timedelta(minutes=30)}])
        for rows, minute in enumerate([10, 20, 70], 2):
            ahead.put([{"at": BEGIN + timedelta(minutes=minute)}])
            until(lambda wanted=rows: query.totals.rows == wanted)
        until(lambda: query.totals.completed_checkpoints == 1)
    finally:
        query.stop()


def test_a_later_start_knows_the_hours_that_its_checkpoint_has_passed(tmp_path: Path) -> None:
    minutes = Minutes(tmp_path / "out")
    query = minutes.start()
    minutes.put(0, 30, 60, 70)
    until(lambda: minutes.finished() == {"00": 2})
    query.stop()
    query = minutes.start()
    try:
        minutes.put(80, 90)
        assert minutes.cuts() == []
        minutes.put(130)
        until(lambda: set(minutes.finished()) == {"00", "01"})
        assert len(minutes.cuts()) == 1
    finally:
        query.stop()


def test_an_hour_whose_rows_were_recorded_before_is_finished_without_further_rows(tmp_path: Path) -> None:
    minutes = Minutes(tmp_path / "out")
    query = minutes.start(hf.manual())
    minutes.put(0, 30, 60)
    query.trigger_checkpoint()
    until(lambda: minutes.published() == 3)
    query.stop()
    assert minutes.finished() == {}, "the batch of the newest row was planned before it was known"
    query = minutes.start()
    try:
        until(lambda: minutes.finished() == {"00": 2})
        assert len(minutes.cuts()) == 1 and query.totals.rows == 0
    finally:
        query.stop()


def test_rows_that_a_sink_does_not_get_finish_its_hours_too(tmp_path: Path) -> None:
    """Whoever filters rows, or waits for silent sources, gets a watermark that moves without rows for the sink."""
    minutes = Minutes(tmp_path / "out")
    minutes.only = pc.field("hour") < "2026-01-01T01"
    query = minutes.start(hf.every("20ms"))
    try:
        minutes.put(0, 30)
        until(lambda: minutes.published() == 2)
        minutes.put(60, 61)
        until(lambda: minutes.finished() == {"00": 2})
    finally:
        query.stop()


def test_a_job_without_a_watermark_is_refused() -> None:
    job = new_job(checkpoint=HOURLY)
    job.read(Feed()).write(hf.NoopSink())
    with pytest.raises(hf.JobRefused, match=r"on_watermark\('1h'\).*no source of this job has a watermark"):
        start(job, LIVE)


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(hf.SettingsError, match="above zero"):
        hf.on_watermark("0s")
