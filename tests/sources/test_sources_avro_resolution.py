"""Schema resolution: random schemas against fastavro's own reader, and defaults as the specification has them."""

import datetime as dt
import io
import random
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from holdfast.errors import SettingsError
from holdfast.sources.kafka.avro import AvroSchema, encode, plain, unencodable
from holdfast.sources.kafka.values import AvroValues, Parsed

SEEDS = range(60)
BYTES_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
ENUM = {"type": "enum", "name": "e", "symbols": ["X", "Y", "Z"]}
PROMOTIONS = {"int": ["int", "long", "float", "double"], "long": ["long", "double"], "float": ["float", "double"]}
DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("int", 5, 5),
    ("long", -(2**63), -(2**63)),
    ("double", 1, 1.0),
    ("boolean", True, True),
    ("string", "ä", "ä"),
    ("bytes", "\u00ff\u0001", b"\xff\x01"),
    ({"type": "fixed", "name": "fx", "size": 2}, "\u00fe\u0002", b"\xfe\x02"),
    (BYTES_DECIMAL, "\u00ff\u0000", Decimal("-2.56")),
    ({"type": "long", "logicalType": "timestamp-millis"}, -1, dt.datetime(1969, 12, 31, 23, 59, 59, 999000, dt.UTC)),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, 1, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    ({"type": "int", "logicalType": "date"}, -1, dt.date(1969, 12, 31)),
    (ENUM, "Z", "Z"),
    (["null", "bytes"], None, None),
    (["bytes", "null"], "\u00ff", b"\xff"),
    (["null", "bytes"], "\u00ff", b"\xff"),
    ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
    ({"type": "map", "values": BYTES_DECIMAL}, {"k": "\u0001"}, [("k", Decimal("0.01"))]),
    (
        {
            "type": "record",
            "name": "inner",
            "fields": [{"name": "x", "type": "bytes"}, {"name": "y", "type": "bytes", "default": "\u00fe"}],
        },
        {"x": "\u00ff"},
        {"x": b"\xff", "y": b"\xfe"},
    ),
]


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": list(fields)}


def written(schema: Any, row: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), row)
    return buffer.getvalue()


def read(writer: Any, reader: Any, content: list[bytes]) -> Parsed:
    head = b"\x00" + (1).to_bytes(4, "big")
    values = AvroValues(AvroSchema(reader), {1: AvroSchema(writer)})
    return values.parse(pa.array([head + one for one in content], pa.binary()))


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS, ids=[str(case[:2])[:60] for case in DEFAULTS])
def test_a_field_that_the_writer_did_not_know_has_its_default(kind: Any, default: Any, expected: Any) -> None:
    old = record({"name": "a", "type": "int"})
    new = record({"name": "a", "type": "int"}, {"name": "b", "type": kind, "default": default})
    parsed = read(old, new, [written(old, {"a": number}) for number in (1, 2)])
    assert (parsed.columns[0].to_pylist(), parsed.columns[1].to_pylist()) == ([1, 2], [expected] * 2)
    again = read(new, new, [written(new, {"a": 3, "b": None if expected is None else unmapped(expected)})])
    assert again.columns[1].to_pylist() == [expected]


def unmapped(value: Any) -> Any:
    return dict(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else value


WRONG = [
    ("int", 2**31),
    ("int", "5"),
    ("bytes", "\u0100"),
    ({"type": "fixed", "name": "f", "size": 3}, "ab"),
    (ENUM, "Q"),
]


@pytest.mark.parametrize(("kind", "default"), WRONG, ids=str)
def test_a_default_that_is_no_value_of_its_type_is_refused_by_name(kind: Any, default: Any) -> None:
    with pytest.raises(SettingsError, match=r"schema"):
        AvroSchema(record({"name": "b", "type": kind, "default": default}))


def draw_value(kind: Any, draw: random.Random) -> Any:
    if isinstance(kind, list):
        return None if draw.random() < 0.4 else draw_value(next(one for one in kind if one != "null"), draw)
    match kind if isinstance(kind, str) else kind.get("logicalType", kind["type"]):
        case "int":
            return draw.randrange(-(2 ** draw.randrange(32)), 2 ** draw.randrange(32))
        case "long":
            return draw.randrange(-(2 ** draw.randrange(52)), 2 ** draw.randrange(52))
        case "float" | "double":
            return draw.choice([0.0, -1.5, 0.25, 1e30])
        case "boolean":
            return draw.random() < 0.5
        case "string":
            return draw.choice(["", "a", "äö", "x" * 100])
        case "bytes":
            return draw.randbytes(draw.randrange(4))
        case "fixed":
            return draw.randbytes(kind["size"])
        case "decimal":
            return Decimal(draw.randrange(-99_999, 99_999)).scaleb(-2)
        case "date":
            return dt.date.fromordinal(draw.randrange(1, 3_000_000))
        case "timestamp-millis" | "timestamp-micros":
            return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=draw.randrange(-(10**13), 10**13))
        case "enum":
            return draw.choice(kind["symbols"])
        case "array":
            return [draw_value(kind["items"], draw) for _ in range(draw.randrange(3))]
        case "map":
            return {str(key): draw_value(kind["values"], draw) for key in range(draw.randrange(3))}
    return {field["name"]: draw_value(field["type"], draw) for field in kind["fields"]}


