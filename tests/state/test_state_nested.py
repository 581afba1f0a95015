"""Nested values are bytes in a table, and come back as they were; equal values have equal bytes."""

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.state.nested import array_of, blocks_of, has_blocks
from holdfast.state.physical import validity_of

STRUCT = pa.struct([("a", pa.int16()), ("s", pa.string()), ("d", pa.decimal128(20, 2))])
KINDS = [
    pa.list_(pa.int64()),
    pa.list_(pa.field("element", pa.int32(), nullable=False)),
    pa.large_list(pa.large_string()),
    pa.list_(pa.list_(pa.bool_())),
    pa.list_(pa.binary(3), 2),
    pa.map_(pa.string(), pa.list_(pa.float64())),
    STRUCT,
    pa.list_(STRUCT),
    pa.struct([("l", pa.list_(pa.timestamp("ns", "UTC"))), ("n", pa.struct([("b", pa.binary())]))]),
    pa.map_(pa.int8(), STRUCT),
    pa.struct([]),
]


def drawn(kind: pa.DataType, draw: random.Random, depth: int = 0) -> Any:
    """A value of the type, or None."""
    types = pa.types
    if depth and draw.random() < 0.25:
        return None
    if types.is_map(kind):
        keys = {drawn_key(kind.key_type, draw) for _ in range(draw.randrange(4))}
        return [(key, drawn(kind.item_type, draw, depth + 1)) for key in sorted(keys)]
    if types.is_fixed_size_list(kind):
        return [drawn(kind.value_type, draw, depth + 1) for _ in range(kind.list_size)]
    if types.is_list(kind) or types.is_large_list(kind):
        is_nullable = kind.value_field.nullable
        return [drawn(kind.value_type, draw, depth + is_nullable) for _ in range(draw.randrange(5))]
    if types.is_struct(kind):
        return {field.name: drawn(field.type, draw, depth + 1) for field in kind}
    if types.is_fixed_size_binary(kind):
        return draw.randbytes(kind.byte_width)
    if types.is_binary(kind):
        return draw.randbytes(draw.choice([0, 1, 100]))
    if types.is_decimal(kind):
        return Decimal(draw.randrange(-(10**19), 10**19)).scaleb(-2)
    if types.is_timestamp(kind):
        return datetime.fromtimestamp(draw.randrange(10**9), UTC)
    return drawn_key(kind, draw)


def drawn_key(kind: pa.DataType, draw: random.Random) -> Any:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "é" * draw.choice([0, 1, 7, 300])
    if pa.types.is_boolean(kind):
        return draw.random() < 0.5
    return draw.random() if pa.types.is_floating(kind) else draw.randrange(100)


def came_back(array: pa.Array) -> pa.Array:
    valid = validity_of(array)
    found = array_of(*blocks_of(array), np.ones(len(array), np.bool_) if valid is None else valid, array.type)
    found.validate(full=True)
    return found


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_values_of_each_type_come_back_from_any_slice(kind: pa.DataType, nulls: bool) -> None:
    draw = random.Random(str(kind))
    array = pa.array([None if nulls and draw.random() < 0.3 else drawn(kind, draw) for _ in range(60)], kind)
    for part in (array, array.slice(7, 20), array.slice(0, 0), array.slice(59), array.take(pa.array([5, 5, None, 1]))):
        assert came_back(part).equals(part)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_equal_values_have_equal_bytes_however_their_nulls_are_stored(kind: pa.DataType) -> None:
    draw = random.Random(str(kind))
    values = [drawn(kind, draw) for _ in range(40)]
    array = pa.array(values, kind)
    again = pa.concat_arrays([pa.array([value], kind) for value in values])
    offsets, data = blocks_of(array)
    other_offsets, other_data = blocks_of(again)
    assert (offsets.tolist(), data.tobytes()) == (other_offsets.tolist(), other_data.tobytes())


def test_bytes_under_nulls_make_no_difference() -> None:
    hidden = pa.array(["hidden", "b"])
    texts = pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x02"), *hidden.buffers()[1:]])
    numbers = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x02"), pa.array([7, 8]).buffers()[1]])
    struct = pa.StructArray.from_arrays([texts, numbers], names=["t", "n"])
    clean = pa.array([{"t": None, "n": None}, {"t": "b", "n": 8}], struct.type)
    lists = pa.Array.from_buffers(
        pa.list_(struct.type),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 1, 2], np.int32))],
        children=[struct],
    )
    for odd, usual in ((struct, clean), (lists, pa.array([None, [{"t": "b", "n": 8}]], lists.type))):
        assert blocks_of(odd)[1].tobytes() == blocks_of(usual)[1].tobytes()
        assert came_back(odd).equals(usual)


@pytest.mark.parametrize(
    "kind",
    [pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.string_view()), pa.struct([("n", pa.null())])],
    ids=str,
)
def test_types_without_blocks_are_known(kind: pa.DataType) -> None:
    assert not has_blocks(kind)
