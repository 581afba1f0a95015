"""The table of JSON values and types: the same at the top of a record, in its parts, and in the keys of maps."""

import datetime
import decimal

import pyarrow as pa
import pytest
from json_rows_table_kit import DAY, FITS, MOMENT, OF_ALL_TYPES, UTC_MOMENT, WRONG, cases, key_of

from holdfast.json_rows.reader import JsonReader
from holdfast.json_rows.values import unfit_columns
from holdfast.schema import to_arrow_schema

PLACES = {
    "column": ("v {}", "{}", lambda value: value),
    "struct": ("v STRUCT<b: INT, a: {}>", '{{"a": {}, "z": [1]}}', lambda value: {"b": None, "a": value}),
    "array": ("v ARRAY<{}>", "[null, {}]", lambda value: [None, value]),
    "map": ("v MAP<STRING, {}>", '{{"k": {}}}', lambda value: [("k", value)]),
    "all": ("v ARRAY<STRUCT<m: MAP<STRING, {}>>>", '[{{"m": {{"": {}}}}}]', lambda value: [{"m": [("", value)]}]),
}


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
        del given["true"], given["Infinity"]  # Four and eight characters of base64.
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
