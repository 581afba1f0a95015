"""Object columns to Arrow and back."""

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import UserFunctionError
from holdfast.state.arena import Arena
from holdfast.state.bytes_column import new_column
from holdfast.state.columns import PIECE_ROWS, Column, object_field, placed, placed_array, taken


def to_arrow(field: pa.Field, objects: list) -> pa.Array:
    column, slots = new_column(field, len(objects), Arena()), np.arange(len(objects), dtype=np.int32)
    column.put_objects(slots, objects)
    return column.to_arrow(*column.gather(slots))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.list_(pa.int64())])
@pytest.mark.parametrize("rows", [0, 1, PIECE_ROWS, 2 * PIECE_ROWS + 1])
@pytest.mark.parametrize("nulls", [False, True])
def test_objects_of_each_type_arrive_as_pyarrow_has_them(kind, rows, nulls):
    makers = {"binary": lambda i: bytes([i % 256]) * (i % 5), "string": lambda i: "é" * (i % 5)}
    make = makers.get(str(kind).removeprefix("large_"), lambda i: [i] * (i % 3))
    objects = [None if nulls and i % 3 == 0 else make(i) for i in range(rows)]
    assert to_arrow(pa.field("v", kind), objects).equals(pa.array(objects, kind))


@pytest.mark.parametrize("more", [[], ["é"]])
def test_anything_that_holds_bytes_counts_as_bytes_and_text_as_its_utf_8(more):
    objects = [b"a", bytearray(b"bc"), memoryview(b"def"), b"", *more]
    expected = [b"a", b"bc", b"def", b"", *(each.encode() for each in more)]
    assert to_arrow(pa.field("v", pa.binary()), objects).to_pylist() == expected


def test_objects_that_msgpack_writes_come_back():
    field = object_field("v")
    objects = [{"a": [1, None]}, None, "é", 3]
    values, valid = Column(field, 0).from_arrow(to_arrow(field, objects))
    assert (values.tolist(), valid.tolist()) == (objects, [True, False, True, True])


@pytest.mark.parametrize("wrong", [7, np.arange(3)])
def test_what_is_no_bytes_is_refused_by_the_states_name(wrong):
    with pytest.raises(UserFunctionError, match="state 'v' is declared as binary"):
        to_arrow(pa.field("v", pa.binary()), [b"fits", wrong])


each_array = pytest.mark.parametrize(
    "array",
    [
        pa.array(range(10), pa.int64()),
        pa.array(range(30), pa.int16()).slice(5, 10),
        pa.array([i % 3 == 0 for i in range(30)]).slice(3, 10),
        pa.array([True] * 10),
        pa.array(range(10), pa.timestamp("us", "UTC")),
        pa.array([None, *range(9)], pa.int64()),
        pa.array([str(i) for i in range(10)]),
        pa.array(range(10), pa.decimal128(5, 1)),
    ],
    ids=lambda array: str(array.type),
)


@each_array
@pytest.mark.parametrize("places", [[], [3], [9, 0, 0, 5]])
def test_taken_is_what_arrow_takes(array, places):
    assert taken(array, np.array(places, np.int32)).equals(array.take(pa.array(places, pa.int32())))


@each_array
def test_placed_is_the_inverse_of_taken(array):
    targets = np.random.default_rng(7).permutation(len(array)).astype(np.int32)
    assert taken(placed_array(array, targets), targets).equals(array)


def test_objects_are_placed_as_well():
    values = np.array(["a", None, {"b": 1}], object)
    assert placed(values, np.array([2, 0, 1], np.int32)).tolist() == [None, {"b": 1}, "a"]
