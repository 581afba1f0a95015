"""Avro values: both libraries give the rows that were written, malformed values stand alone, frames name schemas."""

import datetime
import decimal
import io
import json

import cloudpickle
import fastavro
import pyarrow as pa
import pytest

from holdfast.errors import SettingsError
from holdfast.sources.kafka.avro import AvroSchema, encode, frame, schema_of_rows, unencodable
from holdfast.sources.kafka.values import AvroValues, Parsed

NOW = datetime.datetime(2026, 11, 24, 12, 30, 15, 123456, datetime.UTC)
PLAIN = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int32()),
        pa.field("real", pa.float64()),
        pa.field("short", pa.float32()),
        pa.field("on", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("place", pa.struct([pa.field("x", pa.int32()), pa.field("name", pa.string())])),
    ]
)
ROW_WISE = pa.schema(
    [
        *PLAIN,
        pa.field("raw", pa.binary()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("local", pa.timestamp("us")),
    ]
)
ROW = {
    "id": 7,
    "small": -3,
    "real": 1.5,
    "short": 0.25,
    "on": True,
    "text": "äö",
    "at": NOW,
    "day": NOW.date(),
    "tags": ["a", None],
    "counts": [("a", 1)],
    "place": {"x": 1, "name": None},
    "raw": b"\x00\x01",
    "price": decimal.Decimal("12.50"),
    "local": NOW.replace(tzinfo=None),
}
USER = {
    "type": "record",
    "name": "user",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
RENAMED = {**USER, "fields": [{"name": "id", "type": "int"}, {"name": "age", "type": "int"}]}


def rows_of(schema: pa.Schema) -> pa.RecordBatch:
    empty = dict.fromkeys(schema.names) | {"id": 8}
    return pa.RecordBatch.from_pylist([{name: ROW[name] for name in schema.names}, empty], schema=schema)


def written(schema: dict, *rows: dict) -> list[bytes]:
    """Values as another library writes them."""
    found = []
    for row in rows:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), row)
        found.append(buffer.getvalue())
    return found


def parsed(values: AvroValues, content: list[bytes | None]) -> Parsed:
    return values.parse(pa.array(content, pa.binary()))


def as_rows(found: Parsed) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.mark.parametrize("schema", [PLAIN, ROW_WISE], ids=["plain", "row-wise"])
def test_rows_come_back_as_they_were_written_and_other_readers_find_them(schema):
    avro, rows = AvroSchema(schema_of_rows(schema)), rows_of(schema)
    assert avro.columns.equals(schema)
    values = encode(rows, avro)
    found = AvroValues(avro).parse(pa.array(values))
    assert not found.bad
    assert pa.RecordBatch.from_arrays(found.columns, schema=schema).equals(rows)
    read = fastavro.schemaless_reader(io.BytesIO(values[0]), avro.parsed(), None)
    assert (read["id"], read["at"], read["place"], read["counts"]) == (7, NOW, {"x": 1, "name": None}, {"a": 1})


@pytest.mark.parametrize("more", [[], [{"name": "raw", "type": "bytes"}]], ids=["plain", "row-wise"])
def test_malformed_values_stand_alone_with_their_places(more):
    schema = {**USER, "fields": USER["fields"] + more}
    good = written(schema, *({"id": n, "name": "x" * n, "raw": b"r"} for n in range(5)))
    found = parsed(AvroValues(AvroSchema(schema)), [good[0], good[4][:-1], good[2], b"", good[3], None])
    assert [column[0] for column in zip(*[c.to_pylist() for c in found.columns], strict=True)] == [0, 2, 3]
    assert [bad.place for bad in found.bad] == [1, 3, 5]
    assert "no Avro value" in found.bad[0].reason
    assert "no value" in found.bad[2].reason


def test_values_of_several_schemas_are_read_in_order_by_the_id_of_their_frame():
    new, old = written(USER, {"id": 1, "name": "a"}, {"id": 3, "name": None}), written(RENAMED, {"id": 2, "age": 50})
    values = AvroValues(AvroSchema(USER), {7: AvroSchema(USER), 300: AvroSchema(RENAMED)})
    content = [frame(7) + new[0], frame(300) + old[0], frame(9) + new[0], b"\x01abcd", b"\x00", frame(7) + new[1], None]
    found = parsed(values, content)
    assert as_rows(found) == [(1, "a"), (2, None), (3, None)]
    assert [(bad.place, bad.reason.split(":")[0]) for bad in found.bad] == [
        (2, "was written with the schema of id 9, which schema_ids does not name"),
        (3, "begins with b'\\x01abcd'"),
        (4, "begins with b'\\x00'"),
        (6, "has no value"),
    ]


def test_no_values_give_no_rows_and_formats_travel_to_tasks():
    values = cloudpickle.loads(cloudpickle.dumps(AvroValues(AvroSchema(json.dumps(USER)), {1: AvroSchema(USER)})))
    assert as_rows(parsed(values, [])) == []
    assert as_rows(parsed(values, [frame(1) + written(USER, {"id": 1, "name": "a"})[0]])) == [(1, "a")]


@pytest.mark.parametrize(
    ("declared", "named"),
    [
        ("{", "no Avro schema"),
        ({"type": "string"}, "expected an Avro record"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "expected an Avro record"),
        ({**USER, "fields": [{"name": "a", "type": ["long", "string"]}]}, "field 'a'.*no column type"),
        ({**USER, "fields": [{"name": "a", "type": {"type": "int", "logicalType": "time-millis"}}]}, "time-millis"),
        ({**USER, "fields": [{"name": "a", "type": ["null", "user"]}]}, "field 'a'"),
        ({**USER, "fields": [{"name": "a", "type": "unknown"}]}, "unknown"),
    ],
)
def test_schemas_that_have_no_columns_are_refused_by_field(declared, named):
    with pytest.raises(SettingsError, match=named):
        AvroSchema(declared)


def test_a_logical_type_that_nobody_knows_is_passed_over():
    avro = AvroSchema({**USER, "fields": [{"name": "a", "type": {"type": "long", "logicalType": "miles"}}]})
    assert avro.columns.field("a").type == pa.int64()
    assert as_rows(parsed(AvroValues(avro), [b"\x02"])) == [(1,)]


def test_rows_that_a_schema_does_not_hold_are_named_before_they_are_staged():
    choosy = [
        {"name": "id", "type": "long"},
        {"name": "e", "type": {"type": "enum", "name": "e", "symbols": ["A"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ]
    avro = AvroSchema({**USER, "fields": choosy})
    rows = [(1, "A", ["x"]), (None, "A", ["x"]), (3, "B", ["x"]), (4, "A", [None])]
    batch = pa.RecordBatch.from_pylist([dict(zip(avro.columns.names, row, strict=True)) for row in rows])
    found = unencodable(batch, avro)
    assert sorted(found) == [1, 2, 3]
    assert "column 'id' is null" in found[1]
    assert not unencodable(batch.slice(0, 1), avro)
