"""Debezium's messages from Kafka, in JSON and in Avro, give the same rows of changes."""

import io
import json

import fastavro
import pyarrow as pa
import pytest

from holdfast.graph.changing import DEBEZIUM, FromEnvelopes
from holdfast.schema import to_arrow_schema
from holdfast.sources.kafka.avro import AvroSchema
from holdfast.sources.kafka.values import AvroValues, JsonValues, ValueFormat

ROW = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.customers",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
STRUCT = "STRUCT<id: BIGINT, name: STRING>"
ANN, ANNA = {"id": 1, "name": "Ann"}, {"id": 1, "name": None}
MESSAGES = [
    {"before": None, "after": ANN, "op": "r", "ts_ms": 1},
    {"before": ANN, "after": ANNA, "op": "u", "ts_ms": 2},
    {"before": ANNA, "after": None, "op": "d", "ts_ms": None},
]


def in_avro(message: dict) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, ENVELOPE, message)
    return data.getvalue()


def in_json(message: dict) -> bytes:
    return json.dumps({**message, "source": {"table": "customers"}}).encode()


@pytest.mark.parametrize(
    ("form", "encode"),
    [
        (AvroValues(AvroSchema(ENVELOPE)), in_avro),
        (JsonValues(to_arrow_schema(f"before {STRUCT}, after {STRUCT}, op STRING, ts_ms BIGINT")), in_json),
    ],
    ids=["avro", "json"],
)
def test_messages_of_debezium_are_rows_of_changes(form: ValueFormat, encode) -> None:
    parsed = form.parse(pa.array([encode(message) for message in MESSAGES], pa.binary()))
    assert parsed.bad == []
    rows = pa.RecordBatch.from_arrays(parsed.columns, schema=form.schema)
    changes = FromEnvelopes("op", "before", "after", DEBEZIUM)(rows)
    assert [tuple(row.values()) for row in changes.to_pylist()] == [
        (1, "Ann", "insert"),
        (1, "Ann", "update_preimage"),
        (1, None, "update_postimage"),
        (1, None, "delete"),
    ]
