"""The table of JSON values and types: the same at the top of a record, in its parts, and in the keys of maps."""

import datetime
import decimal
import json
import math

import pyarrow as pa
import pytest

from holdfast.json_rows.reader import JsonReader
from holdfast.json_rows.values import unfit_columns
from holdfast.schema import to_arrow_schema

WRONG = object()
"""The value of a record that is bad."""
DAY, MOMENT = datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4, 5)
UTC_MOMENT = MOMENT.replace(tzinfo=datetime.UTC)

OF_ALL_TYPES = {"null": None}
FITS: dict[str, dict[str, object]] = {
    "BOOLEAN": {"true": True, "false": False},
    "TINYINT": {"1": 1, "-128": -128, "127": 127, "-0": 0},
    "SMALLINT": {"300": 300, "-32768": -32768},
    "INT": {"2147483647": 2**31 - 1, "300": 300},
    "BIGINT": {"9223372036854775807": 2**63 - 1, "-9223372036854775808": -(2**63), "9007199254740993": 2**53 + 1},
    "FLOAT": {"1": 1.0, "0.1": 0.10000000149011612, "1e3": 1000.0, "3.4028235e38": 3.4028234663852886e38},
    "DOUBLE": {"1": 1.0, "-0": -0.0, "1.5": 1.5, "1e-400": 0.0, "5e-324": 5e-324, "0.1": 0.1},
    "DECIMAL(10,2)": {"1": decimal.Decimal(1), "1.5": decimal.Decimal("1.5"), '"1.25"': decimal.Decimal("1.25")},
    "DECIMAL(38,20)": {"1E-20": decimal.Decimal("1E-20"), "1e2": decimal.Decimal(100), '"-0"': decimal.Decimal(0)},
    "STRING": {
        '"a"': "a",
        '"\\u00e9"': "é",
        "1.50": "1.50",
        "true": "true",
        '{"b": [1, 2]}': '{"b": [1, 2]}',
        "[]": "[]",
    },
    "BINARY": {'"AP8="': b"\x00\xff", '""': b""},
    "DATE": {'"2026-01-02"': DAY, '"0001-01-01"': datetime.date(1, 1, 1)},
    "TIMESTAMP": {
        '"2026-01-02T03:04:05Z"': UTC_MOMENT,
        '"2026-01-02 04:04:05+01:00"': UTC_MOMENT,
        '"2026-01-02T03:04:05.123456789Z"': UTC_MOMENT.replace(microsecond=123456),
        '"1969-12-31T23:59:59.9999999Z"': datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC),
    },
    "TIMESTAMP_NTZ": {'"2026-01-02T03:04:05"': MOMENT, '"2026-01-02"': datetime.datetime(2026, 1, 2)},
}
NOT_FINITE = {'"NaN"': math.nan, '"Infinity"': math.inf, '"-Infinity"': -math.inf}
BARE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
FITS["FLOAT"] |= NOT_FINITE | BARE
FITS["DOUBLE"] |= NOT_FINITE | BARE
OF_NO_NUMBER = ["[]", "{}", "true", '"x"']
WHOLE = ["1.5", "1.0", "1e2", "NaN", '"1"', *OF_NO_NUMBER]
BAD: dict[str, list[str]] = {
    "BOOLEAN": ["1", "0", '"true"', "[]", "{}", "1.5"],
    "TINYINT": ["128", "-129", "1" * 400, *WHOLE],
    "SMALLINT": ["32768", *WHOLE],
    "INT": ["2147483648", "-2147483649", *WHOLE],
    "BIGINT": ["9223372036854775808", "1" * 5000, *WHOLE],
    "FLOAT": ["1e39", "-1e39", "9" * 400, '"1"', '""', *OF_NO_NUMBER],
    "DOUBLE": ["1e309", "-1e309", "9" * 400, '"1"', '"nan"', *OF_NO_NUMBER],
    "DECIMAL(10,2)": ["1.555", "123456789.1", "1e500", "NaN", '"NaN"', '" 1"', '""', *OF_NO_NUMBER],
    "DECIMAL(38,20)": [
        "1E-21",
        "1" * 19,
        "1" * 20,
        "9" * 20,
        "1" * 30,
        "9" * 400,
        "3.4e38",
        "9e37",
        '"9e37"',
        "1" * 39,
        *OF_NO_NUMBER,
    ],
    "STRING": [],
    "BINARY": ['"AP8"', '"?"', '"AP8=\\n"', '"é"', "1", "true", "[]", "{}"],
    "DATE": ['"2026-02-30"', '"soon"', '"2026-01-02T00:00:00"', "1", "true", "[]", "{}", '"10000-01-01x"'],
    "TIMESTAMP": ['"2026-01-02T03:04:05"', '"2026-01-02"', '"2026-01-02T24:00:00Z"', "1767322800", "1.5", "true", "[]"],
    "TIMESTAMP_NTZ": ['"2026-01-02T03:04:05Z"', '"2026-13-02"', "1767322800", "true", "{}", '"+300000-01-01"'],
}


