"""Rows as records: the form of a single object is msgpack's form, whatever its length."""

import contextlib
import random
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import CorruptObject
from holdfast.state.arena import Arena
from holdfast.state.bytes_column import new_column
from holdfast.state.columns import object_field
from holdfast.state.row_codec import RowCodec

LENGTHS = (0, 1, 254, 255, 256, 257, 65_534, 65_535, 65_536, 65_537)


def columns_of(fields, rows):
    """Columns of a table, and the cells of the values that are put into them."""
    columns = [new_column(field, len(values), Arena()) for field, values in zip(fields, rows, strict=True)]
    slots = np.arange(len(rows[0]), dtype=np.int32)
    for column, values in zip(columns, rows, strict=True):
        if column.has_objects:
            column.put_objects(slots, values)
        else:
            column.scatter(slots, *column.from_arrow(pa.array(values, column.field.type)))
    return columns, [column.gather(slots) for column in columns]


@pytest.mark.parametrize("more", [[], [None]], ids=["all", "some"])
def test_a_single_object_is_stored_as_msgpack_stores_it_and_read_back(more):
    values = [bytes([n % 251]) * n for n in LENGTHS] + more
    columns, cells = columns_of([pa.field("v", pa.binary())], [values])
    codec = RowCodec(columns)
    records = codec.encode(len(values), cells)
    assert [record[codec.head_bytes :] for record in records] == [msgspec.msgpack.encode([value]) for value in values]
    [found] = codec.to_arrow(records)
    assert found.to_pylist() == values


def test_several_columns_come_back_as_they_were_and_are_stored_as_msgpack_stores_them():
    fields = [pa.field("n", pa.int64()), pa.field("s", pa.string()), object_field("o"), pa.field("b", pa.binary(2))]
    rows = [[1, None, 3, 4], ["x", None, "é" * 300, ""], [{"a": [1, None]}, [], None, 7], [b"ab", b"cd", None, b"\0\0"]]
    columns, cells = columns_of(fields, rows)
    codec = RowCodec(columns)
    records = codec.encode(4, cells)
    stored = [msgspec.msgpack.decode(record[codec.head_bytes :]) for record in records]
    texts = [None if text is None else text.encode() for text in rows[1]]
    assert [each[0] for each in stored] == texts
    assert [each[2] for each in stored] == rows[3]
    arena = Arena()
    for column, (values, valid), expected in zip(columns, codec.decode(records, arena), rows, strict=True):
        slots = np.arange(4, dtype=np.int32)
        column.scatter(slots, values, valid)
        assert column.objects(slots) == expected


NESTED = pa.list_(pa.struct([("s", pa.string()), ("d", pa.decimal128(9, 2))]))
NESTED_ROWS = [[{"s": "é", "d": Decimal("1.25")}, None], None, [], [{"s": None, "d": None}]]


def nested_records():
    fields = [pa.field("n", NESTED), pa.field("d", pa.decimal128(9, 2)), pa.field("t", pa.string())]
    rows = [NESTED_ROWS, [Decimal("0.01"), None, Decimal("-7.00"), Decimal("0.00")], ["", "a", None, "b" * 70_000]]
    columns, cells = columns_of(fields, rows)
    return RowCodec(columns), cells, fields, rows


def test_decimals_and_nested_values_are_stored_as_blocks_and_come_back():
    codec, cells, _, rows = nested_records()
    records = codec.encode(4, cells)
    assert {record[0] for record in records} == {1}
    assert [column.to_pylist() for column in codec.to_arrow(records)] == rows


def test_records_with_arrow_messages_are_read_beside_those_with_blocks():
    codec, cells, fields, rows = nested_records()
    records = codec.encode(4, cells)

    def as_before(record, row):
        arrays = [pa.array([value], field.type) for field, value in zip(fields, row, strict=True)]
        values = [
            None if array[0].as_py() is None
            else row[2].encode() if i == 2
            else pa.RecordBatch.from_arrays([array], names=["v"]).serialize().to_pybytes()
            for i, array in enumerate(arrays)
        ]  # fmt: skip
        return b"\0" + record[1 : codec.head_bytes] + msgspec.msgpack.encode(values)

    older = [as_before(record, row) for record, row in zip(records, zip(*rows, strict=True), strict=True)]
    mixed = [older[0], records[1], older[2], older[3], older[1], records[0], records[3]]
    order = [0, 1, 2, 3, 1, 0, 3]
    expected = [[values[i] for i in order] for values in rows]
    assert [column.to_pylist() for column in codec.to_arrow(mixed)] == expected


def test_records_that_were_cut_or_changed_are_refused_or_read_and_never_read_beyond_their_ends():
    codec, cells, _, _ = nested_records()
    records = codec.encode(4, cells)
    draw = random.Random(5)
    for _ in range(300):
        changed = [bytearray(record[: draw.choice([len(record), 60])]) for record in records[:3]]
        record = draw.choice(changed)
        record[draw.randrange(min(len(record), 80))] = draw.randrange(256)
        with contextlib.suppress(CorruptObject, UnicodeDecodeError, pa.ArrowException):
            codec.to_arrow([bytes(each) for each in (record, *changed)])
    with pytest.raises(CorruptObject, match="does not have the values of its table's columns"):
        codec.to_arrow([records[0] + b"x"])
    with pytest.raises(CorruptObject, match="does not have the values"):
        codec.to_arrow([records[3][:-1]])
    with pytest.raises(CorruptObject, match="shorter than"):
        codec.to_arrow([b"\1"])
    with pytest.raises(CorruptObject, match="has the mark 2, expected at most 1"):
        codec.to_arrow([b"\2" + records[0][1:]])


def test_no_rows_are_no_records():
    columns, cells = columns_of([pa.field("v", pa.binary())], [[]])
    codec = RowCodec(columns)
    assert codec.encode(0, cells) == []
    [(found, valid)] = codec.decode([], Arena())
    assert len(found) == len(valid) == 0
