"""Sinks on something that speaks S3: paths with odd partition values, conditional commits, sweeping."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import boto3
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer

from holdfast.sinks.base import PublishContext, SinkContext, StageContext
from holdfast.sinks.delta.delta_sink import DeltaSink
from holdfast.sinks.parquet import ParquetSink
from holdfast.storage.store import open_store

JOB = "0123456789abcdef0123456789abcdef"
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string())])
ODD = "ü/%x y"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "secret"}
    boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket="bucket")
    yield {**keys, "aws_endpoint": endpoint, "aws_region": "us-east-1", "allow_http": "true"}
    server.stop()


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_delta_table_on_s3_takes_each_number_once(
    mode: Any, small: bool, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        monkeypatch.setattr("holdfast.sinks.delta.delta_sink.SMALL_BYTES_MAX", -1)
    url = f"s3://bucket/{uuid4().hex}"
    store = open_store("s3://bucket/job", options)
    keys = ("k",) if mode == "upsert" else None
    sink = DeltaSink(url, mode=mode, keys=keys, partition_by=("p",), storage_options=options)
    sink.prepare(SCHEMA, SinkContext(JOB, "out", store))
    for number in range(3):
        found = [{"k": number, "p": ODD}, {"k": -1, "p": None}]
        batch = pa.RecordBatch.from_pylist(found, schema=SCHEMA)
        group = sink.stage(iter([batch]), StageContext(JOB, "out", 1, 1, number, 0, uuid4().hex, store))
        for _ in range(2):
            sink.publish(number, group, PublishContext(JOB, "out", store, SCHEMA))
    table = DeltaTable(url, storage_options=options)
    rows = sorted(((row["k"], row["p"]) for row in table.to_pyarrow_table().to_pylist()), key=repr)
    nulls = 3 if mode == "append" else 1
    assert rows == [(-1, None)] * nulls + [(number, ODD) for number in range(3)]
    assert table.version() == 3


def test_parquet_files_on_s3_are_published_under_hive_names(options: dict[str, str]) -> None:
    url = f"s3://bucket/{uuid4().hex}"
    store = open_store("s3://bucket/job", options)
    sink = ParquetSink(url, ("p",), options)
    sink.prepare(SCHEMA, SinkContext(JOB, "out", store))
    batch = pa.RecordBatch.from_pylist([{"k": 1, "p": ODD}], schema=SCHEMA)
    group = sink.stage(iter([batch]), StageContext(JOB, "out", 1, 1, 1, 0, "a", store))
    sink.publish(1, group, PublishContext(JOB, "out", store, SCHEMA))
    (info,) = (info for info in open_store(url, options).list("") if not info.name.startswith("_"))
    assert info.name.startswith("p=ü%2F%25x%20y/part-")