def key_of(text: str) -> str:
    """Write a JSON value as the key of an object."""
    return text if text.startswith('"') else json.dumps(text)


PLACES = {
    "column": ("v {}", "{}", lambda value: value),
    "struct": ("v STRUCT<b: INT, a: {}>", '{{"a": {}, "z": [1]}}', lambda value: {"b": None, "a": value}),
    "array": ("v ARRAY<{}>", "[null, {}]", lambda value: [None, value]),
    "map": ("v MAP<STRING, {}>", '{{"k": {}}}', lambda value: [("k", value)]),
    "all": ("v ARRAY<STRUCT<m: MAP<STRING, {}>>>", '[{{"m": {{"": {}}}}}]', lambda value: [{"m": [("", value)]}]),
}


def cases(type_: str) -> dict[str, object]:
    return OF_ALL_TYPES | FITS[type_] | dict.fromkeys(BAD[type_], WRONG)


def same(found: object, wanted: object) -> bool:
    return repr(found) == repr(wanted) or (found == wanted and not isinstance(wanted, float))


def read(schema: pa.Schema, texts: list[bytes]) -> list[object]:
    """Read records together: the value of each, or `WRONG`."""
    rows, bad = JsonReader(schema).read(pa.array(texts, pa.binary()))
    good = iter(rows.column(0).to_pylist())
    wrong = {place for place, _ in bad}
    return [WRONG if place in wrong else next(good) for place in range(len(texts))]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("type_", FITS)
def test_a_value_fits_its_type_wherever_it_stands_and_whatever_stands_beside_it(type_, place):
    declared, text, whole = PLACES[place]
    schema = to_arrow_schema(declared.format(type_))
    records = [b'{"v": ' + text.format(value).encode() + b"}" for value in cases(type_)]
    wanted = [value if value is WRONG else whole(value) for value in cases(type_).values()]
    found = read(schema, records)
    assert [
        (record, one) for record, one, other in zip(records, found, wanted, strict=True) if not same(one, other)
    ] == []
    assert [read(schema, [record])[0] is WRONG for record in records] == [value is WRONG for value in wanted]


@pytest.mark.parametrize("type_", FITS)
def test_a_map_key_is_the_text_of_a_value(type_):
    given = {text: value for text, value in cases(type_).items() if text not in {"null", '"1"', '"true"'}}
    if type_ == "STRING":
        given = {'"1"': "1", '"null"': "null", '""': ""}
    if type_ == "BINARY":
        del given["true"]  # Four characters of base64.
    records = [f'{{"v": {{{key_of(text)}: 1}}}}'.encode() for text in given]
    found = read(to_arrow_schema(f"v MAP<{type_}, INT>"), records)
    wanted = [value if value is WRONG else [(value, 1)] for value in given.values()]
    assert [
        (record, one) for record, one, other in zip(records, found, wanted, strict=True) if not same(one, other)
    ] == []


