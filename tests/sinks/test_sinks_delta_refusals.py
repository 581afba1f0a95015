"""Existing Delta tables that do not fit, and streams that Delta cannot hold: each difference is named at start()."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from holdfast.errors import JobRefused
from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.sinks.delta.delta_sink import DeltaSink
from holdfast.sinks.parquet import ParquetSink
from holdfast.storage.obstore_store import FileStore
from holdfast.storage.store import open_store

JOB = "0123456789abcdef0123456789abcdef"
STREAM = pa.schema([("k", pa.int64()), ("v", pa.string())])


def prepare(folder: Path, schema: pa.Schema = STREAM, **settings: Any) -> DeltaSink:
    sink = DeltaSink(folder.as_uri(), **settings)
    store = open_store(f"memory://{uuid4().hex}")
    sink.prepare(schema, SinkContext(JOB, "out", store))
    return sink


def column(name: str, kind: Any = "string", nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


K, V = column("k", "long"), column("v")


def existing(
    folder: Path,
    *columns: dict[str, Any],
    configuration: dict[str, str] | None = None,
    partitions: tuple[str, ...] = (),
    features: tuple[str, ...] = (),
) -> None:
    """A table as another writer may have made it, by its log alone."""
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        reader = [name for name in features if name in ("deletionVectors", "columnMapping")]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reader, "writerFeatures": features}
    metadata = {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": partitions,
        "configuration": configuration or {},
        "createdTime": 1,
    }
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    text = "\n".join(json.dumps(action) for action in ({"protocol": protocol}, {"metaData": metadata}))
    (log / f"{0:020d}.json").write_text(text)


@pytest.mark.parametrize(
    ("table", "settings", "named"),
    [
        ({"columns": [column("k", "integer"), V]}, {}, r"'k': the table has integer, the stream long \(int64\)"),
        ({"columns": [K]}, {}, r"'v' \(string\) is not in the table.*schema_mode=\"merge\""),
        ({"columns": [K, column("V")]}, {}, "'v': the table has 'V'; rename"),
        ({"columns": [column("k", "long", False), V]}, {}, "'k': the table forbids nulls, the stream allows them"),
        ({"columns": [K, V, column("w", "long", False)]}, {}, "'w': the table forbids nulls, the stream does not have"),
        (
            {"columns": [K, V, column("g", "long", **{"delta.generationExpression": "k + 1"})]},
            {},
            "'g' is a generated column",
        ),
        ({"columns": [K, V, column("i", "long", **{"delta.identity.start": 1})]}, {}, "'i' is an identity column"),
        (
            {"columns": [K, column("v", **{"delta.invariants": '{"expression":{"expression":"v > 1"}}'})]},
            {},
            "'v' has an invariant",
        ),
        ({"columns": [K, V, column("w", "long", CURRENT_DEFAULT="7")]}, {}, "'w' has a default"),
        ({"columns": [K, V], "configuration": {"delta.constraints.positive": "k > 0"}}, {}, r"'positive' \(k > 0\)"),
        (
            {
                "columns": [
                    column(name, kind, **{"delta.columnMapping.id": n, "delta.columnMapping.physicalName": f"c{n}"})
                    for n, (name, kind) in enumerate([("k", "long"), ("v", "string")])
                ],
                "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
                "features": ("columnMapping",),
            },
            {},
            r"column mapping \(mode name\)",
        ),
        (
            {"columns": [K, V], "partitions": ("v",)},
            {},
            r"partitioned by \('v',\), the sink by \(\): pass partition_by",
        ),
        ({"columns": [K, V]}, {"partition_by": ("v",)}, r"partitioned by \(\), the sink by \('v',\)"),
        ({"columns": [K, V], "features": ("rowTracking", "domainMetadata")}, {}, "does not know: rowTracking"),
        (
            {"columns": [K, V, column("_change_type")], "configuration": {"delta.enableChangeDataFeed": "true"}},
            {"schema": STREAM.append(pa.field("_change_type", pa.string()))},
            "'_change_type' is reserved by the table's change data feed",
        ),
        (
            {"columns": [K, V], "configuration": {"delta.appendOnly": "true"}},
            {"mode": "upsert", "keys": ("k",)},
            "append-only",
        ),
        (
            {
                "columns": [K, V],
                "configuration": {"delta.enableDeletionVectors": "true"},
                "features": ("deletionVectors",),
            },
            {"mode": "upsert", "keys": ("k",)},
            "deletion vectors",
        ),
        (
            {"columns": [K, V], "configuration": {"delta.setTransactionRetentionDuration": "interval 1 day"}},
            {},
            "setTransactionRetentionDuration",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name(
    table: dict[str, Any], settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    table = dict(table)
    existing(tmp_path / "t", *table.pop("columns"), **table)
    with pytest.raises(JobRefused, match=f"sink 'out' cannot write to file://.*does not fit.*{named}"):
        prepare(tmp_path / "t", **settings)
    assert DeltaTable(tmp_path / "t").version() == 0


def test_all_differences_are_named_at_once(tmp_path: Path) -> None:
    existing(tmp_path / "t", column("k", "string"), configuration={"delta.constraints.c": "k > 0"})
    with pytest.raises(JobRefused) as refused:
        prepare(tmp_path / "t")
    for named in ("constraint 'c'", "'k': the table has string", "'v' (string) is not in the table"):
        assert named in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "settings", "named"),
    [
        (pa.schema([("k", pa.uint64())]), {}, "'k': uint64 has no counterpart"),
        (pa.schema([("k", pa.timestamp("ns"))]), {}, r"'k': timestamp\[ns\] is finer"),
        (pa.schema([("k", pa.null())]), {}, "'k': null has no counterpart"),
        (pa.schema([("k", pa.list_(pa.duration("s")))]), {}, r"'k': duration\[s\] has no counterpart"),
        (pa.schema([("k", pa.int64()), ("K", pa.int64())]), {}, "'K': Delta does not tell it from 'k'"),
        (pa.schema([("a key", pa.int64())]), {}, "'a key': Delta allows no ' ' in names"),
        (STREAM, {"partition_by": ("day",)}, "partition column 'day' is not in the stream"),
        (pa.schema([("k", pa.int64()), ("f", pa.float64())]), {"partition_by": ("f",)}, "'f' is double; expected a"),
        (STREAM, {"partition_by": ("k", "v")}, "every column is a partition column"),
        (STREAM, {"mode": "upsert"}, "an upsert needs key columns"),
        (STREAM, {"mode": "upsert", "keys": ("x",)}, "key column 'x' is not in the stream"),
        (pa.schema([("k", pa.list_(pa.int64()))]), {"mode": "upsert", "keys": ("k",)}, "nested values cannot be keys"),
        (
            pa.schema([("k", pa.int64()), ("_change_type", pa.int8())]),
            {"mode": "upsert", "keys": ("k",)},
            "'_change_type' is int8, expected string",
        ),
    ],
)
def test_a_stream_that_delta_cannot_hold_is_refused_and_no_table_is_made(
    schema: pa.Schema, settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(JobRefused, match=named):
        prepare(tmp_path / "t", schema, **settings)
    assert not (tmp_path / "t").exists()


def test_a_missing_table_is_made_with_nullable_columns_and_partitions(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.uint16(), nullable=False), ("v", pa.large_string())])
    prepare(tmp_path / "t", schema, partition_by=("v",))
    prepare(tmp_path / "t", schema, partition_by=("v",))
    table = DeltaTable(tmp_path / "t")
    assert pa.schema(table.schema().to_arrow()) == pa.schema([("k", pa.int32()), ("v", pa.string())])
    assert table.metadata().partition_columns == ["v"]
    assert table.version() == 0


def test_new_columns_are_added_nullable_and_old_rows_have_null_in_them(tmp_path: Path) -> None:
    store = open_store(f"memory://{uuid4().hex}")

    def write(schema: pa.Schema, found: dict[str, Any], number: int, staged: list[bytes] | None = None) -> list[bytes]:
        sink = prepare(tmp_path / "t", schema, schema_mode="merge")
        batch = pa.RecordBatch.from_pylist([found], schema=schema)
        group = sink.stage(iter([batch]), StageContext(JOB, "out", 1, 1, 1, 0, "a", store))
        sink.publish(number, (staged or []) + group, PublishContext(JOB, "out", store, schema))
        return group

    write(STREAM, {"k": 1, "v": "a"}, 1)
    wider = STREAM.append(pa.field("w", pa.struct([("x", pa.int32())]), nullable=False))
    write(wider, {"k": 2, "v": "b", "w": {"x": 1}}, 2)
    found = sorted(DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist(), key=lambda one: one["k"])
    assert found == [{"k": 1, "v": "a", "w": None}, {"k": 2, "v": "b", "w": {"x": 1}}]


def test_a_changed_type_is_refused_in_merge_mode_too_and_adds_nothing(tmp_path: Path) -> None:
    prepare(tmp_path / "t")
    with pytest.raises(JobRefused, match="'v': the table has string, the stream long"):
        prepare(
            tmp_path / "t", pa.schema([("k", pa.int64()), ("v", pa.int64()), ("w", pa.int64())]), schema_mode="merge"
        )
    assert DeltaTable(tmp_path / "t").version() == 0


def test_rows_staged_before_a_column_was_added_are_published_with_null(tmp_path: Path) -> None:
    store = open_store(f"memory://{uuid4().hex}")
    settings: dict[str, Any] = {"mode": "upsert", "keys": ("k",), "schema_mode": "merge"}
    old = prepare(tmp_path / "t", **settings)
    batch = pa.RecordBatch.from_pylist([{"k": 1, "v": "a"}], schema=STREAM)
    group = old.stage(iter([batch]), StageContext(JOB, "out", 1, 1, 1, 0, "a", store))
    wider = STREAM.append(pa.field("w", pa.int64()))
    prepare(tmp_path / "t", wider, **settings).publish(1, group, PublishContext(JOB, "out", store, wider))
    assert DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist() == [{"k": 1, "v": "a", "w": None}]


def test_a_target_that_cannot_be_reached_is_refused_without_its_credentials(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JobRefused, match="sink 'out' cannot write to"):
        prepare(tmp_path / "file" / "t")
    options = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hidden",
        "aws_endpoint": "http://127.0.0.1:9",
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    store = open_store(f"memory://{uuid4().hex}")
    for sink in (DeltaSink("s3://bucket/t", storage_options=options), ParquetSink("s3://bucket/t", (), options)):
        with pytest.raises(JobRefused, match="s3://bucket/t") as refused:
            sink.prepare(STREAM, SinkContext(JOB, "out", store))
        assert "hidden" not in str(refused.value)
        assert "hidden" not in repr(sink)


def test_a_target_that_ignores_put_if_absent_is_refused_unless_a_lock_keeps_writers_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileStore, "create", FileStore.put)
    with pytest.raises(JobRefused, match="ignores the condition of put-if-absent"):
        prepare(tmp_path / "table")
    prepare(tmp_path / "table", storage_options={"AWS_S3_LOCKING_PROVIDER": "dynamodb"})
