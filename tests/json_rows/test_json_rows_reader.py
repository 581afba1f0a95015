"""Records of JSON: what is written is read back, and the row of a record depends on that record alone."""

import sys
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from json_rows_kit import comparable, some_rows

from holdfast.json_rows import reader
from holdfast.json_rows.nesting import DEPTH_MAX, TOO_DEEP
from holdfast.json_rows.reader import JsonReader
from holdfast.json_rows.writer import row_texts, unwritable
from holdfast.schema import to_arrow_schema

ODD: list[bytes | None] = [
    b"", b" ", b"null", b"1", b"[]", b"{", b"}", b"{}}", b"{}{}", b"{} {}", b"{}\n{}", b"\xef\xbb\xbf{}",
    b"[" * 999, None, b" {} ", b"{}\r\n", b'{"v": 1}\0}', b'{"v": 1, "v": 2}', b'{"v": 1, "z": NaN}',
    b'{"v": 1, "z": -Infinity}', b'{"v": NaN}', b'{"v": Inf}', b'{"v": -NaN}', b'{"v": nan}', b'{"v": 1NaN}',
    b'{NaN: 1}', b'{"v": "NaN"}', b'{"v": "x", "z": [NaN, "NaN,"]}', b'{"v": 1, "z": "\xff"}',
    b'{"v": 1, "\xff": 2}', b'{"v": "\xff"}', b'{"v": "\\ud800"}', b'{"v": 1, "z": "\\ud800"}', b'{"v": -0}',
    b'{"v": -0.0}', b'{"v": 1' + b"0" * 400 + b"}", b'{"v": 1, "z": 1e999}', b'{"v": 1e999}', b'{"v": 01}',
    b'{"v": 1.5}', b'{"v": 1.0}', b'{"v": true}', b'{"v": "1"}', b'{"v": [1]}', b'{"v": {"a": 1.5, "a": 2}}',
    b'{"\\u0076": 1}', b'{"v": "2026-01-02"}', b'{"v": "2026-01-02T03:04:05.1234567Z"}', b'{"v": "+12026-01-02"}',
    b'{"v": 123456789.1}', b'{"v": 1,}', b"{'v': 1}", b'{"v": +1}', b'{"v": .5}', b'{"v": 1, /**/ "z": 1}',
    b'{"v":\x0b1}', b'{"v": "\x01"}', b'{"v": "\t"}',
    b'{"v": 1, "z": ' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}",
    b'{"v": 1, "z": ' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}",
    b'{"v": 1, "z": ' + b"[" * 2000 + b"]" * 2000 + b"}", b'{"v": 1, "z": [' + b"{}," * 999 + b"{}]}",
    b'{"v": 1, "z": "' + b"[" * 999 + b'"}',
]  # fmt: skip


ODD_TYPES = [
    *(
        "BIGINT",
        "TINYINT",
        "DOUBLE",
        "FLOAT",
        "STRING",
        "BOOLEAN",
        "DECIMAL(10,2)",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "DATE",
    ),
    *("BINARY", "STRUCT<a: INT>", "ARRAY<DOUBLE>", "MAP<STRING, INT>"),
]


def fates(schema: pa.Schema, records: list[bytes | None]) -> list[Any]:
    """The row of each record, or the reason why it is bad."""
    rows, bad = JsonReader(schema).read(pa.array(records, pa.binary()))
    good = iter(zip(*map(comparable, rows.columns), strict=True))
    reasons = dict(bad)
    return [reasons[place] if place in reasons else next(good) for place in range(len(records))]


def mutated(random: Random, record: bytes) -> bytes:
    data = bytearray(record)
    for _ in range(random.randrange(1, 3)):
        place = random.randrange(len(data))
        data[place : place + random.randrange(2)] = random.choice(
            [b"", b"0", b'"', b"{", b"}", b",", b"\xff", b"e", b"."]
        )
    return bytes(data)


@pytest.mark.parametrize("seed", range(12))
def test_a_record_has_the_same_fate_alone_and_beside_any_others(seed, monkeypatch):
    random = Random(seed)
    monkeypatch.setattr(reader, "GROUP_MIN", random.choice([1, 4, 128]))
    monkeypatch.setattr(reader, "RECORDS_MAX", random.choice([7, 65_536]))
    rows = some_rows(random, 24, maps=seed % 3 == 0)
    good = row_texts(rows)
    pool = [*good, *(mutated(random, record) for record in good if record), *random.sample(ODD, 20)]
    alone = [fates(rows.schema, [record])[0] for record in pool]
    order = random.sample(range(len(pool)), len(pool))
    assert fates(rows.schema, [pool[place] for place in order]) == [alone[place] for place in order]
    monkeypatch.setattr(reader, "is_quick", lambda schema: False)
    assert fates(rows.schema, pool) == alone, "PyArrow's reader and the careful way give the same rows"


