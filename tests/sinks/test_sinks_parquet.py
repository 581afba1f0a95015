"""The Parquet sink: names that repeat harmlessly, Hive partitions, the sweep of a takeover; dead letters."""

import datetime
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from holdfast.errors import JobRefused, PublishFailed, SettingsError
from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.sinks.dead_letters import DEAD_LETTER_SCHEMA, DeadLetterSink, bad_rows_to_batch
from holdfast.sinks.parquet import ParquetSink
from holdfast.sources.base import BadRow
from holdfast.storage.store import ObjectStore, open_store

JOB = "0123456789abcdef0123456789abcdef"
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("d", pa.date32())])


@pytest.fixture(params=["files", "gathered"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """True: small pieces are files of their own."""
    kind: str = request.param
    if kind == "files":
        monkeypatch.setattr("holdfast.sinks.parquet.SMALL_BYTES_MAX", -1)
    return kind


@pytest.fixture
def as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sinks.parquet.SMALL_BYTES_MAX", -1)


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://{uuid4().hex}")


def stage(
    sink: ParquetSink, store: ObjectStore, *found: dict[str, Any], epoch: int = 1, name: str = "out"
) -> list[bytes]:
    batch = pa.RecordBatch.from_pylist(list(found), schema=SCHEMA)
    return sink.stage(iter([batch]), StageContext(JOB, name, epoch, 1, 1, 0, uuid4().hex, store))


def context(store: ObjectStore, name: str = "out") -> PublishContext:
    return PublishContext(JOB, name, store, SCHEMA)


def published(folder: Path) -> dict[str, bytes]:
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.parquet")}
    return {name: data for name, data in files.items() if not name.startswith("_")}


def test_publishing_again_writes_the_same_names_with_the_same_bytes(
    tmp_path: Path, store: ObjectStore, pieces: str
) -> None:
    sink = ParquetSink(tmp_path.as_uri(), partition_by=("p",))
    found = [{"k": k, "p": "ab"[k % 2], "d": None} for k in range(4)]
    group = stage(sink, store, *found) + stage(sink, store, *found)
    sink.publish(3, group, context(store))
    first = published(tmp_path)
    assert len(first) == (4 if pieces == "files" else 2)
    sink.publish(3, group, context(store))
    assert published(tmp_path) == first
    sink.publish(4, group, context(store))
    assert len(published(tmp_path)) == 2 * len(first)


def test_two_sinks_share_a_folder_without_overwriting_each_other(tmp_path: Path, store: ObjectStore) -> None:
    sink = ParquetSink(tmp_path.as_uri())
    for name in ("one", "two"):
        sink.publish(3, stage(sink, store, {"k": 1, "p": name, "d": None}, name=name), context(store, name))
    assert sorted(ds.dataset(tmp_path).to_table().column("p").to_pylist()) == ["one", "two"]


PUBLISH_AND_DIE = f"""
import resource, signal, sys
import pyarrow as pa
from holdfast.sinks.base import PublishContext, StageContext
from holdfast.sinks.parquet import ParquetSink
from holdfast.storage.store import open_store

rows = pa.record_batch({{"k": pa.array(range(100_000), pa.int64())}})
sink, store = ParquetSink(sys.argv[1]), open_store("memory://job")
group = sink.stage(iter([rows]), StageContext("{JOB}", "out", 1, 1, 1, 0, "attempt", store))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
sink.publish(1, group, PublishContext("{JOB}", "out", store, rows.schema))
"""


def test_a_process_that_dies_while_it_writes_a_file_leaves_nothing_that_readers_take_for_rows(tmp_path: Path) -> None:
    died = subprocess.run([sys.executable, "-c", PUBLISH_AND_DIE, tmp_path.as_uri()], timeout=60)
    assert died.returncode == -signal.SIGXFSZ
    left = [file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()]
    assert left and all(any(part.startswith("_") for part in file.parts) for file in left)
    assert ds.dataset(tmp_path).count_rows() == 0


def test_partitions_are_read_back_by_hive_readers_also_odd_ones(
    tmp_path: Path, store: ObjectStore, pieces: str
) -> None:
    sink = ParquetSink(tmp_path.as_uri(), partition_by=["p", "d"])
    day = datetime.date(2013, 1, 1)
    found = [{"k": k, "p": p, "d": day} for k, p in enumerate(["a b", "ü/%x", "x=1&+", "..", None])]
    found.append({"k": 9, "p": "a b", "d": None})
    sink.publish(1, stage(sink, store, *found), context(store))
    hive = ds.partitioning(pa.schema([("p", pa.string()), ("d", pa.date32())]), flavor="hive")
    table = ds.dataset(tmp_path, schema=SCHEMA, partitioning=hive).to_table()
    assert sorted(table.to_pylist(), key=lambda one: one["k"]) == found
    assert (tmp_path / "p=a%20b" / "d=2013-01-01").is_dir()


def test_a_staged_file_that_is_gone_before_it_was_published_fails_for_good(
    tmp_path: Path, store: ObjectStore, as_files: None
) -> None:
    sink = ParquetSink(tmp_path.as_uri())
    group = stage(sink, store, {"k": 1, "p": "a", "d": None})
    sink.discard(group, context(store))
    with pytest.raises(PublishFailed, match=r"sink 'out': staged file '_staging/.* is gone from file://"):
        sink.publish(1, group, context(store))


def test_a_takeover_sweeps_what_older_epochs_staged_and_no_record_names(
    tmp_path: Path, store: ObjectStore, as_files: None
) -> None:
    sink = ParquetSink(tmp_path.as_uri())
    row = {"k": 1, "p": "a", "d": None}
    named = stage(sink, store, row, epoch=1)
    stage(sink, store, row, epoch=1)
    live = stage(sink, store, row, epoch=2)
    other = stage(sink, store, row, epoch=1, name="other")
    sink.sweep(lambda name: name.epoch < 2, [], context(store, f"{1:012d}"))  # a sink with the name of an epoch
    foreign = tmp_path / "_staging" / JOB / "notes"
    foreign.write_text("unknown names are left alone")
    sink.sweep(lambda name: name.epoch < 2, named, context(store))
    left = [file for file in (tmp_path / "_staging").rglob("*.parquet") if file.is_file()]
    assert len(left) == 3
    assert foreign.exists()
    sink.publish(1, named, context(store))
    sink.publish(2, live, context(store))
    sink.publish(1, other, context(store, "other"))
    assert len(published(tmp_path)) == 3


@pytest.mark.parametrize(
    ("schema", "partition_by", "named"),
    [
        (SCHEMA, ("day",), "partition column 'day' is not in the stream"),
        (SCHEMA, ("k", "p", "d"), "every column is a partition column"),
        (SCHEMA, ("p", "p"), "names a column twice"),
        (pa.schema([("k", pa.int64()), ("i", pa.month_day_nano_interval())]), (), "month_day_nano_interval"),
    ],
)
def test_a_stream_that_does_not_fit_is_refused(
    schema: pa.Schema, partition_by: tuple[str, ...], named: str, tmp_path: Path, store: ObjectStore
) -> None:
    sink = ParquetSink(tmp_path.as_uri(), partition_by)
    with pytest.raises(JobRefused, match=f"sink 'out' cannot write to .*{named}"):
        sink.prepare(schema, SinkContext(JOB, "out", store))


def test_a_string_for_partition_by_is_refused_when_made() -> None:
    with pytest.raises(SettingsError, match="expected column names"):
        ParquetSink("file:///out", partition_by="day")


def test_preparing_leaves_nothing_behind(tmp_path: Path, store: ObjectStore) -> None:
    ParquetSink(tmp_path.as_uri()).prepare(SCHEMA, SinkContext(JOB, "out", store))
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_bad_rows_go_through_the_dead_letter_folder_like_any_output(tmp_path: Path, store: ObjectStore) -> None:
    bad = [
        BadRow("flights", "file-1", "17", "null key", '{"carrier": null}', "aggregate-1"),
        BadRow("flights", "file-2", "from 3", "not JSON", "\udcff{"),
    ]
    sink = DeadLetterSink(tmp_path.as_uri())
    sink.prepare(DEAD_LETTER_SCHEMA, SinkContext(JOB, "dead-letters", store))
    staging = StageContext(JOB, "dead-letters", 1, 1, 1, 0, "a", store)
    group = sink.stage(iter([bad_rows_to_batch(bad)]), staging)
    assert published(tmp_path) == {}
    sink.publish(1, group, PublishContext(JOB, "dead-letters", store, DEAD_LETTER_SCHEMA))
    (name,) = published(tmp_path)
    assert pq.read_table(tmp_path / name).to_pylist() == [
        {
            "source": "flights",
            "split": "file-1",
            "position": "17",
            "operator": "aggregate-1",
            "reason": "null key",
            "payload": '{"carrier": null}',
        },
        {
            "source": "flights",
            "split": "file-2",
            "position": "from 3",
            "operator": "",
            "reason": "not JSON",
            "payload": "\\udcff{",
        },
    ]
    assert bad_rows_to_batch([]).schema == DEAD_LETTER_SCHEMA


@pytest.mark.parametrize("before", [(), ("p",), ("p", "d")])
@pytest.mark.parametrize("after", [(), ("p",), ("d",)])
def test_a_group_is_published_by_the_partitions_with_which_it_was_staged(
    before: tuple[str, ...], after: tuple[str, ...], tmp_path: Path, store: ObjectStore, pieces: str
) -> None:
    staged_by, declared_now = (ParquetSink(tmp_path.as_uri(), partition_by=by) for by in (before, after))
    day = datetime.date(2026, 1, 2)
    group = stage(staged_by, store, {"k": 1, "p": "a", "d": day}, {"k": 2, "p": "b", "d": day})
    staged = replace(context(store), layout=staged_by.layout(context(store)))
    staged_by.publish(3, group, staged)
    names = published(tmp_path)
    declared_now.publish(3, group, staged)
    assert published(tmp_path) == names
