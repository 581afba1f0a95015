"""Random types, columns of them, and their values in a form that can be compared."""

import struct
from decimal import Context, Decimal
from random import Random
from typing import Any

import pyarrow as pa

from holdfast.json_rows.writer import json_values, key_text

CHARACTERS = [*map(ord, '\0\t\n\r"\\/Aaé{}[]:,\x7f\x85'), 0x2028, 0x1F600, 0xD7FF, 0xE000]
WORDS = ["", "null", "true", "1", "NaN", "{}"]
TYPES = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.binary(3), pa.decimal128(38, 20), pa.decimal128(9, 0), pa.decimal256(50, 5)),
    *(pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("ms", "UTC")),
    *(pa.timestamp("s"), pa.time64("us"), pa.time64("ns"), pa.time32("s"), pa.time32("ms")),
]
IN_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def whole(random: Random, bits: int, signed: bool = True) -> int:
    """An integer, often at the end of the range, or small."""
    size = bits - 1 if signed else bits
    value = random.choice([0, 1, 2**size - 1, random.getrandbits(size), random.getrandbits(random.randrange(size))])
    return -value - 1 if signed and random.random() < 0.5 else value


def text(random: Random) -> str:
    drawn = "".join(map(chr, random.choices(CHARACTERS, k=random.randrange(6))))
    return random.choice([drawn, drawn, random.choice(WORDS)])


def floating(random: Random, form: str) -> float:
    size = struct.calcsize(form)
    (drawn,) = struct.unpack(form, random.randbytes(size))
    return random.choice([drawn, drawn, float("nan"), float("inf"), float("-inf"), -0.0, 1.5])


def leaf(random: Random, type_: pa.DataType) -> Any:
    """A value of a type without parts, as `pa.array` takes it; the number behind a time."""
    if pa.types.is_boolean(type_):
        return random.random() < 0.5
    if pa.types.is_integer(type_):
        return whole(random, type_.bit_width, pa.types.is_signed_integer(type_))
    if pa.types.is_floating(type_):
        return floating(random, "<f" if type_.bit_width == 32 else "<d")
    if pa.types.is_string(type_):
        return text(random)
    if pa.types.is_binary(type_):
        return random.randbytes(random.randrange(6))
    if pa.types.is_decimal(type_):
        digits = random.randrange(10 ** random.randrange(1, type_.precision + 1))
        return Decimal(random.choice([digits, -digits])).scaleb(-type_.scale, Context(prec=80))
    if pa.types.is_fixed_size_binary(type_):
        return random.randbytes(type_.byte_width)
    if pa.types.is_time(type_):
        return random.randrange(IN_A_DAY[type_.unit])
    return whole(random, type_.bit_width)


def column(random: Random, type_: pa.DataType, count: int, nulls: float = 0.2) -> pa.Array:
    absent = [random.random() < nulls for _ in range(count)]
    mask = pa.array(absent, pa.bool_())
    if pa.types.is_struct(type_):
        children = [column(random, field.type, count) for field in type_]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    if pa.types.is_map(type_):
        sizes = [random.randrange(4) for _ in absent]
        keys, sizes = distinct(column(random, type_.key_type, sum(sizes), 0), sizes)
        items = column(random, type_.item_type, len(keys))
        return pa.MapArray.from_arrays(pa.array(ends(sizes), pa.int32()), keys, items, type_, mask=mask)
    if pa.types.is_list(type_):
        sizes = [random.randrange(4) for _ in absent]
        items = column(random, type_.value_type, sum(sizes))
        return pa.ListArray.from_arrays(pa.array(ends(sizes), pa.int32()), items, type=type_, mask=mask)
    values = [None if is_null else leaf(random, type_) for is_null in absent]
    if pa.types.is_temporal(type_):
        return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    return pa.array(values, type_)


def distinct(keys: pa.Array, sizes: list[int]) -> tuple[pa.Array, list[int]]:
    """Leave out the keys that a map has already."""
    texts, kept, at = [key_text(key) for key in json_values(keys)], [], 0
    counts = []
    for size in sizes:
        first = {name: place for place, name in reversed(list(enumerate(texts[at : at + size], at)))}
        kept += sorted(first.values())
        counts.append(len(first))
        at += size
    return keys.take(pa.array(kept, pa.int64())), counts


def ends(sizes: list[int]) -> list[int]:
    return [sum(sizes[:place]) for place in range(len(sizes) + 1)]


def a_type(random: Random, depth: int, maps: bool = True) -> pa.DataType:
    kind = random.random()
    if depth == 0 or kind < 0.5:
        return random.choice(TYPES)
    if kind < 0.7:
        return pa.struct([(name, a_type(random, depth - 1, maps)) for name in "abc"[: random.randrange(1, 4)]])
    if kind < 0.85 or not maps:
        return pa.list_(a_type(random, depth - 1, maps))
    key = random.choice([*TYPES, pa.struct([("a", pa.int64()), ("b", pa.string())])])
    return pa.map_(key, a_type(random, depth - 1))


def some_rows(random: Random, count: int, maps: bool = True) -> pa.RecordBatch:
    schema = pa.schema([(name, a_type(random, 2, maps)) for name in "vwx"[: random.randrange(1, 4)]])
    rows = pa.record_batch([column(random, field.type, count) for field in schema], schema=schema)
    return rows.slice(random.randrange(count // 4 + 1))


def comparable(array: pa.Array) -> list[Any]:
    """The values of an array without NaN, which differs from itself, and without times that Python does not have."""
    type_ = array.type
    if pa.types.is_struct(type_):
        parts = zip(*map(comparable, array.flatten()), strict=True)
        return [part if there else None for part, there in zip(parts, array.is_valid().to_pylist(), strict=True)]
    if len(array) and (pa.types.is_map(type_) or pa.types.is_list(type_)):
        is_map = pa.types.is_map(type_)
        items = list(zip(comparable(array.keys), comparable(array.items), strict=True)) if is_map else None
        offsets, found = array.offsets.to_pylist(), items or comparable(array.values)
        spans = zip(offsets, offsets[1:], array.is_valid().to_pylist(), strict=False)
        return [found[start:end] if there else None for start, end, there in spans]
    if pa.types.is_floating(type_):
        return [None if value is None else repr(value) for value in array.to_pylist()]
    if pa.types.is_temporal(type_):
        array = array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    return list(array.to_pylist())
