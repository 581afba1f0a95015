"""The Delta sink beside other writers: conflicts, merges, types, partitions."""

import datetime
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

from holdfast import failpoints
from holdfast.errors import BadRecord, PublishFailed, SettingsError, StorageError
from holdfast.sinks import delta as delta_module
from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.sinks.delta import DeltaSink
from holdfast.storage.store import ObjectStore, open_store

JOB = "0123456789abcdef0123456789abcdef"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
CHANGES = SCHEMA.append(pa.field("_change_type", pa.string()))


class Target:
    """A Delta table in a folder, and what a JobMaster does with a sink into it."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA, name: str = "out", **settings: Any) -> None:
        self.folder, self.schema, self.name = folder, schema, name
        self.settings = {"keys": ("k",)} | settings if settings.get("mode") == "upsert" else settings
        self.store: ObjectStore = open_store(f"memory://{uuid4().hex}")
        self.sink = DeltaSink(folder.as_uri(), **self.settings)
        self.sink.prepare(schema, SinkContext(JOB, name, self.store, self.store.url))

    def stage(self, *found: dict[str, Any], unit: int = 0, schema: pa.Schema | None = None) -> list[bytes]:
        batch = pa.RecordBatch.from_pylist(list(found), schema=schema or self.schema)
        return self.sink.stage(iter([batch]), StageContext(JOB, self.name, 1, 1, 1, unit, uuid4().hex, self.store))

    def publish(self, number: int, group: list[bytes]) -> None:
        DeltaSink(self.folder.as_uri(), **self.settings).publish(
            number, group, PublishContext(JOB, self.name, self.store, self.schema)
        )

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.folder)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.to_pyarrow_table().to_pylist()
        return sorted(found, key=repr)

    def pairs(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(row.values()) for row in self.rows()), key=repr)


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


def row(k: int | None, v: str | None = None, change: str | None = None) -> dict[str, Any]:
    return {"k": k, "v": v} | ({} if change is None else {"_change_type": change})


# Conflicts


def test_the_very_first_number_is_published_once_too(folder: Path) -> None:
    target = Target(folder)
    group = target.stage(row(1, "a"))
    target.publish(0, group)
    target.publish(0, group)
    assert target.pairs() == [(1, "a")]


def test_a_sink_that_turned_to_upserts_does_not_drop_files_staged_for_an_append(folder: Path, as_files: None) -> None:
    group = Target(folder).stage(row(1, "a"))
    with pytest.raises(PublishFailed, match="staged for mode='append'"):
        Target(folder, mode="upsert").publish(1, group)


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
    with pytest.raises(PublishFailed, match="does not take"):
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
    monkeypatch.setattr("holdfast.sinks.delta_files.UNCHECKED_AGE_S", -60.0)
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


# Upsert


def test_an_upsert_keeps_the_last_row_per_key_in_order_of_units(folder: Path) -> None:
    target = Target(folder, mode="upsert")
    group = target.stage(row(1, "a"), row(2, "b"), row(1, "c")) + target.stage(row(2, "d"), unit=1)
    target.publish(1, group)
    assert target.pairs() == [(1, "c"), (2, "d")]
    target.publish(2, target.stage(row(2, None), row(3, "e")))
    assert target.pairs() == [(1, "c"), (2, None), (3, "e")]
    assert target.table.version() == 2


def test_null_keys_are_keys_like_others(folder: Path) -> None:
    schema = pa.schema([("k", pa.int64()), ("j", pa.string()), ("v", pa.string())])
    target = Target(folder, schema, mode="upsert", keys=("k", "j"))
    cells = [(k, j) for k in (None, 1) for j in (None, "x")]
    target.publish(1, target.stage(*({"k": k, "j": j, "v": "first"} for k, j in cells)))
    target.publish(2, target.stage(*({"k": k, "j": j, "v": "second"} for k, j in cells)))
    assert target.rows() == sorted(({"k": k, "j": j, "v": "second"} for k, j in cells), key=repr)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n * 1000,
        lambda n: -(2**63) + n,
        lambda n: f"{'shared prefix ' * 20}{n:06d}",
        lambda n: "ü" * n,
        lambda n: datetime.date(1, 1, 1) + datetime.timedelta(n),
        lambda n: datetime.datetime(2013, 1, 1, 0, 0, 0, 999990 + n % 10) + datetime.timedelta(seconds=n // 10),
        lambda n: Decimal(f"1{n:030d}"),
        lambda n: 1.0 + n * 2**-52,
        lambda n: n.to_bytes(40),
        lambda n: None if n % 7 == 0 else n,
    ],
    ids=["int", "least", "prefix", "lengths", "date", "micros", "decimal", "double", "binary", "nulls"],
)
def test_files_that_a_merge_skips_hold_none_of_its_keys(make: Callable[[int], Any], folder: Path) -> None:
    values = [make(n) for n in range(24)]
    kind = pa.decimal128(38, 0) if isinstance(values[0], Decimal) else pa.array(values).type
    schema = pa.schema([("k", kind), ("v", pa.string())])
    for start in range(0, 24, 4):
        part = [{"k": key, "v": "old"} for key in values[start : start + 4]]
        if start % 8:  # files of the sink's own, and of delta-rs
            write_deltalake(folder, pa.Table.from_pylist(part, schema=schema), mode="append")
        else:
            appended = Target(folder, schema, name="append")
            appended.publish(start, appended.stage(*part))
    target = Target(folder, schema, mode="upsert")
    for number, key in enumerate(values, start=1):
        target.publish(number, target.stage({"k": key, "v": f"new {number}"}))
    found = [row["k"] for row in target.rows() if row["k"] is not None]
    assert sorted(set(found)) == sorted(found) == sorted(key for key in values if key is not None)
    assert all(row["v"].startswith("new ") for row in target.rows())


def test_change_types_insert_update_and_delete(folder: Path) -> None:
    target = Target(folder, CHANGES, mode="upsert")
    target.publish(1, target.stage(row(1, "a", "insert"), row(2, "b", "insert"), row(3, "c", "insert")))
    changes = [
        row(1, "a", "update_preimage"),
        row(1, "A", "update_postimage"),
        row(2, None, "delete"),
        row(4, "new", "insert"),
        row(4, None, "delete"),
        row(5, None, "delete"),
        row(3, None, "delete"),
        row(3, "back", "insert"),
        {"k": 6, "v": "plain", "_change_type": None},
    ]
    target.publish(2, target.stage(*changes))
    assert target.pairs() == [(1, "A"), (3, "back"), (6, "plain")]
    assert target.table.version() == 2
    assert "_change_type" not in target.table.to_pyarrow_table().schema.names


def test_deletes_that_find_nothing_are_published_once_all_the_same(folder: Path) -> None:
    target = Target(folder, CHANGES, mode="upsert")
    group = target.stage(row(1, None, "delete"))
    target.publish(1, group)
    target.publish(2, target.stage(row(1, "old", "update_preimage")))
    assert target.table.transaction_version(f"{JOB}/out") == 2
    write_deltalake(folder, pa.Table.from_pylist([row(1, "theirs")], schema=SCHEMA), mode="append")
    target.publish(1, group)
    assert target.pairs() == [(1, "theirs")]


def test_an_unknown_change_type_is_refused_in_the_task_before_anything_is_staged(folder: Path) -> None:
    target = Target(folder, CHANGES, mode="upsert")
    with pytest.raises(BadRecord, match=r"row .*'k': 2.* has _change_type 'upsert'"):
        target.stage(row(1, "a", "insert"), row(2, "b", "upsert"))
    assert target.store.list("") == []


def test_a_row_may_move_to_another_partition(folder: Path) -> None:
    target = Target(folder, mode="upsert", partition_by=("v",))
    target.publish(1, target.stage(row(1, "here"), row(2, "here"), row(None, None)))
    target.publish(2, target.stage(row(1, "there"), row(None, "here")))
    assert target.pairs() == [(1, "there"), (2, "here"), (None, "here")]


def test_columns_of_the_table_that_the_stream_lacks_are_left_alone(folder: Path) -> None:
    write_deltalake(folder, pa.table({"k": [1], "v": ["a"], "extra": ["kept"]}))
    target = Target(folder, mode="upsert")
    target.publish(1, target.stage(row(1, "b"), row(2, "c")))
    assert [tuple(found.values()) for found in target.rows()] == [(1, "b", "kept"), (2, "c", None)]


def test_names_of_columns_may_need_quotes(folder: Path) -> None:
    schema = pa.schema([("Key.1", pa.int64()), ('a"b', pa.string()), ("UPPER-ü", pa.string()), ("select", pa.string())])
    target = Target(folder, schema, mode="upsert", keys=("Key.1", "UPPER-ü"))
    first = {"Key.1": 1, 'a"b': "x", "UPPER-ü": "U", "select": "s"}
    target.publish(1, target.stage(first))
    target.publish(2, target.stage(first | {'a"b': "y"}))
    assert target.rows() == [first | {'a"b': "y"}]


def test_a_table_of_keys_alone_can_be_upserted(folder: Path) -> None:
    schema = pa.schema([("k", pa.int64())])
    target = Target(folder, schema, mode="upsert")
    target.publish(1, target.stage({"k": 1}, {"k": 2}))
    target.publish(2, target.stage({"k": 2}, {"k": 3}))
    assert target.rows() == [{"k": 1}, {"k": 2}, {"k": 3}]


def test_the_key_by_columns_are_the_default_keys(folder: Path) -> None:
    store = open_store(f"memory://{uuid4().hex}")
    sink = DeltaSink(folder.as_uri(), mode="upsert")
    sink.prepare(SCHEMA, SinkContext(JOB, "out", store, store.url, ("k",)))
    context = PublishContext(JOB, "out", store, SCHEMA, ("k",))
    for number, value in enumerate("ab"):
        batch = pa.RecordBatch.from_pylist([row(1, value)], schema=SCHEMA)
        sink.publish(number, sink.stage(iter([batch]), StageContext(JOB, "out", 1, 1, 1, 0, value, store)), context)
    assert DeltaTable(folder).to_pyarrow_table().to_pylist() == [row(1, "b")]


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
