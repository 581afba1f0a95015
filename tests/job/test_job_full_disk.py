"""A real disk that is full, below the storage or `local_dir`: a query waits for room, visibly, or ends with advice.

Needs to mount a file system of a few megabytes, which is allowed to root alone.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.query import Query
from holdfast.testing import start
from sampling import some
from small_disk import fill, small_disk
from waiting import until

KEYS = 200
TEXT = "x" * 400


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    with small_disk(tmp_path / "disk") as folder:
        yield folder


class Latest(hf.ProcessFunction):
    """Keeps the last text of each key, and counts its rows."""

    n = hf.ValueState(pa.int64(), default=0)
    text = hf.ValueState(pa.string())

    def process(self, row, ctx):
        self.n.update(self.n.value() + 1)
        self.text.update(row.text)
        yield {"k": row.k, "n": self.n.value()}


def write(folder: Path, number: int) -> None:
    hidden = folder / f"_{number}"
    hidden.write_text("k,text\n" + "".join(f"{k},{number}{TEXT}\n" for k in range(KEYS)))
    hidden.rename(folder / f"{number:03d}.csv")


def counting(folder: Path, storage: Path, local_dir: Path, sink: hf.MemorySink, outage_timeout: str) -> hf.Job:
    """Count without a changelog: each checkpoint writes RocksDB's files, so that a full `local_dir` shows soon."""
    job = hf.Job(
        None,
        name="full",
        storage=storage.as_uri(),
        state=hf.RocksDBState(cache_max_entries=10),
        checkpoint=hf.CheckpointConfig(trigger=hf.every("100ms"), changelog=False, outage_timeout=outage_timeout),
        task_manager=hf.TaskManagerConfig(local_dir=str(local_dir), local_recovery=True),
    )
    rows = job.read(hf.FileSource(f"{folder}/*.csv", schema="k BIGINT, text STRING", name="files"))
    rows.key_by("k").process(Latest(), "k BIGINT, n BIGINT", name="latest").write(sink)
    return job


def newest(sink: hf.MemorySink) -> dict[int, int]:
    return {row["k"]: row["n"] for row in sink.rows()}


def waits(query: Query) -> bool:
    assert query.isActive, query.exception()
    return "Waiting for store, disk or service" in query.status["message"]


@pytest.mark.parametrize("full", ["storage", "local_dir"])
def test_a_query_waits_for_room_on_a_full_disk_and_goes_on(disk: Path, tmp_path: Path, full: str) -> None:
    places = {"storage": tmp_path / "storage", "local_dir": tmp_path / "local"} | {full: disk / "of-the-job"}
    (tmp_path / "in").mkdir()
    sink = hf.MemorySink(name="out")
    query = start(counting(tmp_path / "in", **places, sink=sink, outage_timeout="10min"), hf.processing_time(0))
    try:
        write(tmp_path / "in", 0)
        query.processAllAvailable()
        filler = fill(disk)
        files = 1
        while not waits(query):
            if files < 60:
                write(tmp_path / "in", files)
                files += 1
            query.awaitTermination(0.05)
        filler.unlink()
        query.processAllAvailable()
        until(lambda: not waits(query))
        assert newest(sink) == dict.fromkeys(range(KEYS), files)
    finally:
        query.stop()
    assert query.exception() is None


@pytest.mark.parametrize("full", some(["storage", "local_dir"], 0, 1))
def test_a_disk_that_stays_full_ends_the_query_with_path_and_remedy(disk: Path, tmp_path: Path, full: str) -> None:
    places = {"storage": tmp_path / "storage", "local_dir": tmp_path / "local"} | {full: disk / "of-the-job"}
    (tmp_path / "in").mkdir()
    sink = hf.MemorySink(name="out")
    job = counting(tmp_path / "in", **places, sink=sink, outage_timeout="2s")
    query = start(job, hf.processing_time(0))
    write(tmp_path / "in", 0)
    query.processAllAvailable()
    filler = fill(disk)
    write(tmp_path / "in", 1)
    until(lambda: not query.isActive)
    message = str(query.exception())
    assert "No space left on device" in message and "outage_timeout='2s'" in message
    assert str(places[full]) in message and "have room and take writes; then start again" in message
    filler.unlink()
    again = start(counting(tmp_path / "in", **places, sink=sink, outage_timeout="2s"), hf.available_now())
    again.awaitTermination()
    assert newest(sink) == dict.fromkeys(range(KEYS), 2)
