"""Kernels that write and read the values of variable width in records (`row_codec`), where they are a msgpack array.

    array := 0x90 + n (n < 16), or 0xdc, n (2 bytes); for each column: value
    value := 0xc0 (null), or 0xc4, length (1 byte), bytes, or 0xc5, length (2), bytes, or 0xc6, length (4), bytes

Numbers are big-endian. Values come from an arena by their handles, and are read as places in the records, so that no
Python object is made for a value.
"""

from typing import Any

import numpy as np

from holdfast.state.arena_kernels import Handles, copy_value, length_of
from holdfast.state.compiled import copy_many_bytes, kernel, load_u8, store_u8
from holdfast.state.physical import Bools, Bytes, Integers

NULL, WITH_1, WITH_2, WITH_4 = 0xC0, 0xC4, 0xC5, 0xC6
"""The bytes before a null, and before lengths of 1, 2 and 4 bytes."""
_FF, _8 = np.uint64(0xFF), np.uint64(8)


@kernel
def _bytes_of_length(length: Any) -> Any:
    if length < np.uint64(1 << 8):
        return 1
    return 2 if length < np.uint64(1 << 16) else 4


@kernel
def add_lengths(handles: Handles, valid: Bools, lengths: Integers) -> None:
    """Add the bytes that the values take in records, the bytes before them included."""
    for i in range(len(handles)):
        lengths[i] += 1
        if valid[i]:
            length = length_of(handles[i])
            lengths[i] += _bytes_of_length(length) + np.int64(length)


@kernel
def write_heads(heads: Bytes, width: int, step: int, cursors: Integers, out: Bytes) -> None:
    """Write `width` bytes at each cursor, the i-th of `heads`, or the first with `step` 0; cursors move past them."""
    source, target = np.uint64(heads.ctypes.data), np.uint64(out.ctypes.data)
    for i in range(len(cursors)):
        copy_many_bytes(source + np.uint64(i * step * width), target + np.uint64(cursors[i]), np.uint64(width))
        cursors[i] += width


@kernel
def write_values(handles: Handles, valid: Bools, cursors: Integers, out: Bytes) -> None:
    """Write a value at each cursor; cursors move past them."""
    begin = np.uint64(out.ctypes.data)
    for i in range(len(handles)):
        at = begin + np.uint64(cursors[i])
        if not valid[i]:
            store_u8(at, np.uint64(NULL))
            cursors[i] += 1
            continue
        length = length_of(handles[i])
        width = _bytes_of_length(length)
        store_u8(at, np.uint64(WITH_1 if width == 1 else WITH_2 if width == 2 else WITH_4))
        for k in range(width):
            store_u8(at + np.uint64(1 + k), (length >> (_8 * np.uint64(width - 1 - k))) & _FF)
        copy_value(handles[i], at + np.uint64(1 + width))
        cursors[i] += 1 + width + np.int64(length)


@kernel
def read_heads(data: Bytes, cursors: Integers, stops: Integers, width: int) -> Any:
    """Return the first `width` bytes of each record, laid end to end; cursors move past them. None are returned if a
    record, which goes from its cursor to its stop, is shorter."""
    for i in range(len(cursors)):
        if stops[i] - cursors[i] < width:
            return np.empty(0, np.uint8)
    out = np.empty(len(cursors) * width, np.uint8)
    source, target = np.uint64(data.ctypes.data), np.uint64(out.ctypes.data)
    for i in range(len(cursors)):
        copy_many_bytes(source + np.uint64(cursors[i]), target + np.uint64(i * width), np.uint64(width))
        cursors[i] += width
    return out


@kernel
def read_array_heads(data: Bytes, cursors: Integers, stops: Integers, count: int) -> Any:
    """Move the cursors past the head of an array of `count` values; return the first record without it, or -1."""
    width = 1 if count < 16 else 3
    for i in range(len(cursors)):
        at = cursors[i]
        if stops[i] - at < width:
            return i
        if width == 1:
            fits = data[at] == 0x90 + count
        else:
            fits = data[at] == 0xDC and data[at + 1] == count >> 8 and data[at + 2] == count & 0xFF
        if not fits:
            return i
        cursors[i] += width
    return -1


@kernel
def read_values(
    data: Bytes, cursors: Integers, stops: Integers, valid: Bools, begins: Integers, lengths: Integers
) -> Any:
    """Read the place of the value at each cursor; cursors move past the values.

    Returns the number of the first record whose value goes past its stop, or is null though it is `valid`, or the other
    way round; -1 if there is none.
    """
    source = np.uint64(data.ctypes.data)
    for i in range(len(cursors)):
        at, stop = cursors[i], stops[i]
        tag = data[at] if at < stop else np.uint8(0)
        if tag == NULL:
            if valid[i]:
                return i
            begins[i], lengths[i] = 0, 0
            cursors[i] += 1
            continue
        if not valid[i] or tag < WITH_1 or tag > WITH_4:
            return i
        width = 1 << (np.int64(tag) - WITH_1)
        if stop - at < 1 + width:
            return i
        length = np.uint64(0)
        for k in range(width):
            length = (length << _8) | load_u8(source + np.uint64(at + 1 + k))
        begins[i], lengths[i] = at + 1 + width, np.int64(length)
        if stop - begins[i] < lengths[i]:
            return i
        cursors[i] = begins[i] + lengths[i]
    return -1
