"""Rows as records: the form of a single object is msgpack's form, whatever its length."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest

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


def test_no_rows_are_no_records():
    columns, cells = columns_of([pa.field("v", pa.binary())], [[]])
    codec = RowCodec(columns)
    assert codec.encode(0, cells) == []
    [(found, valid)] = codec.decode([], Arena())
    assert len(found) == len(valid) == 0
