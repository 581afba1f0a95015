"""`_SUCCESS` in partitions of time: written when the watermark has passed a partition's end, and never before."""

from uuid import uuid4

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import failpoints
from holdfast.errors import HoldfastError, JobRefused, SettingsError
from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.storage.store import open_store

SCHEMA = pa.schema([("day", pa.string()), ("hour", pa.int32()), ("v", pa.int64())])
HOURLY = hf.PartitionTime("%Y-%m-%d/%H", "1h")
HOUR_US = 3_600_000_000
DAY_US = 1_795_478_400_000_000
"""The start of 2026-11-24."""


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


class Target:
    """A folder, and groups of rows that are published there by sinks of several starts."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.store = open_store(f"memory://job-{uuid4().hex}")

    def sink(self) -> hf.ParquetSink:
        sink = hf.ParquetSink(self.folder.as_uri(), ("day", "hour"), finished=HOURLY)
        sink.prepare(SCHEMA, SinkContext("job", "out", self.store, (), True))
        return sink

    def publish(self, sink: hf.ParquetSink, number: int, hours: list[int], watermark_us: int | None) -> None:
        rows = [{"day": "2026-11-24", "hour": hour, "v": number} for hour in hours]
        batches = iter([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)])
        staged = sink.stage(batches, StageContext("job", "out", 1, 1, number, 0, uuid4().hex, self.store))
        context = PublishContext("job", "out", self.store, SCHEMA, watermark_us=watermark_us)
        sink.publish(number, staged, context)

    def marked(self) -> list[str]:
        return sorted(str(found.parent.relative_to(self.folder)) for found in self.folder.rglob("_SUCCESS"))


def test_a_partition_is_marked_once_the_watermark_has_passed_its_end(tmp_path):
    target = Target(tmp_path)
    sink = target.sink()
    target.publish(sink, 1, [0, 1], None)
    target.publish(sink, 2, [1], DAY_US + HOUR_US - 1)
    assert target.marked() == []
    target.publish(sink, 3, [2], DAY_US + HOUR_US)
    assert target.marked() == ["day=2026-11-24/hour=0"]
    target.publish(sink, 4, [9], DAY_US + 3 * HOUR_US)
    assert target.marked() == [f"day=2026-11-24/hour={hour}" for hour in (0, 1, 2)]


def test_a_later_start_marks_partitions_that_an_earlier_start_wrote(tmp_path):
    target = Target(tmp_path)
    target.publish(target.sink(), 1, [0, 5], None)
    target.publish(target.sink(), 2, [6], DAY_US + 2 * HOUR_US)
    assert target.marked() == ["day=2026-11-24/hour=0"]


def test_no_partition_is_marked_before_all_files_of_the_group_are_there(tmp_path):
    target = Target(tmp_path)
    failpoints.arm("sink.parquet.copied", "raise@2")
    with pytest.raises(HoldfastError, match="failpoint"):
        target.publish(target.sink(), 1, [0, 1], DAY_US + 9 * HOUR_US)
    assert target.marked() == []
    failpoints.disarm()
    target.publish(target.sink(), 1, [0, 1], DAY_US + 9 * HOUR_US)
    assert len(target.marked()) == 2


def test_what_cannot_be_a_time_is_refused_or_never_marked(tmp_path):
    with pytest.raises(SettingsError, match="no format of a time"):
        hf.PartitionTime("%Q", "1h")
    with pytest.raises(SettingsError, match="above zero"):
        hf.PartitionTime("%Y", 0)
    assert hf.PartitionTime("%Y-%m-%dT%H:%M", "15min").end_us("at=2026-11-24T00%3A15/") == DAY_US + HOUR_US // 2
    assert HOURLY.end_us("day=2026-11-24/hour=__HIVE_DEFAULT_PARTITION__/") is None
    with pytest.raises(JobRefused, match="with_watermark"):
        hf.ParquetSink(tmp_path.as_uri(), ("day",), finished=HOURLY).prepare(
            SCHEMA, SinkContext("job", "out", Target(tmp_path).store)
        )