@pytest.mark.parametrize("type_", ODD_TYPES)
def test_an_odd_record_has_the_same_fate_in_both_ways(type_, monkeypatch):
    schema = to_arrow_schema(f"v {type_}")
    alone = [fates(schema, [record])[0] for record in ODD]
    assert fates(schema, ODD) == alone
    monkeypatch.setattr(reader, "is_quick", lambda schema: False)
    assert fates(schema, ODD) == alone


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_were_written_are_read_back(seed):
    random = Random(seed)
    rows = some_rows(random, 20)
    found, bad = JsonReader(rows.schema).read(pa.array(row_texts(rows), pa.binary()))
    assert bad == [] and found.schema == rows.schema
    assert list(map(comparable, found.columns)) == list(map(comparable, rows.columns))


def test_a_map_with_a_key_that_comes_twice_cannot_be_written():
    twice, once = [("a", 1), ("b", 2), ("a", 3)], [("a", 1), ("b", 1)]
    maps = pa.map_(pa.string(), pa.int64())
    rows = pa.record_batch(
        [
            pa.array([None, once, twice, [], once, once, once], maps),
            pa.array([[], [once], None, [once, twice], [twice], [None], []], pa.list_(maps)),
            pa.array([{"m": once}] * 5 + [None, {"m": twice}], pa.struct([("m", maps)])),
        ],
        ["a", "b", "c"],
    )
    assert sorted(unwritable(rows)) == [2, 3, 4, 6] and "'b'" in unwritable(rows)[3]
    assert sorted(unwritable(rows[2:5])) == [0, 1, 2] and unwritable(rows[:2]) == {}


def test_more_levels_than_the_bound_are_bad_wherever_they_are_and_however_deep_the_stack_is():
    schema = to_arrow_schema("v BIGINT, s STRING, m MAP<STRING, STRING>")
    texts = ['{{"v": 1, "z": {}}}', '{{"s": {}}}', '{{"m": {{"k": {}}}}}', '{{"s": {}']
    levels = [1, 1, 2, 1]
    for text, outer in zip(texts, levels, strict=True):
        for opened, closed in (("[", "]"), ('{"a":', "}")):
            inner = DEPTH_MAX - outer
            fits = text.format(opened * inner + "1" + closed * inner).encode()
            deep = text.format(opened * (inner + 1) + "1" + closed * (inner + 1)).encode()
            deepest = text.format(opened * 100_000 + "1" + closed * 100_000).encode()
            for beside in ([], [b"nonsense"]):
                found = at_depth(400, lambda records=[fits, deep, deepest, *beside]: fates(schema, records))
                assert found[1:3] == [TOO_DEEP] * 2
                assert isinstance(found[0], tuple) == (text.endswith("}}")), found[0]


def at_depth(calls: int, function: Any) -> Any:
    """Call a function with so many calls below it."""
    assert calls < sys.getrecursionlimit() - DEPTH_MAX
    return function() if calls == 0 else at_depth(calls - 1, function)


def test_a_key_that_is_deeply_nested_json_is_bad():
    key = "[" * 5000 + "]" * 5000
    for type_ in ("INT", "ARRAY<INT>", "STRUCT<a: INT>"):
        (fate,) = fates(to_arrow_schema(f"v MAP<{type_}, INT>"), [f'{{"v": {{"{key}": 1}}}}'.encode()])
        assert "(a key)" in fate


def test_fields_that_are_no_columns_are_left_out_or_refused_by_name():
    schema = to_arrow_schema("a INT, s STRUCT<b: INT>")
    records = pa.array(
        [b'{"a": 1, "x": 1}', b'{"a": "q", "z": 1, "y": 1}', b'{"s": {"z": 1}, "x": 1}', b"{"], pa.binary()
    )
    refusing = JsonReader(schema, refused=" and ".join, known=["x"]).read(records)
    assert refusing.rows.to_pylist() == [{"a": 1, "s": None}, {"a": None, "s": {"b": None}}]
    assert refusing.bad[0] == (1, "y and z") and [place for place, _ in refusing.bad] == [1, 3]
    assert JsonReader(schema).read(records).rows == refusing.rows


def test_a_record_of_unfinished_texts_takes_no_time():
    records = [
        b'{"v": ' + b'\\"' * 200_000,
        b'{"v": "' + b'\\"' * 200_000 + b"[" * 300,
        b'{"v": NaN' + b'"\\"' * 200_000,
    ]
    assert all(isinstance(fate, str) for fate in fates(to_arrow_schema("v BIGINT"), records))