def draw_kind(draw: random.Random, number: int, depth: int = 0) -> tuple[Any, Any]:
    """A type of the writer, and one of the reader that takes its values."""
    if depth < 2 and draw.random() < 0.3:
        old, new = draw_kind(draw, number * 10, depth + 1)
        if isinstance(old, list):
            return old, new
        made = draw.choice(["array", "map", "record", "union"])
        if made == "union":
            return (["null", old], ["null", new]) if draw.random() < 0.5 else (old, ["null", new])
        if made == "record":
            named = {"type": "record", "name": f"n{number}_{depth}"}
            return {**named, "fields": [{"name": "x", "type": old}]}, {**named, "fields": [{"name": "x", "type": new}]}
        below = "items" if made == "array" else "values"
        return {"type": made, below: old}, {"type": made, below: new}
    if draw.random() < 0.3:
        old = draw.choice(list(PROMOTIONS))
        return old, draw.choice(PROMOTIONS[old])
    same = draw.choice(
        [
            *("int", "long", "double", "boolean", "string", "bytes", BYTES_DECIMAL),
            {"type": "enum", "name": f"e{number}_{depth}", "symbols": ["X", "Y", "Z"]},
            {"type": "fixed", "name": f"f{number}_{depth}", "size": 3},
            {"type": "int", "logicalType": "date"},
            {"type": "long", "logicalType": draw.choice(["timestamp-millis", "timestamp-micros"])},
        ]
    )
    return same, same


def by_fastavro(old: Any, new: Any, content: bytes) -> Any:
    """The row that fastavro's reader gives, or None if it raises or the columns cannot hold the row."""
    try:
        row = plain(
            fastavro.schemaless_reader(io.BytesIO(content), fastavro.parse_schema(old), fastavro.parse_schema(new))
        )
        return pa.RecordBatch.from_pylist([row], schema=AvroSchema(new).columns).to_pylist()[0]
    except Exception:
        return None


@pytest.mark.parametrize("same", [True, False], ids=["written with the same schema", "with an older one"])
@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_random_schemas_are_read_as_fastavro_reads_them(seed: int, same: bool) -> None:
    draw = random.Random(seed)
    kinds = [draw_kind(draw, number) for number in range(draw.randrange(1, 5))]
    old = record(*({"name": f"c{number}", "type": kind} for number, (kind, _) in enumerate(kinds)))
    fields = [{"name": f"c{number}", "type": kind} for number, (_, kind) in enumerate(kinds)]
    new = old if same else record(*draw.sample(fields, draw.randrange(1, len(fields) + 1)))
    content = [written(old, draw_value(old, draw)) for _ in range(6)]
    for place in range(3):  # Half of the values are damaged.
        damaged = bytearray(content[place] or b"\x00")
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        content[place] = bytes(damaged[: draw.randrange(1, len(damaged) + 1)])
    parsed = read(old, new, content)
    bad = {place for place, _ in parsed.bad}
    rows = pa.RecordBatch.from_arrays(parsed.columns, schema=AvroSchema(new).columns).to_pylist()
    expected = {place: by_fastavro(old, new, one) for place, one in enumerate(content)}
    assert not bad & {3, 4, 5}
    for place, row in zip([place for place in range(6) if place not in bad], rows, strict=True):
        if place > 2 or expected[place] is not None:
            assert repr(row) == repr(expected[place])


def test_integers_text_and_days_that_the_type_cannot_hold_are_bad_records() -> None:
    schema = record(
        {"name": "n", "type": "int"},
        {"name": "s", "type": "string"},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "l", "type": {"type": "array", "items": ["null", "int"]}},
    )
    wide = record(
        {"name": "n", "type": "long"},
        {"name": "s", "type": "bytes"},
        {"name": "d", "type": "long"},
        {"name": "l", "type": {"type": "array", "items": ["null", "long"]}},
    )
    right = {"n": -(2**31), "s": b"a", "d": 1, "l": [None, 2**31 - 1]}
    rows = [
        right,
        {**right, "n": 2**31},
        {**right, "s": b"\xff"},
        {**right, "d": 2**40},
        {**right, "l": [2**40]},
        right,
    ]
    parsed = AvroValues(AvroSchema(schema)).parse(pa.array([written(wide, row) for row in rows], pa.binary()))
    assert [place for place, _ in parsed.bad] == [1, 2, 3, 4]
    assert "field 'n' has a value that int32 cannot hold" in parsed.bad[0].reason
    assert [column.to_pylist() for column in parsed.columns] == [
        [-(2**31)] * 2,
        ["a"] * 2,
        [dt.date(1970, 1, 2)] * 2,
        [[None, 2**31 - 1]] * 2,
    ]


def test_rows_that_avro_cannot_hold_are_found_before_they_are_encoded() -> None:
    schema = record(
        {"name": "t", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
    )
    times = pa.array([0, 253_402_300_800_000_000, 1], pa.int64()).cast(pa.timestamp("us"))
    maps = pa.array([[("k", 1)], [], [("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int64()))
    found = unencodable(pa.record_batch([times, maps], names=["t", "m"]), AvroSchema(schema))
    assert list(found) == [1, 2]


def test_times_are_rounded_down_to_the_unit_of_the_schema() -> None:
    schema = record({"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}})
    times = pa.array([-1, 1_999], pa.int64()).cast(pa.timestamp("us", "UTC"))
    content = encode(pa.record_batch([times], names=["t"]), AvroSchema(schema))
    assert content == [b"\x01", b"\x02"]
