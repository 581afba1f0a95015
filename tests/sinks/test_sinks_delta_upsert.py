"""Upserts of the Delta sink: a row per key, deletes, keys of every kind, columns beside them."""

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from sinks_delta_kit import CHANGES, JOB, SCHEMA, Target, row

from holdfast.errors import BadRecord
from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.sinks.delta.delta_sink import DeltaSink
from holdfast.storage.store import open_store
from sampling import quick


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a table"


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


KEYS: dict[str, Callable[[int], Any]] = {
    "int": lambda n: n * 1000,
    "least": lambda n: -(2**63) + n,
    "prefix": lambda n: f"{'shared prefix ' * 20}{n:06d}",
    "lengths": lambda n: "ü" * n,
    "date": lambda n: datetime.date(1, 1, 1) + datetime.timedelta(n),
    "micros": lambda n: datetime.datetime(2013, 1, 1, 0, 0, 0, 999990 + n % 10) + datetime.timedelta(seconds=n // 10),
    "decimal": lambda n: Decimal(f"1{n:030d}"),
    "double": lambda n: 1.0 + n * 2**-52,
    "binary": lambda n: n.to_bytes(40),
    "nulls": lambda n: None if n % 7 == 0 else n,
}


@pytest.mark.parametrize("make", quick("prefix", "micros", "decimal", "nulls", of=KEYS))
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
    for number in range(1, 13):
        target.publish(number, target.stage(*({"k": key, "v": f"new {number}"} for key in values[number - 1 :: 12])))
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


def test_the_row_before_an_update_goes_if_the_row_after_has_another_key(folder: Path) -> None:
    target = Target(folder, CHANGES, mode="upsert")
    target.publish(1, target.stage(row(1, "a", "insert")))
    target.publish(2, target.stage(row(1, "a", "update_preimage"), row(2, "a", "update_postimage")))
    assert target.pairs() == [(2, "a")]


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
    sink.prepare(SCHEMA, SinkContext(JOB, "out", store, ("k",)))
    context = PublishContext(JOB, "out", store, SCHEMA, ("k",))
    for number, value in enumerate("ab"):
        batch = pa.RecordBatch.from_pylist([row(1, value)], schema=SCHEMA)
        sink.publish(number, sink.stage(iter([batch]), StageContext(JOB, "out", 1, 1, 1, 0, value, store)), context)
    assert DeltaTable(folder).to_pyarrow_table().to_pylist() == [row(1, "b")]
