"""The Delta sink beside other writers: conflicts, merges, types, partitions."""

import datetime
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import CommitProperties, QueryBuilder, Transaction, write_deltalake
from sinks_delta_kit import JOB, SCHEMA, Target, row

from holdfast import failpoints
from holdfast.errors import CorruptObject, PublishFailed, SettingsError, StorageError
from holdfast.sinks.base import PublishContext, StageContext
from holdfast.sinks.delta import delta_sink as delta_module
from holdfast.sinks.delta.delta_sink import DeltaSink
from holdfast.storage.store import open_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a table"


@pytest.fixture
def as_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces are written as files of their own too."""
    monkeypatch.setattr(delta_module, "SMALL_BYTES_MAX", -1)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Callable[[Callable[[], None], Callable[[], None]], None]]:
    """Runs the first call in a thread until it has loaded the table, then the second, then the rest of the first."""

    def run(first: Callable[[], None], meanwhile: Callable[[], None]) -> None:
        pause = tmp_path / "paused"
        failpoints.arm("sink.delta.loaded", f"pause:{pause}@1")
        errors: list[BaseException] = []

        def call() -> None:
            try:
                first()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while not pause.exists():
            assert thread.is_alive()
        meanwhile()
        pause.unlink()
        thread.join()
        if errors:
            raise errors[0]

    yield run
    failpoints.disarm()


# Conflicts


def test_the_very_first_number_is_published_once_too(folder: Path) -> None:
    target = Target(folder)
    group = target.stage(row(1, "a"))
    target.publish(0, group)
    target.publish(0, group)
    assert target.pairs() == [(1, "a")]


def test_an_upsert_does_not_drop_files_staged_for_an_append(folder: Path, as_files: None) -> None:
    group = Target(folder).stage(row(1, "a"))
    with pytest.raises(CorruptObject, match="StagedDeltaFile, expected StagedRows"):
        Target(folder, mode="upsert").publish(1, group)


@pytest.mark.parametrize("pieces", ["files", "gathered"])
@pytest.mark.parametrize(("before", "after"), [("append", "upsert"), ("upsert", "append")])
def test_a_group_is_published_by_the_mode_in_which_it_was_staged(
    before: str, after: str, pieces: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_module, "SMALL_BYTES_MAX", -1 if pieces == "files" else 1_000_000)
    target, now = Target(folder, mode=before), Target(folder, mode=after)
    group = target.stage(row(1, "a"), row(1, "b"))
    context = PublishContext(JOB, "out", target.store, SCHEMA)
    layout = target.sink.layout(context)
    now.sink.publish(1, group, replace(context, layout=layout))
    assert target.pairs() == ([(1, "a"), (1, "b")] if before == "append" else [(1, "b")])


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_two_publishers_of_one_number_have_one_effect(mode: str, folder: Path, held: Any) -> None:
    target = Target(folder, mode=mode)
    group = target.stage(row(1, "a"), row(2, "b"))
    held(lambda: target.publish(5, group), lambda: target.publish(5, group))
    assert target.pairs() == [(1, "a"), (2, "b")]
    assert target.table.version() == 1


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_publisher_that_slept_through_later_numbers_changes_nothing(mode: str, folder: Path, held: Any) -> None:
    target = Target(folder, mode=mode)
    old, new = target.stage(row(1, "old")), target.stage(row(1, "new"))

    def others() -> None:
        target.publish(5, old)
        target.publish(6, new)

    held(lambda: target.publish(5, old), others)
    assert target.pairs() == ([(1, "new"), (1, "old")] if mode == "append" else [(1, "new")])


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_many_publishers_at_once_have_one_effect_per_number(mode: str, folder: Path) -> None:
    target = Target(folder, mode=mode)
    groups = [target.stage(row(k, f"v{k}")) for k in range(4)]
    errors: list[BaseException] = []

    def publish_all() -> None:
        try:
            for number, group in enumerate(groups):
                target.publish(number, group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=publish_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert target.pairs() == [(k, f"v{k}") for k in range(4)]
    assert target.table.version() == 4


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_foreign_commit_between_load_and_commit_is_kept(mode: str, folder: Path, held: Any) -> None:
    target = Target(folder, mode=mode)
    group = target.stage(row(1, "mine"), row(2, "mine"))
    foreign = pa.Table.from_pylist([row(1, "theirs")], schema=SCHEMA)
    held(lambda: target.publish(5, group), lambda: write_deltalake(folder, foreign, mode="append"))
    theirs = [(1, "theirs")] if mode == "append" else []
    assert target.pairs() == sorted([(1, "mine"), (2, "mine"), *theirs])


def test_a_conflict_that_never_ends_is_an_io_error_and_publishes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(folder, mode="upsert")
    group = target.stage(row(1, "a"))
    foreign = pa.Table.from_pylist([row(9, "theirs")], schema=SCHEMA)

    def commit_first(name: str) -> None:
        if name == "sink.delta.loaded":
            write_deltalake(folder, foreign, mode="append")

    monkeypatch.setattr(delta_module, "hit", commit_first)
    monkeypatch.setattr(delta_module, "CONFLICTS_MAX", 3)
    with pytest.raises(StorageError, match="refused 3 commits in a row"):
        target.publish(1, group)
    assert target.pairs() == [(9, "theirs")] * 3
    monkeypatch.undo()
    target.publish(1, group)
    assert (1, "a") in target.pairs()


def test_several_sinks_and_jobs_share_one_table(folder: Path) -> None:
    one, two = Target(folder, name="one"), Target(folder, name="two")
    one.publish(5, one.stage(row(1, "one")))
    two.publish(5, two.stage(row(2, "two")))
    one.publish(5, one.stage(row(3, "again")))
    assert one.pairs() == [(1, "one"), (2, "two")]
    assert one.table.transaction_version(f"{JOB}/one") == 5


def test_a_table_that_changed_under_the_job_fails_for_good_and_says_how(folder: Path) -> None:
    target = Target(folder)
    group = target.stage(row(1, "a"))
    target.table.alter.add_constraint({"positive": "k > 0"})
    with pytest.raises(PublishFailed, match=r"was changed.*constraint 'positive' \(k > 0\)"):
        target.publish(1, group)
    assert target.rows() == []


def test_a_table_that_was_dropped_fails_for_good(folder: Path) -> None:
    target = Target(folder)
    group = target.stage(row(1, "a"))
    for file in (folder / "_delta_log").iterdir():
        file.unlink()
    with pytest.raises(PublishFailed, match="does not accept"):
        target.publish(1, group)


def test_a_store_that_cannot_be_reached_is_an_io_error() -> None:
    options = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hidden",
        "aws_endpoint": "http://127.0.0.1:9",
        "aws_region": "us-east-1",
        "allow_http": "true",
        "max_retries": "0",
    }
    sink = DeltaSink("s3://bucket/table", mode="upsert", keys=("k",), storage_options=options)
    assert "hidden" not in repr(sink)
    store = open_store(f"memory://{uuid4().hex}")
    batch = pa.RecordBatch.from_pylist([row(1, "a")], schema=SCHEMA)
    group = sink.stage(iter([batch]), StageContext(JOB, "out", 1, 1, 1, 0, "a", store))
    with pytest.raises((OSError, StorageError)) as caught:
        sink.publish(1, group, PublishContext(JOB, "out", store, SCHEMA))
    assert "hidden" not in str(caught.value)


# Append


def test_an_append_that_vacuum_took_before_its_commit_is_refused(
    folder: Path, as_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(folder)
    group = target.stage(row(1, "a"))
    next(folder.glob("*.parquet")).unlink()
    monkeypatch.setattr("holdfast.sinks.delta.table_files.UNCHECKED_AGE_S", -60.0)
    with pytest.raises(PublishFailed, match="VACUUM"):
        target.publish(1, group)
    assert target.table.version() == 0


def test_staged_appends_lie_in_the_tables_folder_and_vacuum_takes_what_was_never_committed(
    folder: Path, as_files: None
) -> None:
    target = Target(folder)
    target.stage(row(1, "lost"))
    target.publish(1, target.stage(row(2, "kept")))
    assert len(list(folder.glob("*.parquet"))) == 2
    target.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert len(list(folder.glob("*.parquet"))) == 1
    assert target.pairs() == [(2, "kept")]


def test_partitions_keep_every_value_also_odd_ones(folder: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("p", pa.string()), ("d", pa.date32()), ("b", pa.bool_())])
    target = Target(folder, schema, partition_by=("p", "d", "b"))
    day = datetime.date(2013, 1, 1)
    found = [
        {"k": k, "p": p, "d": day, "b": k % 2 == 0} for k, p in enumerate(["a b", "ü/%x", "x=1&+", "..", "'\"", None])
    ]
    found += [{"k": 9, "p": "a b", "d": None, "b": None}, {"k": 10, "p": "a b", "d": day, "b": True}]
    target.publish(1, target.stage(*found))
    assert target.rows() == sorted(found, key=repr)
    assert len(target.table.file_uris()) == 7
    dates = target.table.to_pyarrow_table(filters=[("p", "=", "ü/%x")])
    assert dates.column("k").to_pylist() == [1]


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_an_empty_partition_value_becomes_null_as_delta_reads_it(mode: str, folder: Path) -> None:
    target = Target(folder, mode=mode, partition_by=("v",))
    target.publish(1, target.stage(row(1, ""), row(2, "x")))
    assert target.pairs() == [(1, None), (2, "x")]


def test_statistics_let_readers_skip_files_and_never_hide_a_row(folder: Path) -> None:
    schema = pa.schema(
        [("f", pa.float64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(38, 2))]
    )
    target = Target(folder, schema)
    late = datetime.datetime(2200, 12, 31, 23, 59, 59, 999999, datetime.UTC)
    found = [
        {"f": 0.0, "s": "z" * 40, "t": late, "d": Decimal("999999999999999999999999999999999999.99")},
        {"f": -0.0, "s": "", "t": None, "d": None},
    ]
    target.publish(1, target.stage(*found))
    target.publish(2, target.stage({"f": float("nan"), "s": "y", "t": late, "d": Decimal("0.01")}))
    for condition, expected in [("f = 0", 2), ("s > 'zz'", 1), ("t = '2200-12-31T23:59:59.999999Z'", 2), ("d > 1", 1)]:
        query = QueryBuilder().register("t", target.table).execute(f"select count(*) as n from t where {condition}")
        assert pa.table(query.read_all()).column("n").to_pylist() == [expected], condition
    stats = pa.table(target.table.get_add_actions(flatten=True)).to_pylist()
    assert sorted(one["num_records"] for one in stats) == [1, 2]
    assert {one["max.s"] for one in stats} == {"y", None}


# Types

TYPES = pa.schema(
    [
        ("k", pa.int64()),
        ("decimal", pa.decimal128(20, 4)),
        ("utc", pa.timestamp("us", "UTC")),
        ("zone", pa.timestamp("ms", "America/New_York")),
        ("local", pa.timestamp("us")),
        ("date", pa.date32()),
        ("text", pa.large_string()),
        ("coded", pa.dictionary(pa.int32(), pa.string())),
        ("bytes", pa.binary()),
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("unsigned", pa.uint32()),
        ("real", pa.float32()),
        ("list", pa.list_(pa.int32())),
        ("struct", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        ("map", pa.map_(pa.string(), pa.float64())),
    ]
)
MOMENT = datetime.datetime(2013, 1, 1, 5, 15, 0, 123000)
FULL = {
    "k": 1,
    "decimal": Decimal("1234567890123456.7891"),
    "utc": MOMENT.replace(tzinfo=datetime.UTC),
    "zone": MOMENT.replace(tzinfo=datetime.UTC),
    "local": MOMENT,
    "date": MOMENT.date(),
    "text": "grüße",
    "coded": "UA",
    "bytes": b"\x00\xff",
    "flag": True,
    "small": -3,
    "unsigned": 4_000_000_000,
    "real": 0.5,
    "list": [1, None, 3],
    "struct": {"a": 1, "b": ["x", None]},
    "map": [("x", 1.5), ("y", None)],
}


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_every_type_comes_back_as_it_went_in(mode: str, folder: Path) -> None:
    target = Target(folder, TYPES, mode=mode)
    empty = dict.fromkeys(FULL) | {"k": 2}
    target.publish(1, target.stage(FULL, empty))
    assert target.rows() == sorted([FULL, empty], key=repr)
    Target(folder, TYPES, mode=mode)


def test_settings_that_make_no_sense_are_refused_when_made() -> None:
    for settings, match in [
        ({"mode": "overwrite"}, "append, upsert"),
        ({"schema_mode": "overwrite"}, "fail, merge"),
        ({"partition_by": "day"}, "sequences"),
        ({"keys": ("k",)}, 'mode="upsert"'),
    ]:
        with pytest.raises(SettingsError, match=match):
            DeltaSink("file:///t", **settings)  # type: ignore[arg-type]


def test_app_transactions_of_other_writers_are_kept(folder: Path) -> None:
    target = Target(folder)
    foreign = CommitProperties(app_transactions=[Transaction("other", 41)])
    write_deltalake(
        folder, pa.Table.from_pylist([row(9, "x")], schema=SCHEMA), mode="append", commit_properties=foreign
    )
    target.publish(1, target.stage(row(1, "a")))
    assert target.table.transaction_version("other") == 41
