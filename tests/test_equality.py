"""Equality of keys: a single rule, Spark's, wherever rows are brought together by key."""

import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import holdfast as hf
from holdfast.equality import normalised
from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.state.keys import encode_keys
from holdfast.state.table import StateTable
from holdfast.storage.store import open_store
from holdfast.testing import TestSource, run

JOB = "0123456789abcdef0123456789abcdef"
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
VALUES = [0.0, -0.0, math.nan, -math.nan, OTHER_NAN, 1.5, -1.5, math.inf, -math.inf]
KINDS = {"FLOAT": pa.float32(), "DOUBLE": pa.float64()}
BACKENDS = {"HashMap": hf.HashMapState(), "RocksDB": hf.RocksDBState(), "cache": hf.RocksDBState(cache_max_entries=1)}


def column(values: list[float | None], kind: pa.DataType) -> pa.Array:
    """The values with their bits, as far as the type has room for them."""
    dtype = np.float32 if pa.types.is_float32(kind) else np.float64
    valid = np.array([value is not None for value in values])
    return pa.array(np.array([value or 0.0 if value is None else value for value in values], dtype), kind, mask=~valid)


def named(value: float | None) -> str:
    """A key by Spark's rule."""
    if value is None:
        return "null"
    return "nan" if math.isnan(value) else repr(value + 0.0)


def counted(values: list[float | None]) -> dict[str, int]:
    names = [named(value) for value in values]
    return {name: names.count(name) for name in names}


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_values_that_are_one_key_have_the_same_bits_when_normalised(kind: pa.DataType) -> None:
    found = normalised(column([*VALUES, None], kind))
    assert found.type == kind
    assert [named(value) for value in found.to_pylist()] == [named(value) for value in [*VALUES, None]]
    bits = found.drop_null().to_numpy().view(f"u{kind.bit_width // 8}").tolist()
    assert len(set(bits)) == len(counted(VALUES))
    assert not math.copysign(1.0, found[1].as_py()) < 0, "there is no negative zero"


@pytest.mark.parametrize("others", [(), ("text",), ("text", "whole")])
@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_state_has_one_row_for_one_key(kind: pa.DataType, others: tuple[str, ...]) -> None:
    columns = {"k": column(VALUES, kind), "text": pa.array(["a"] * len(VALUES)), "whole": pa.array([1] * len(VALUES))}
    rows = pa.record_batch({name: columns[name] for name in ("k", *others)})
    hashes = encode_keys(rows, rows.schema.names).hashes.tolist()
    table = StateTable(rows.schema, pa.schema([("n", pa.int64())]), 128)
    table.begin(0)
    slots, names = table.lookup(rows).tolist(), [named(value) for value in VALUES]
    for i, name in enumerate(names):
        for j, other in enumerate(names):
            assert (slots[i] == slots[j]) == (hashes[i] == hashes[j]) == (name == other), (name, other)


@pytest.mark.parametrize("combine", [True, False])
@pytest.mark.parametrize("emit", ["changes", "every"])
@pytest.mark.parametrize("backend", list(BACKENDS))
@pytest.mark.parametrize("keys", [("k",), ("k", "text"), ("text", "k")], ids="-".join)
@pytest.mark.parametrize("kind", list(KINDS))
def test_key_by_brings_together_what_is_one_key(
    kind: str, keys: tuple[str, ...], backend: str, emit: Any, combine: bool
) -> None:
    """Rows come in several batches, to several subtasks; combined rows of senders meet rows that were not combined."""
    rows: list[list[dict[str, Any]]] = [[{"k": value, "text": "a"} for value in VALUES * times] for times in (1, 700)]
    sink = hf.MemorySink()
    job = hf.Job(
        None, name="floats", storage=f"memory://{uuid4().hex}", parallelism=3, state=BACKENDS[backend], combine=combine
    )
    stream = job.read(TestSource(rows, f"k {kind}, text STRING")).key_by(*keys)
    stream.aggregate(emit, n=hf.count()).write(sink)
    run(job)
    last = {named(row["k"]): row["n"] for row in sorted(sink.rows(), key=lambda row: row["n"])}
    assert last == {name: 701 * count for name, count in counted(list(VALUES)).items()}
    assert not any(row["k"] == 0 and math.copysign(1.0, row["k"]) < 0 for row in sink.rows())


class Numbered(hf.ProcessFunction):
    """Numbers the rows of each key."""

    n = hf.ValueState(pa.int64())

    def process(self, row: Any, ctx: Any) -> Iterable[tuple[str, int]]:
        self.n.update((self.n.value() or 0) + 1)
        yield f"{ctx.key!r} {row.k!r}", self.n.value()


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_function_has_one_state_for_one_key_and_sees_the_key_in_its_rows(kind: str) -> None:
    sink = hf.MemorySink()
    job = hf.Job(None, name="floats", storage=f"memory://{uuid4().hex}", parallelism=2)
    stream = job.read(TestSource([[{"k": value} for value in VALUES]] * 3, f"k {kind}")).key_by("k")
    stream.process(Numbered(), "seen STRING, n BIGINT").write(sink)
    run(job)
    expected = {f"{name} {name}": 3 * count for name, count in counted(list(VALUES)).items()}
    assert {row["seen"]: row["n"] for row in sorted(sink.rows(), key=lambda row: row["n"])} == expected


@pytest.mark.parametrize("written", ["by this sink", "by another writer"])
@pytest.mark.parametrize("others", [(), ("text",)], ids=["alone", "with text"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_an_upsert_keeps_one_row_for_one_key(
    kind: pa.DataType, others: tuple[str, ...], written: str, tmp_path: Path
) -> None:
    """The values of a group meet each other, and then those that are in the table; nulls are a key of their own."""
    schema = pa.schema([("k", kind), ("text", pa.string()), ("v", pa.int64())])
    store = open_store(f"memory://{uuid4().hex}")
    sink = hf.DeltaSink((tmp_path / "table").as_uri(), mode="upsert", keys=("k", *others))
    if written == "by another writer":
        first = [-0.0, OTHER_NAN, 1.5, None]
        columns = [column(first, kind), pa.array(["a"] * len(first)), pa.array([-1] * len(first))]
        write_deltalake(tmp_path / "table", pa.Table.from_arrays(columns, schema=schema))
    sink.prepare(schema, SinkContext(JOB, "out", store))
    values = [*VALUES, None]
    for number in (1, 2):
        columns = [column(values, kind), pa.array(["a"] * len(values)), pa.array(range(len(values)))]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        group = sink.stage(iter([rows]), StageContext(JOB, "out", 1, 1, number, 0, uuid4().hex, store))
        sink.publish(number, group, PublishContext(JOB, "out", store, schema))
    found = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert sorted(named(row["k"]) for row in found) == sorted(counted(values))
    last = {named(value): index for index, value in enumerate(values)}
    assert {named(row["k"]): row["v"] for row in found} == last


@pytest.mark.spark
def test_the_rule_is_that_of_spark(spark: Any) -> None:
    from pyspark.sql import functions as F

    for kind in KINDS:
        rows = spark.createDataFrame([(value, "a") for value in [*VALUES, None]], f"k {kind}, text STRING")
        for keys in (["k"], ["k", "text"]):
            found = {named(row["k"]): row["n"] for row in rows.groupBy(*keys).agg(F.count("*").alias("n")).collect()}
            assert found == counted([*VALUES, None])
