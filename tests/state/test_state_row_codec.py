"""Rows as records: the form of a single object is msgpack's form, whatever its length."""

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from holdfast.state.columns import Column, object_field
from holdfast.state.row_codec import RowCodec

LENGTHS = (0, 1, 254, 255, 256, 257, 65_534, 65_535, 65_536, 65_537)


def cells(values):
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects, np.array([value is not None for value in values], np.bool_)


@pytest.mark.parametrize("more", [[], [None]], ids=["all", "some"])
def test_a_single_object_is_stored_as_msgpack_stores_it_and_read_back(more):
    values = [bytes([n % 251]) * n for n in LENGTHS] + more
    codec = RowCodec([Column(pa.field("v", pa.binary()), 0)])
    records = codec.encode(len(values), [cells(values)])
    assert [record[codec.head_bytes :] for record in records] == [msgspec.msgpack.encode([value]) for value in values]
    [(found, valid)] = codec.decode(records)
    assert found.tolist() == values
    assert valid.tolist() == [value is not None for value in values]


def test_several_columns_come_back_as_they_were():
    fields = [pa.field("n", pa.int64()), pa.field("s", pa.string()), object_field("o")]
    codec = RowCodec([Column(field, 0) for field in fields])
    columns = [
        (np.array([1, 0, 3]), np.array([True, False, True])),
        cells(["x", None, "é" * 300]),
        cells([{"a": [1, None]}, [], None]),
    ]
    for (values, valid), (found, found_valid) in zip(columns, codec.decode(codec.encode(3, columns)), strict=True):
        assert found.tolist() == values.tolist()
        assert found_valid.tolist() == valid.tolist()


def test_no_rows_are_no_records():
    codec = RowCodec([Column(pa.field("v", pa.binary()), 0)])
    assert codec.encode(0, [cells([])]) == []
    [(found, valid)] = codec.decode([])
    assert len(found) == len(valid) == 0
