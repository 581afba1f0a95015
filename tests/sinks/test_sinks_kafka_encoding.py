"""Messages that a Kafka sink makes of rows, without a broker: a source reads them as the same rows."""

import datetime
import decimal

import pyarrow as pa
import pytest

from holdfast.schema import to_arrow_schema
from holdfast.sinks.kafka.encoding import MessageLayout, messages, unfit
from holdfast.sources.kafka.values import JsonValues

AS_JSON = MessageLayout(None, "json", None, None)


def copied(rows: pa.Table) -> tuple[list[bytes], pa.Table]:
    """The messages of rows, and the rows that a source makes of these."""
    values = [message.value for message in messages(rows, AS_JSON)]
    columns, bad = JsonValues(rows.schema).parse(pa.array(values, pa.binary()))
    assert bad == []
    return values, pa.table(columns, schema=rows.schema)


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("MAP<STRING, BIGINT>", [("k", 1), ("", None)], b'{"k":1,"":null}'),
        ("MAP<DATE, MAP<INT, BINARY>>", [(datetime.date(2026, 1, 2), [(1, b"\x00")])], b'{"2026-01-02":{"1":"AA=="}}'),
        ("BINARY", b"\x00\xff", b'"AP8="'),
        ("DECIMAL(38,20)", decimal.Decimal("1E-20"), b'"1E-20"'),
        ("DOUBLE", float("-inf"), b'"-Infinity"'),
        ("FLOAT", 0.10000000149011612, b"0.10000000149011612"),
        ("BOOLEAN", False, b"false"),
        ("TIMESTAMP", datetime.datetime(1969, 12, 31, 23, 59, 59, 1, datetime.UTC), b'"1969-12-31T23:59:59.000001Z"'),
        ("TIMESTAMP_NTZ", datetime.datetime(2026, 1, 1), b'"2026-01-01T00:00:00"'),
        ("DATE", datetime.date(1, 1, 1), b'"0001-01-01"'),
        ("ARRAY<STRUCT<b: BINARY, m: MAP<STRING, INT>>>", [{"b": None, "m": [("x", 2)]}], b'[{"b":null,"m":{"x":2}}]'),
        ("STRING", None, b"null"),
    ],
)
def test_a_source_reads_the_values_that_a_sink_has_written(type_, value, text):
    rows = pa.Table.from_pylist([{"v": value}, {"v": None}], to_arrow_schema(f"v {type_}"))
    texts, found = copied(rows)
    assert texts == [b'{"v":' + text + b"}", b'{"v":null}']
    assert found.equals(rows)


def test_times_outside_of_the_calendar_of_python_are_written_and_read():
    moments = pa.array([253_402_300_800_000_000, -62_135_596_800_000_001, -(2**63), 2**63 - 1], pa.int64())
    days = pa.array([2_932_897, -719_529, -(2**31), 2**31 - 1], pa.int32())
    types = {"at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "day": pa.date32()}
    rows = pa.table({name: (days if name == "day" else moments).view(type_) for name, type_ in types.items()})
    texts, found = copied(rows)
    assert texts[0] == b'{"at":"+10000-01-01T00:00:00Z","local":"+10000-01-01T00:00:00","day":"+10000-01-01"}'
    assert texts[1].startswith(b'{"at":"0000-12-31T23:59:59.999999Z"') and b'"-0001-12-31"' in texts[1]
    assert all(a.chunk(0).equals(b.chunk(0)) for a, b in zip(found.columns, rows.columns, strict=True))


def test_columns_of_types_without_values_in_json_are_refused_by_name():
    schema = pa.schema([("k", pa.int64()), ("took", pa.duration("us"))])
    assert "column 'took' is duration[us]" in str(unfit(schema, "k", "json", None))
    assert unfit(schema, "took", "bytes", None) is not None and unfit(schema.remove(1), "k", "json", None) is None


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        (pa.array([1, None]), [b"1", None]),
        (pa.array([b"\xff\xff"], pa.binary(2)), [b"\xff\xff"]),
        (pa.array([b"\xff"], pa.large_binary()), [b"\xff"]),
        (pa.array([b"\xff"]).dictionary_encode(), [b"\xff"]),
        (pa.array(["a"], pa.string_view()), [b"a"]),
        (pa.array([datetime.date(2026, 1, 2)]), [b"2026-01-02"]),
        (pa.array([0], pa.timestamp("us", "UTC")), [b"1970-01-01 00:00:00.000000Z"]),
        (pa.array([2**62], pa.int64()).view(pa.timestamp("us")), [b"+148108-07-06T14:00:27.387904"]),
        (pa.array([2**31 - 1], pa.int32()).view(pa.date32()), [b"+5881580-07-11"]),
    ],
)
def test_a_key_is_its_bytes_or_its_text(values, keys):
    layout = MessageLayout("k", "json", None, None)
    assert [message.key for message in messages(pa.table({"k": values}), layout)] == keys
