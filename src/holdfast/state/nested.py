"""Nested values as bytes, and back: a block for each row, in memory and in base stores (`row_codec`).

    block of some elements of an array := validity (1 byte each, not for the row itself), and
      fixed width     values, zeros for nulls
      string, binary  lengths (uint32 each), bytes
      list, map       lengths (uint32 each), the block of all their elements
      fixed list      the block of all their elements
      struct          the block of each field

A block has the elements of a row column by column, so all rows of a batch are written, and read, field by field, and no
Python object is made. All nulls of a type have the same bytes, so equal values have equal bytes; numbers are compared
as bits.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CorruptObject
from holdfast.state import arena_kernels
from holdfast.state.physical import (
    Bools,
    Bytes,
    Integers,
    byte_width,
    fixed_bytes_array,
    fixed_bytes_of,
    validity_of,
    variable_array,
    variable_bytes_of,
)

_LENGTH = np.dtype(np.uint32)

BytesOfRows = tuple[Bytes, Integers, Integers]
"""Bytes of an array, and begin and length in them for each row."""
ReadBytes = Callable[[Integers], Bytes]
"""Reads the given numbers of bytes of the rows' blocks, and moves past them."""


def has_blocks(kind: pa.DataType) -> bool:
    """True if values of the type can be blocks: not dictionaries, unions, views, run-end encoded values, nulls."""
    if byte_width(kind) is not None or _is_variable(kind):
        return byte_width(kind) != 0
    types = pa.types
    if any(is_type(kind) for is_type in (types.is_list, types.is_large_list, types.is_map, types.is_fixed_size_list)):
        return has_blocks(kind.value_type if not types.is_map(kind) else _entries(kind).type)
    return bool(types.is_struct(kind)) and all(has_blocks(field.type) for field in kind)


def blocks_of(array: Any) -> tuple[Integers, Bytes]:
    """Offsets and data of the blocks of an array's rows, one after the other; a null row has no bytes."""
    valid = validity_of(array)
    counts = np.ones(len(array), np.int64) if valid is None else valid.astype(np.int64)
    spans: list[BytesOfRows] = []
    _add_values(array, np.arange(len(array)), counts, spans)
    offsets: Integers = np.zeros(len(array) + 1, np.int64)
    np.cumsum(sum((lengths for _, _, lengths in spans), np.zeros(len(array), np.int64)), out=offsets[1:])
    data, cursors = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy()
    for values, begins, lengths in spans:
        source = values.view()
        source.flags.writeable = False  # so that the kernel is compiled once, as for Arrow's memory
        arena_kernels.write_spans(source, begins, lengths, cursors, data)
    return offsets, data


def array_of(offsets: Integers, data: Bytes, valid: Bools, kind: pa.DataType) -> Any:
    """The inverse of `blocks_of`, null where `valid` is not set. Raises `CorruptObject` if a block has other bytes."""
    cursors = offsets[:-1].copy()

    def read(lengths: Integers) -> Bytes:
        if not arena_kernels.fit_spans(cursors, offsets[1:], lengths):
            raise CorruptObject(f"a stored value of type {kind} ends too early; restore its object from a copy")
        out: Bytes = arena_kernels.read_spans(data, cursors, lengths)
        return out

    values = _read_values(kind, valid.astype(np.int64), None, read)
    if valid.all():
        return values
    places = np.cumsum(valid) - 1
    return values.take(pa.array(places, mask=~valid))


def _is_variable(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_type(kind) for is_type in tests)


def _entries(kind: pa.DataType) -> pa.Field:
    """The field of a map's entries."""
    return pa.field("entries", pa.struct([kind.key_field, kind.item_field]), nullable=False)


def _add_elements(array: Any, starts: Integers, counts: Integers, spans: list[BytesOfRows]) -> None:
    """Add the spans of each row's elements `[start, start + count)` of an array."""
    valid = validity_of(array)
    flags = np.ones(len(array), np.uint8) if valid is None else valid.view(np.uint8)
    spans.append((flags, starts, counts))
    _add_values(array, starts, counts, spans)


def _add_values(array: Any, starts: Integers, counts: Integers, spans: list[BytesOfRows]) -> None:
    """`_add_elements` without their validity."""
    kind, width, stops = array.type, byte_width(array.type), starts + counts
    if width is not None:
        spans.append((_without_nulls(fixed_bytes_of(array), array, width), starts * width, counts * width))
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            _add_elements(child, starts, counts, spans)
    elif pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        _add_elements(array.values, (array.offset + starts) * size, counts * size, spans)
    else:
        array = _with_empty_nulls(array)
        if _is_variable(kind):
            offsets, data = variable_bytes_of(array)
        else:
            offsets = array.offsets.to_numpy().astype(np.int64)
        lengths = np.diff(offsets).astype(_LENGTH).view(np.uint8)
        spans.append((lengths, starts * _LENGTH.itemsize, counts * _LENGTH.itemsize))
        begins, sizes = offsets[starts], offsets[stops] - offsets[starts]
        if _is_variable(kind):
            spans.append((data, begins, sizes))
        else:
            _add_elements(array.values, begins, sizes, spans)


def _without_nulls(values: Bytes, array: Any, width: int) -> Bytes:
    """The bytes of fixed-width values, zeros for nulls."""
    valid = validity_of(array)
    return values if valid is None else (values.reshape(-1, width) * valid[:, None]).reshape(-1)


def _with_empty_nulls(array: Any) -> Any:
    """Return the array with its nulls changed so that they have no bytes and no elements."""
    valid = validity_of(array)
    if valid is None:
        return array
    if _is_variable(array.type):
        is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        return pc.fill_null(array, "" if is_text else b"")
    return array.take(pa.array(np.arange(len(array)), mask=~valid))


def _read_elements(kind: pa.DataType, counts: Integers, read: ReadBytes) -> Any:
    return _read_values(kind, counts, read(counts).view(np.bool_), read)


def _read_values(kind: pa.DataType, counts: Integers, valid: Bools | None, read: ReadBytes) -> Any:
    """Return the array of that many elements of each row."""
    width, total = byte_width(kind), int(counts.sum())
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    if width is not None:
        return fixed_bytes_array(read(counts * width), valid, kind)
    if pa.types.is_struct(kind):
        fields = [_read_elements(field.type, counts, read) for field in kind]
        return pa.Array.from_buffers(kind, total, [bitmap], children=fields)
    if pa.types.is_fixed_size_list(kind):
        values = _read_elements(kind.value_type, counts * kind.list_size, read)
        return pa.Array.from_buffers(kind, total, [bitmap], children=[values])
    ends: Integers = np.zeros(total + 1, np.int64)
    np.cumsum(read(counts * _LENGTH.itemsize).view(_LENGTH), out=ends[1:])
    rows = np.concatenate([[0], np.cumsum(counts)])
    sizes = np.diff(ends[rows])
    if _is_variable(kind):
        return variable_array(ends, read(sizes), valid, kind)
    values = _read_elements(_entries(kind).type if pa.types.is_map(kind) else kind.value_type, sizes, read)
    offsets = ends if pa.types.is_large_list(kind) else ends.astype(np.int32)
    return pa.Array.from_buffers(kind, total, [bitmap, pa.py_buffer(offsets)], children=[values])
