"""Helpers for the tests of regions: a source whose splits fail while the test says so."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import job_kit
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.sinks.base import Sink
from holdfast.sources.base import SourceBatch, SplitRead

QUICK = hf.FailoverConfig(backoff_first="10ms", backoff_max="50ms")
PATIENT = hf.RegionConfig(max_consecutive_failures=1000)
RUNNING = hf.processing_time("5ms")
ROWS, SPLITS = 400, 8
HOUR_US = 3_600_000_000


class Failing(hf.SequenceSource):
    """A sequence whose splits in `broken` cannot be read; the test changes that while the job runs.

    "5@17" breaks split 5 at its row 17 only.
    """

    broken: ClassVar[set[str]] = set()
    reads: ClassVar[list[str]] = []

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        self.reads.append(read.split)
        yield from super().read(read)
        assert isinstance(read.start, int) and isinstance(read.stop, int)
        places = {f"{read.split}@{place}" for place in range(read.start, read.stop)}
        if self.broken & {read.split, *places}:
            raise RuntimeError(f"partition {read.split} is offline")


class Timed(Failing):
    """Rows of which each has the time of its value, in hours, and the number of that hour."""

    def schema(self) -> pa.Schema:
        fields = [pa.field("value", pa.int64()), pa.field("at", pa.timestamp("us")), pa.field("hour", pa.string())]
        return pa.schema(fields)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        for batch in super().read(read):
            hours = batch.rows["value"].to_numpy() // SPLITS
            at = pa.array(hours * HOUR_US).cast(pa.timestamp("us"))
            names = pa.array(np.datetime_as_string(at.to_numpy(), unit="h"))
            rows = pa.RecordBatch.from_arrays([batch.rows["value"], at, names], schema=self.schema())
            yield SourceBatch(rows, batch.position)


@pytest.fixture(autouse=True)
def broken() -> Iterator[set[str]]:
    Failing.reads.clear()
    yield Failing.broken
    Failing.broken.clear()


def copying(sink: Sink, storage: str, regions: hf.RegionConfig | None = PATIENT, **settings: Any) -> hf.Job:
    settings.setdefault("checkpoint", job_kit.SOON)
    job = job_kit.new_job(storage, regions=regions, failover=QUICK, **settings)
    job.read(Failing(ROWS, splits=SPLITS, name="numbers")).write(sink)
    return job


def files_of(folder: Path) -> list[int]:
    """All published values, in order."""
    return sorted(value for file in folder.rglob("*.parquet") for value in pq.read_table(file)["value"].to_pylist())


def without(*splits: int) -> list[int]:
    return [value for value in range(ROWS) if value % SPLITS not in splits]
