"""Integers of Avro beyond 64 bits, which no value has by the specification: a bad record, wherever they stand."""

import io
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from holdfast.errors import SettingsError
from holdfast.sources.kafka.avro import AvroSchema
from holdfast.sources.kafka.avro_varints import check_integers
from holdfast.sources.kafka.values import AvroValues

MAX, MIN = b"\xfe" + b"\xff" * 8 + b"\x01", b"\xff" * 9 + b"\x01"
BEYOND = {
    "65 bits": b"\x80" * 9 + b"\x02",
    "70 bits": b"\xff" * 9 + b"\x7f",
    "77 bits": b"\x80" * 10 + b"\x01",
    "zero in eleven bytes": b"\x80" * 10 + b"\x00",
    "84 bits": b"\xff" * 11 + b"\x01",
}
FIELDS: dict[str, tuple[Any, bytes, bytes]] = {
    # A field's type, and the bytes before and after an integer in its value.
    "long": ("long", b"", b""),
    "int": ("int", b"", b""),
    "time": ({"type": "long", "logicalType": "timestamp-micros"}, b"", b""),
    "in a union": (["null", "long"], b"\x02", b""),
    "branch of a union": (["null", "long"], b"", b"\x02"),
    "length of a text": ("string", b"", b"abc"),
    "length of bytes": ("bytes", b"", b"abc"),
    "symbol": ({"type": "enum", "name": "e", "symbols": ["X", "Y"]}, b"", b""),
    "element": ({"type": "array", "items": "long"}, b"\x02", b"\x00"),
    "number of elements": ({"type": "array", "items": "long"}, b"", b"\x02\x00"),
    "value of a map": ({"type": "map", "values": "long"}, b"\x02\x02k", b"\x00"),
    "below a record": ({"type": "record", "name": "x", "fields": [{"name": "y", "type": "long"}]}, b"", b""),
    "after text of many bytes": ("long", b"", b""),
}


def formats(declared: Any) -> list[AvroValues]:
    """Readers of a record with this field: by columns, and by rows, since the reader's schema has a field more."""
    fields = [{"name": "text", "type": "string"}, {"name": "a", "type": declared}, {"name": "z", "type": "long"}]
    one = AvroSchema({"type": "record", "name": "r", "fields": fields})
    more = [*fields, {"name": "b", "type": "long", "default": 1}]
    other = AvroSchema({"type": "record", "name": "r", "fields": more})
    return [AvroValues(one), AvroValues(other, {1: one})]


def parsed(given: AvroValues, values: list[bytes]):
    head = b"\x00\x00\x00\x00\x01" if given.schema.names[-1] == "b" else b""
    return given.parse(pa.array([head + value for value in values], pa.binary()))


@pytest.mark.parametrize("place", FIELDS)
def test_an_integer_beyond_64_bits_is_a_bad_record_alone(place):
    declared, before, after = FIELDS[place]
    text = "汉字很多汉字".encode() if place.startswith("after") else b""
    head = bytes([2 * len(text)]) + text + before
    for given in formats(declared):
        values = [head + integer + after + b"\x02" for integer in BEYOND.values()]
        found = parsed(given, values)
        assert [each.place for each in found.bad] == list(range(len(values))), found.columns
        assert all(len(column) == 0 for column in found.columns)


def test_all_64_bits_are_taken_and_so_is_text_whose_bytes_look_like_an_integer_beyond():
    text = "汉字很多汉字".encode()
    for given in formats("long"):
        found = parsed(given, [bytes([2 * len(text)]) + text + integer + b"\x02" for integer in (MAX, MIN)])
        assert found.bad == []
        assert found.columns[1].to_pylist() == [2**63 - 1, -(2**63)]
        assert set(found.columns[0].to_pylist()) == {text.decode()}


def test_a_value_of_every_type_is_followed_to_its_end():
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "text", "type": "string"},
            {"name": "map", "type": {"type": "map", "values": ["null", "double", "boolean", "bytes"]}},
            {"name": "list", "type": {"type": "array", "items": {"type": "fixed", "name": "f", "size": 3}}},
            {"name": "one", "type": {"type": "record", "name": "x", "fields": [{"name": "y", "type": "float"}]}},
            {"name": "kind", "type": {"type": "enum", "name": "e", "symbols": ["X", "Y"]}},
            {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "last", "type": "long"},
        ],
    }
    row = {
        "text": "汉字很多汉字", "map": {"a": None, "b": 1.5, "c": True, "d": b"\xff" * 20}, "list": [b"abc"] * 3,
        "one": {"y": 1.0}, "kind": "Y", "time": 5, "last": 1,
    }  # fmt: skip
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), row)
    value = buffer.getvalue()
    expanded = fastavro.schema.expand_schema(schema)
    check_integers([value], expanded)
    for integer in BEYOND.values():
        with pytest.raises(ValueError, match=f"beyond 64 bits, at byte {len(value) - 1}"):
            check_integers([value[:-1] + integer], expanded)


@pytest.mark.parametrize("fields", [[], [{"name": "x", "type": {"type": "record", "name": "i", "fields": []}}]])
def test_an_array_whose_items_take_no_bytes_is_refused_since_a_short_value_could_keep_a_reader_for_years(fields):
    items = {"type": "record", "name": "e", "fields": fields}
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    with pytest.raises(SettingsError, match=r"field 'a': an item of .* takes no bytes"):
        AvroSchema(schema)
