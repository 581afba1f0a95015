"""Partition values: written values are read back by Spark, Arrow, DuckDB and delta-rs; the rest is refused before."""

import datetime
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import BadRecord, PublishFailed, QueryFailed
from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.sinks.partitions import (
    FOLDERS_BYTES_MAX,
    NULL_PARTITION,
    SEGMENT_BYTES_MAX,
    divide,
    folder,
    parquet_bytes,
    unstorable,
    unwritable,
)
from holdfast.storage.store import open_store
from holdfast.testing import TestSource, run

JOB = "0123456789abcdef0123456789abcdef"
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("d", pa.date32()), ("n", pa.int64()), ("b", pa.bool_())])
PARTITIONS = ("p", "d", "n", "b")
TEXTS = [
    None,
    "",
    " ",
    ".",
    "..",
    "~",
    "null",
    "NULL",
    "plain",
    "a b",
    "a/b\\c",
    "50%",
    "%41",
    "a=b&c?d#e",
    "'\"`<>|*:;,@!$^()[]{}",
    "line\nbreak\ttab\x00\x1f\x7f",
    "grüße",
    "日本",
    "🙂",
    "e\u0301",
    "\u00a0\u2028",
    "trailing.",
    "_hidden",
    "x" * (SEGMENT_BYTES_MAX - len("p=")),
    "é" * ((SEGMENT_BYTES_MAX - len("p=")) // 2),
]
DATES = [None, datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]
NUMBERS = [None, 0, -(2**63), 2**63 - 1]
ROWS = [
    {"k": k, "p": text, "d": DATES[k % 4], "n": NUMBERS[k // 4 % 4], "b": (None, True, False)[k % 3]}
    for k, text in enumerate(TEXTS)
]


def expected(rows: Any = ROWS) -> list[tuple[Any, ...]]:
    """An empty text is null, as it is where Spark writes it."""
    return [(row["k"], row["p"] or None, row["d"], row["n"], row["b"]) for row in rows]


def write(sink: Any, *, files: bool, monkeypatch: pytest.MonkeyPatch, rows: Any = ROWS) -> None:
    """Stage and publish rows, as files of their own or gathered."""
    monkeypatch.setattr(sys.modules[type(sink).__module__], "SMALL_BYTES_MAX", -1 if files else 1 << 20)
    store = open_store(f"memory://{uuid4().hex}")
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    assert sink.refused(batch) == {}
    sink.prepare(SCHEMA, SinkContext(JOB, "out", store))
    group = sink.stage(iter([batch]), StageContext(JOB, "out", 1, 1, 1, 0, "a", store))
    sink.publish(1, group, PublishContext(JOB, "out", store, SCHEMA))


def in_order(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in SCHEMA.names) for row in found)


def by_arrow(out: Path) -> list[dict[str, Any]]:
    hive = ds.partitioning(pa.schema([SCHEMA.field(name) for name in PARTITIONS]), flavor="hive")
    rows: list[dict[str, Any]] = ds.dataset(out, SCHEMA, partitioning=hive).to_table().to_pylist()
    return rows


def by_duckdb(out: Path) -> list[dict[str, Any]]:
    types = "{'p': VARCHAR, 'd': DATE, 'n': BIGINT, 'b': BOOLEAN}"
    found = duckdb.sql(
        f"SELECT k, p, d, n, b FROM read_parquet('{out}/**/part-*.parquet', hive_partitioning=true, hive_types={types})"
    )
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in found.fetchall()]


def by_delta_rs(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(out).to_pyarrow_table().to_pylist()
    return rows


@pytest.mark.parametrize("files", [True, False], ids=["files", "gathered"])
@pytest.mark.parametrize("read", [by_arrow, by_duckdb])
def test_every_value_in_a_parquet_folder_is_read_back(
    read: Any, files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(hf.ParquetSink(tmp_path.as_uri(), PARTITIONS), files=files, monkeypatch=monkeypatch)
    assert in_order(read(tmp_path)) == expected()


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("files", [True, False], ids=["files", "gathered"])
def test_every_value_in_a_delta_table_is_read_back(
    files: bool, mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("k",) if mode == "upsert" else None
    sink = hf.DeltaSink((tmp_path / "t").as_uri(), mode, keys, partition_by=PARTITIONS)
    rows = [*ROWS[:-1], ROWS[-1] | {"p": "é" * ((SEGMENT_BYTES_MAX - len("p=")) // 6)}]
    write(sink, files=files, monkeypatch=monkeypatch, rows=rows)
    assert in_order(by_delta_rs(tmp_path / "t")) == expected(rows)
    DeltaTable(tmp_path / "t").optimize.compact()
    assert in_order(by_delta_rs(tmp_path / "t")) == expected(rows)
    longer = pa.RecordBatch.from_pylist([ROWS[-1]], schema=SCHEMA)
    assert list(sink.refused(longer)) == [0], "delta-rs would have no name for the folder"


@pytest.mark.spark
def test_spark_reads_every_value_in_a_parquet_folder(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(hf.ParquetSink(tmp_path.as_uri(), PARTITIONS), files=False, monkeypatch=monkeypatch)
    found = spark.read.schema("k BIGINT, p STRING, d DATE, n BIGINT, b BOOLEAN").parquet(str(tmp_path)).collect()
    assert in_order([row.asDict() for row in found]) == expected()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.none() | st.text(max_size=300), min_size=1, max_size=8))
def test_a_value_is_refused_exactly_where_its_folder_has_no_name(texts: list[str | None]) -> None:
    texts = [text if text is None else text.encode("utf-8", "ignore").decode() for text in texts]
    rows = pa.record_batch({"p": pa.array(texts, pa.string()), "k": pa.array(range(len(texts)))})
    refused = unwritable(rows, ("p",))
    for number, text in enumerate(texts):
        named = folder({"p": text or None})
        too_long = len(named.rstrip("/").encode()) > SEGMENT_BYTES_MAX
        assert (number in refused) == (too_long or text == NULL_PARTITION)
    kept = rows.filter(pa.array([number not in refused for number in range(len(texts))]))
    parts = list(divide(pa.Table.from_batches([kept]), ("p",)))
    assert pc.sum(pa.array([part.rows.num_rows for part in parts], pa.int64())).as_py() in (kept.num_rows, None)


def test_values_that_cannot_be_read_back_are_refused_each_with_its_reason() -> None:
    long = "x" * 240
    columns = {
        "p": pa.array([NULL_PARTITION, "x" * 254, "ok", long, "ok"]),
        "d": pa.array([None, None, 2_932_897, 0, -719_163], pa.int32()).cast(pa.date32()),
        "q": pa.array(["", None, "ok", long, "ok"]),
        "r": pa.array(["", None, "ok", long, "ok"], pa.large_string()),
    }
    assert unwritable(pa.record_batch(columns), list(columns)) == {
        0: "partition column p: the value is the text that stands for null",
        1: f"partition column p: the value is too long: the name of its folder has more than {SEGMENT_BYTES_MAX} bytes",
        2: "partition column d: the value is not in the years 1 to 9999",
        3: f"partition columns p, d, q, r: the names of the folders have more than {FOLDERS_BYTES_MAX} bytes together",
        4: "partition column d: the value is not in the years 1 to 9999",
    }


def partitioned(tmp_path: Path, kind: str, keyed: bool, **settings: Any) -> tuple[hf.Job, Path]:
    """A job that writes texts into folders, two of which have no name; straight from its source, or behind a key."""
    out = tmp_path / "out"
    rows = [{"p": text, "k": k} for k, text in enumerate(["a", "x" * 300, "b", NULL_PARTITION, ""])]
    job = hf.Job(None, name="folders", storage=f"memory://{uuid4().hex}", **settings)
    stream = job.read(TestSource([rows], "p STRING, k BIGINT", name="texts"))
    if keyed:
        stream = stream.key_by("p").aggregate(k=hf.last("k"))
    sink = (
        hf.ParquetSink(out.as_uri(), ("p",)) if kind == "parquet" else hf.DeltaSink(out.as_uri(), partition_by=("p",))
    )
    stream.write(sink)
    return job, out


@pytest.mark.parametrize("keyed", [False, True], ids=["straight", "keyed"])
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_value_without_a_folder_is_a_bad_record(kind: str, keyed: bool, tmp_path: Path) -> None:
    job, _ = partitioned(tmp_path, kind, keyed)
    with pytest.raises(QueryFailed, match=f"sink '{kind}-1': partition column p: the value is") as failed:
        run(job)
    assert isinstance(failed.value.__cause__, BadRecord)
    letters = tmp_path / "letters"
    job, out = partitioned(tmp_path, kind, keyed, bad_records="dead_letter", dead_letters=letters.as_uri())
    run(job)
    found = DeltaTable(out).to_pyarrow_table() if kind == "delta" else ds.dataset(out, partitioning="hive").to_table()
    assert sorted(found["k"].to_pylist()) == [0, 2, 4]
    bad = ds.dataset(letters).to_table().to_pylist()
    assert sorted(row["reason"].split("value ")[1][:12] for row in bad) == ["is the text ", "is too long:"]


def test_a_name_that_no_store_ever_takes_ends_the_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing checks the length here, as where the table's own path leaves too little room."""
    monkeypatch.setattr(hf.ParquetSink, "refused", lambda self, rows: {})
    job, _ = partitioned(tmp_path, "parquet", keyed=False)
    with pytest.raises(QueryFailed, match="File name too long") as failed:
        run(job)
    assert isinstance(failed.value.__cause__, PublishFailed)


def test_times_that_parquet_cannot_hold_are_refused_at_any_depth() -> None:
    seconds, far = pa.timestamp("s"), 2**60
    nested = pa.array([[{"at": far}], [{"at": 1}], None], pa.list_(pa.struct([("at", seconds)])))
    days = pa.array([86_400_000, 2**60, 86_400_001]).view(pa.date64())
    maps = pa.array([[("a", 1)], [("a", far)], None], pa.map_(pa.string(), seconds))
    assert unstorable(pa.record_batch({"n": nested, "k": pa.array([1, 2, 3])})).keys() == {0}
    assert unstorable(pa.record_batch({"days": days})).keys() == {1, 2}
    assert unstorable(pa.record_batch({"maps": maps})).keys() == {1}
    kept = pa.array([5, None], seconds)
    assert unstorable(pa.record_batch({"at": kept})) == {}
    assert (
        pq.read_table(pa.BufferReader(parquet_bytes(pa.table({"at": kept})))).column("at").cast(seconds)[0] == kept[0]
    )
