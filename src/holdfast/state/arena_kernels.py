"""Kernels of values of variable width: handles of bytes in an arena.

    handle   0                        no value, or an empty value
             length << 48 | address   `length` bytes at `address`
             LONG << 48 | address     the same; the length did not fit, and is a uint64 in the 8 bytes before them

Bytes that a handle names never change, so a copy of a row is a copy of its handles, and handles that are equal name
equal values. Lengths are in the handles: places in an output are found without reading any value. The caller keeps the
memory that handles name (`arena`). Kernels do no bounds checks. Addresses are uint64.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.state.compiled import (
    copy_bytes,
    copy_many_bytes,
    kernel,
    load_u32,
    load_u64,
    prefetch,
    same_bytes,
    store_u64,
)
from holdfast.state.physical import Bools, Bytes, Integers, Slots

Handles = npt.NDArray[np.uint64]

LONG = 0xFFFF
"""The length from which on lengths are stored beside the bytes."""

_LONG, _HEADER, _SHIFT, _ADDRESS = np.uint64(LONG), np.uint64(8), np.uint64(48), np.uint64((1 << 48) - 1)
_LINE, _LINES_MAX = np.uint64(64), np.uint64(4)
"""Bytes of a cache line, and the lines of a value that are fetched ahead: the processor fetches the rest itself."""
_AHEAD = 16
"""Number of values between the value being processed and the value being prefetched."""
_MANY = np.uint64(64)
"""Bytes from which on the system's own copying is faster than a loop over words."""
_0 = np.uint64(0)


@kernel
def length_of(handle: Any) -> Any:
    """Return the length of a value."""
    length = handle >> _SHIFT
    return load_u64((handle & _ADDRESS) - _HEADER) if length == _LONG else length


