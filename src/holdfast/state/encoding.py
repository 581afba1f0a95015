"""Kernels that write and read the byte form of composite keys.

    composite key   fields in key column order
    field           0x00                                 null
                    0x01, value                          fixed width: Arrow's little-endian bytes; boolean: 1 byte
                    0x01, length (uint32, LE), bytes     string, binary

Each field shows where it ends, so two keys are equal exactly if their bytes are equal. The form never changes: key
groups are hashes of it, and base stores keep keys in it.
"""

import numpy as np

from holdfast.state.compiled import copy_bytes, kernel
from holdfast.state.physical import Bools, Bytes, Integers


@kernel
def write_fixed(values: Bytes, width: int, valid: Bools, cursors: Integers, out: Bytes) -> None:
    """Append a fixed-width field to every key; `cursors` move past it."""
    source, target = values.ctypes.data, out.ctypes.data
    for i in range(len(cursors)):
        position = cursors[i]
        out[position] = valid[i]
        position += 1
        if valid[i]:
            copy_bytes(source + i * width, target + position, width)
            position += width
        cursors[i] = position


@kernel
def write_present(values: Bytes, width: int, begin: int, stride: int, out: Bytes) -> None:
    """Write a fixed-width field without nulls at byte `begin` of every key; keys are `stride` bytes long."""
    source, target = values.ctypes.data, out.ctypes.data
    for i in range(len(out) // stride):
        position = i * stride + begin
        out[position] = 1
        copy_bytes(source + i * width, target + position + 1, width)


@kernel
def write_variable(offsets: Integers, data: Bytes, valid: Bools, cursors: Integers, out: Bytes) -> None:
    """Append a string or binary field to every key; `cursors` move past it."""
    source, target = data.ctypes.data, out.ctypes.data
    for i in range(len(cursors)):
        position = cursors[i]
        out[position] = valid[i]
        position += 1
        if valid[i]:
            length = offsets[i + 1] - offsets[i]
            for shift in range(4):
                out[position + shift] = (length >> (8 * shift)) & 0xFF
            copy_bytes(source + offsets[i], target + position + 4, length)
            position += 4 + length
        cursors[i] = position


@kernel
def read_fixed(data: Bytes, width: int, cursors: Integers, values: Bytes, valid: Bools) -> None:
    """Read a fixed-width field of every key at its cursor; nulls get zeros."""
    source, target = data.ctypes.data, values.ctypes.data
    for i in range(len(cursors)):
        position = cursors[i]
        valid[i] = data[position] == 1
        position += 1
        if valid[i]:
            copy_bytes(source + position, target + i * width, width)
            position += width
        cursors[i] = position


@kernel
def read_lengths(data: Bytes, cursors: Integers, offsets: Integers, valid: Bools) -> None:
    """Read validity and offsets of a string or binary field of every key (`offsets[0]` is 0). Cursors stay."""
    for i in range(len(cursors)):
        position = cursors[i]
        valid[i] = data[position] == 1
        length = np.int64(0)
        if valid[i]:
            for shift in range(4):
                length |= np.int64(data[position + 1 + shift]) << (8 * shift)
        offsets[i + 1] = offsets[i] + length


@kernel
def read_variable(data: Bytes, cursors: Integers, offsets: Integers, valid: Bools, values: Bytes) -> None:
    """The bytes of the field that `read_lengths` measured; `cursors` move past it."""
    source, target = data.ctypes.data, values.ctypes.data
    for i in range(len(cursors)):
        if valid[i]:
            length = offsets[i + 1] - offsets[i]
            copy_bytes(source + cursors[i] + 5, target + offsets[i], length)
            cursors[i] += 5 + length
        else:
            cursors[i] += 1