def test_a_null_where_the_schema_forbids_it_is_bad_in_every_part():
    schema = to_arrow_schema("v STRUCT<a: INT NOT NULL> NOT NULL")
    texts = [b'{"v": {"a": 1}}', b'{"v": {"a": null}}', b'{"v": {}}', b'{"v": null}', b"{}"]
    assert read(schema, texts) == [{"a": 1}, WRONG, WRONG, WRONG, WRONG]
    items = pa.schema([("v", pa.list_(pa.field("element", pa.int32(), nullable=False)))])
    assert read(items, [b'{"v": [1]}', b'{"v": [1, null]}', b'{"v": null}']) == [[1], WRONG, None]
    values = pa.schema([("v", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)))])
    assert read(values, [b'{"v": {"a": 1}}', b'{"v": {"a": null}}']) == [[("a", 1)], WRONG]


def test_the_reason_names_the_place_of_the_value_and_the_value():
    schema = to_arrow_schema("v MAP<STRING, ARRAY<STRUCT<a: INT>>>")
    (bad,) = JsonReader(schema).read(pa.array([b'{"v": {"k": [{"a": 1.5}]}}'])).bad
    assert bad.reason == "column \"v['k'][].a\" is no int32: 1.5"


@pytest.mark.parametrize(
    ("type_", "fits", "bad"),
    [
        (pa.uint8(), {"255": 255}, ["256", "-1", "1.5"]),
        (pa.uint64(), {"18446744073709551615": 2**64 - 1}, ["18446744073709551616", "-1"]),
        (pa.float16(), {"1.5": 1.5}, ["1e6", "true"]),
        (pa.large_string(), {'"a"': "a", "1": "1"}, []),
        (pa.string_view(), {'"a"': "a"}, []),
        (pa.large_binary(), {'"AP8="': b"\x00\xff"}, ['"?"']),
        (pa.binary(2), {'"AP8="': b"\x00\xff"}, ['"AA=="']),
        (pa.decimal256(50, 2), {"1.5": decimal.Decimal("1.50")}, ["1.555", "true"]),
        (pa.date64(), {'"2026-01-02"': DAY}, ["1"]),
        (pa.time64("us"), {'"03:04:05.5"': datetime.time(3, 4, 5, 500000)}, ['"24:00:00"', "1", '"x"']),
        (pa.time32("s"), {'"03:04:05"': datetime.time(3, 4, 5)}, ["1"]),
        (pa.timestamp("ms"), {'"2026-01-02T03:04:05.0009"': MOMENT}, ["1"]),
        (pa.timestamp("s", "Europe/Berlin"), {'"2026-01-02T03:04:05.9Z"': UTC_MOMENT}, ['"2026-01-02T03:04:05"']),
        (pa.dictionary(pa.int32(), pa.string()), {'"a"': "a", "1": "1"}, []),
        (pa.large_list(pa.int32()), {"[1, null]": [1, None]}, ["[1.5]", "{}", "1"]),
        (pa.list_(pa.int32(), 2), {"[1, 2]": [1, 2]}, ["[1]", "[1, 1.5]", "{}"]),
        (pa.struct([]), {"{}": {}, '{"a": 1}': {}}, ["[]", "1"]),
        (pa.null(), {}, ["1", "{}", '""']),
    ],
)
def test_types_of_arrow_beyond_those_of_spark_are_read_or_refused_alike(type_, fits, bad):
    given = OF_ALL_TYPES | fits | dict.fromkeys(bad, WRONG)
    found = read(pa.schema([("v", type_)]), [f'{{"v": {text}}}'.encode() for text in given])
    assert found == list(given.values())


def test_types_without_values_in_json_are_named():
    schema = pa.schema([("v", pa.list_(pa.struct([("d", pa.duration("us"))])))])
    assert "column 'v'" in str(unfit_columns(schema)) and "duration[us]" in str(unfit_columns(schema))
    assert unfit_columns(pa.schema([("v", pa.map_(pa.int8(), pa.decimal256(50, 1)))])) is None
