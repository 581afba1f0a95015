"""Schemas as Arrow schemas, DDL strings and Spark types."""

from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import SettingsError
from holdfast.schema import to_arrow_schema

ELEMENT = pa.field("element", pa.int32())


@pytest.mark.parametrize(
    ("ddl", "fields"),
    [
        ("a INT", [("a", pa.int32())]),
        ("a: int, b bigint", [("a", pa.int32()), ("b", pa.int64())]),
        (
            "a Byte, b SHORT, c Long, d REAL",
            [("a", pa.int8()), ("b", pa.int16()), ("c", pa.int64()), ("d", pa.float32())],
        ),
        (
            "c DECIMAL(10,2), d dec, e numeric(5)",
            [("c", pa.decimal128(10, 2)), ("d", pa.decimal128(10)), ("e", pa.decimal128(5))],
        ),
        ("f TIMESTAMP, g TIMESTAMP_NTZ", [("f", pa.timestamp("us", tz="UTC")), ("g", pa.timestamp("us"))]),
        ("d ARRAY<INT>", [("d", pa.list_(ELEMENT))]),
        ("m MAP<STRING, ARRAY<INT>>", [("m", pa.map_(pa.string(), pa.list_(ELEMENT)))]),
        (
            "e STRUCT<x: INT, y STRING NOT NULL>",
            [("e", pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string(), nullable=False)]))],
        ),
        ("s VARCHAR(3), t char(2)", [("s", pa.string()), ("t", pa.string())]),
        ("`a b` DATE COMMENT 'the day, it''s', `c``d` BINARY", [("a b", pa.date32()), ("c`d", pa.binary())]),
    ],
)
def test_ddl_means_what_it_means_to_spark(ddl: str, fields: list[tuple[str, pa.DataType]]) -> None:
    assert to_arrow_schema(ddl) == pa.schema(fields)


def test_not_null_is_kept() -> None:
    assert to_arrow_schema("a INT NOT NULL, b STRING") == pa.schema(
        [pa.field("a", pa.int32(), False), ("b", pa.string())]
    )


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("", "found 'the end' at character 0; expected a column name"),
        ("a", "found 'the end' at character 1; expected a type"),
        ("a INT b", "found 'b' at character 6; expected ',' or the end"),
        ("a FOO", "found 'FOO' at character 2; expected a type such as"),
        ("a DECIMAL(50, 2)", "found 'DECIMAL' at character 2"),
        ("a ARRAY<INT", "expected '>'"),
        ("a ARRAY INT", "expected '<'"),
        ("a INT NOT 5", "expected 'NULL'"),
        ("a INT COMMENT x", "expected a quoted text"),
        ("a DECIMAL(x)", "expected a number"),
        ("a INT; b INT", "found ';' at character 5"),
        ("a INT, a STRING", "names 'a' more than once"),
    ],
)
def test_ddl_that_cannot_be_read_is_refused_at_its_place(ddl: str, words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        to_arrow_schema(ddl)
    assert words in str(refused.value)


class SparkLike:
    """The part of a StructType that is needed."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def jsonValue(self) -> Any:
        return self._value


def struct_of(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]}


def test_a_spark_struct_type_is_read_from_its_json() -> None:
    inner = {"type": "array", "elementType": "integer", "containsNull": True}
    spark = struct_of(
        ("a", "integer"),
        ("b", "decimal(12,3)"),
        ("c", {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True}),
        ("d", struct_of(("x", "timestamp_ntz"))),
        ("e", "varchar(3)"),
    )
    assert to_arrow_schema(SparkLike(spark)) == pa.schema(
        [
            ("a", pa.int32()),
            ("b", pa.decimal128(12, 3)),
            ("c", pa.map_(pa.string(), pa.list_(ELEMENT))),
            ("d", pa.struct([("x", pa.timestamp("us"))])),
            ("e", pa.string()),
        ]
    )


@pytest.mark.parametrize("found", ["variant", "interval day to second", {"type": "udt", "class": "x"}])
def test_a_spark_type_without_counterpart_is_named(found: Any) -> None:
    with pytest.raises(SettingsError, match="no counterpart"):
        to_arrow_schema(SparkLike(struct_of(("a", found))))


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(SettingsError, match="expected a StructType"):
        to_arrow_schema(SparkLike("integer"))
    with pytest.raises(SettingsError, match=r"schema is 5 \(int\)"):
        to_arrow_schema(5)
    with pytest.raises(SettingsError, match="no columns"):
        to_arrow_schema(pa.schema([]))


def test_an_arrow_schema_is_taken_as_it_is() -> None:
    schema = pa.schema([("a", pa.uint16())])
    assert to_arrow_schema(schema) is schema