@kernel
def fetch(handle: Any) -> None:
    """Fetch the first cache lines of a value."""
    at = handle & _ADDRESS
    lines = min(((handle >> _SHIFT) + (at & (_LINE - np.uint64(1))) + _LINE) // _LINE, _LINES_MAX)
    for line in range(lines if handle else _0):
        prefetch(at + np.uint64(line) * _LINE)


@kernel
def _copy(source: Any, target: Any, length: Any) -> None:
    if length < _MANY:
        copy_bytes(source, target, length)
    else:
        copy_many_bytes(source, target, length)


@kernel
def copy_value(handle: Any, target: Any) -> None:
    """Copy the bytes of a value to an address."""
    if handle:
        _copy(handle & _ADDRESS, target, length_of(handle))


@kernel
def long_count(lengths: Integers) -> Any:
    """Return how many of the lengths are those of long values."""
    count = 0
    for length in lengths:
        count += length >= LONG
    return count


@kernel
def handles_of(offsets: Integers, valid: Bools, at: Any) -> Any:
    """Return the handles of values that lie end to end from address `at` on, at these offsets. No value is long."""
    handles = np.empty(len(valid), np.uint64)
    begin = np.uint64(at) - np.uint64(offsets[0])
    for i in range(len(valid)):
        length = np.uint64(offsets[i + 1] - offsets[i])
        there = valid[i] and length > _0
        handles[i] = (length << _SHIFT) | (begin + np.uint64(offsets[i])) if there else _0
    return handles


@kernel
def copy_in(data: Bytes, begin: int, end: int, at: Any) -> None:
    """Copy `data[begin:end]` to the address `at`."""
    copy_many_bytes(np.uint64(data.ctypes.data) + np.uint64(begin), np.uint64(at), np.uint64(end - begin))


@kernel
def append_spans(begins: Integers, lengths: Integers, data: Bytes, at: Any) -> Any:
    """Copy bytes `[begin, begin + length)` of `data` to `at`, end to end, the long ones with their lengths; return
    their handles."""
    handles = np.zeros(len(begins), np.uint64)
    source, target = np.uint64(data.ctypes.data), np.uint64(at)
    for i in range(len(begins)):
        length = np.uint64(lengths[i])
        if length > _0:
            if length >= _LONG:
                store_u64(target, length)
                target += _HEADER
            _copy(source + np.uint64(begins[i]), target, length)
            handles[i] = (min(length, _LONG) << _SHIFT) | target
            target += length
    return handles


@kernel
def stored_bytes(handles: Handles, begin: Any, stop: Any) -> Any:
    """Return the bytes that the values at addresses `[begin, stop)` take there, including stored lengths."""
    total, first, size = _0, np.uint64(begin), np.uint64(stop) - np.uint64(begin)
    for handle in handles:
        if (handle & _ADDRESS) - first < size:
            total += length_of(handle) + (_HEADER if handle >> _SHIFT == _LONG else _0)
    return np.int64(total)


@kernel
def move(handles: Handles, begin: Any, stop: Any, at: Any) -> None:
    """Copy the values at `[begin, stop)` to `at`, where they take `stored_bytes`; the handles name the copies."""
    target, first, size = np.uint64(at), np.uint64(begin), np.uint64(stop) - np.uint64(begin)
    for i in range(len(handles)):
        handle = handles[i]
        if (handle & _ADDRESS) - first < size:
            length = length_of(handle)
            if handle >> _SHIFT == _LONG:
                store_u64(target, length)
                target += _HEADER
            _copy(handle & _ADDRESS, target, length)
            handles[i] = (handle & ~_ADDRESS) | target
            target += length


@kernel
def offsets_of(handles: Handles, valid: Bools) -> Any:
    """Offsets (from 0) of the values laid end to end; those that are not valid take none."""
    offsets = np.zeros(len(handles) + 1, np.int64)
    for i in range(len(handles)):
        offsets[i + 1] = offsets[i] + (np.int64(length_of(handles[i])) if valid[i] else 0)
    return offsets


@kernel
def total_bytes(handles: Handles) -> Any:
    """Return the bytes of all values together."""
    total = np.int64(0)
    for handle in handles:
        total += np.int64(length_of(handle))
    return total


@kernel
def gather_bytes(handles: Handles, offsets: Integers) -> Any:
    """The values laid end to end at these offsets."""
    out = np.empty(offsets[-1], np.uint8)
    target = np.uint64(out.ctypes.data)
    for i in range(len(handles)):
        fetch(handles[min(i + _AHEAD, len(handles) - 1)])
        length = np.uint64(offsets[i + 1] - offsets[i])
        if length > _0:
            _copy(handles[i] & _ADDRESS, target + np.uint64(offsets[i]), length)
    return out


@kernel
def gather_fixed(handles: Handles, valid: Bools, width: int) -> Any:
    """Values of `width` bytes laid end to end; zeros for those that are not valid."""
    out = np.zeros(len(handles) * width, np.uint8)
    target = np.uint64(out.ctypes.data)
    for i in range(len(handles)):
        if valid[i] and handles[i]:
            copy_bytes(handles[i] & _ADDRESS, target + np.uint64(i * width), np.uint64(width))
    return out


@kernel
def scatter(values: Handles, slots: Slots, source: Handles) -> Any:
    """`values[slots] = source`, the last of a slot stays; return by how many stored bytes the values have grown."""
    grown = np.int64(0)
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        grown += np.int64(length_of(source[i])) - np.int64(length_of(values[slot]))
        values[slot] = source[i]
    return grown


@kernel
def clear(values: Handles, slots: Slots) -> Any:
    """Set the values of distinct `slots` to none; return the bytes that they had."""
    cleared = np.int64(0)
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        cleared += np.int64(length_of(values[slot]))
        values[slot] = _0
    return cleared


@kernel
def mark_different(handles: Handles, valid: Bools, old: Handles, old_valid: Bools, different: Bools) -> None:
    """Set `different[i]` where the i-th values are not equal, byte by byte."""
    for i in range(len(handles)):
        ahead = min(i + _AHEAD, len(handles) - 1)
        if handles[ahead] != old[ahead]:
            fetch(handles[ahead])
            fetch(old[ahead])
        if valid[i] != old_valid[i]:
            different[i] = True
        elif valid[i] and handles[i] != old[i]:
            length = length_of(handles[i])
            if length != length_of(old[i]) or not same_bytes(handles[i] & _ADDRESS, old[i] & _ADDRESS, length):
                different[i] = True


@kernel
def replaced_bytes(handles: Handles, present: Bools, old: Handles) -> Any:
    """Return the bytes of the old values that were replaced: handle i is another one, or row i is not present."""
    total = np.int64(0)
    for i in range(len(handles)):
        if handles[i] != old[i] or not present[i]:
            total += np.int64(length_of(old[i]))
    return total


@kernel
def first_words(handles: Handles, valid: Bools) -> Any:
    """The uint32 at the begin of each value; 0 for those that are not valid, or empty."""
    words = np.zeros(len(handles), np.int64)
    for i in range(len(handles)):
        fetch(handles[min(i + _AHEAD, len(handles) - 1)])
        if valid[i] and handles[i]:
            words[i] = np.int64(load_u32(handles[i] & _ADDRESS))
    return words


@kernel
def write_spans(values: Bytes, begins: Integers, lengths: Integers, cursors: Integers, out: Bytes) -> None:
    """Append bytes `[begin, begin + length)` of `values` to each row's bytes in `out`; cursors move past them."""
    source, target = np.uint64(values.ctypes.data), np.uint64(out.ctypes.data)
    for i in range(len(cursors)):
        _copy(source + np.uint64(begins[i]), target + np.uint64(cursors[i]), np.uint64(lengths[i]))
        cursors[i] += lengths[i]


@kernel
def fit_spans(cursors: Integers, stops: Integers, lengths: Integers) -> Any:
    """Return whether each row has `lengths[i]` bytes between its cursor and its stop."""
    short = 0
    for i in range(len(cursors)):
        short += lengths[i] < 0 or lengths[i] > stops[i] - cursors[i]
    return short == 0


@kernel
def read_spans(data: Bytes, cursors: Integers, lengths: Integers) -> Any:
    """Return `lengths[i]` bytes of each row from its cursor on, laid end to end; cursors move past them."""
    out = np.empty(lengths.sum(), np.uint8)
    source, target = np.uint64(data.ctypes.data), np.uint64(out.ctypes.data)
    for i in range(len(cursors)):
        _copy(source + np.uint64(cursors[i]), target, np.uint64(lengths[i]))
        target += np.uint64(lengths[i])
        cursors[i] += lengths[i]
    return out
