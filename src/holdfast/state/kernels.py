"""Kernels of columns (slot → value), and of rows in order of their key groups.

Kernels do no bounds checks; callers pass what fits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.state.compiled import kernel, store_u8, store_u64

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STORED_HEAD = np.dtype([("group", ">u2"), ("tag", ">i8")])
"""What a key begins with in a base store (`docs/format/materialized.md`): its key group, and itself or its hash."""

_HEAD_BYTES = np.uint64(STORED_HEAD.itemsize)
_DIGIT_BITS = 11
_DIGITS = 1 << _DIGIT_BITS
_DIGIT = np.uint64(_DIGITS - 1)


@kernel
def gather(values: Array, slots: Integers) -> Any:
    """`values[slots]`, without bounds checks."""
    out = np.empty(len(slots), values.dtype)
    for i in range(len(slots)):
        out[i] = values[np.uint64(slots[i])]
    return out


@kernel
def scatter(values: Array, slots: Integers, source: Array) -> None:
    """`values[slots] = source`; where a slot comes twice, the last one stays."""
    for i in range(len(slots)):
        values[np.uint64(slots[i])] = source[i]


@kernel
def scatter_some(values: Array, slots: Integers, source: Array) -> None:
    """`scatter`, except where the slot is negative."""
    for i in range(len(slots)):
        if slots[i] >= 0:
            values[np.uint64(slots[i])] = source[i]


@kernel
def fill(values: Array, slots: Integers, value: Any) -> None:
    """`values[slots] = value`."""
    for i in range(len(slots)):
        values[np.uint64(slots[i])] = value


@kernel
def claim(slots: Integers, flags: Bools) -> Any:
    """Numbers of the distinct `slots` whose flag is set; it no longer is. Those past the flags have none."""
    claimed = np.empty(len(slots), np.int64)
    count = 0
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        if slot < np.uint64(len(flags)) and flags[slot]:
            flags[slot] = False
            claimed[count] = i
            count += 1
    return claimed[:count]


@kernel
def mark_changed(values: Array, valid: Bools, slots: Integers, old: Array, old_valid: Bools, changed: Bools) -> None:
    """Set `changed[i]` where the column's value at `slots[i]` is no longer the old one. Bits are compared."""
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        if valid[slot] != old_valid[i] or (valid[slot] and values[slot] != old[i]):
            changed[i] = True


@kernel
def _starts(groups: npt.NDArray[np.int32], group_count: int) -> Any:
    """Where the rows of each group begin, in order of the groups."""
    starts = np.zeros(group_count + 1, np.int64)
    for group in groups:
        starts[group + 1] += 1
    for group in range(group_count):
        starts[group + 1] += starts[group]
    return starts


@kernel
def sort_by_group(groups: npt.NDArray[np.int32], group_count: int, rows: Array) -> Any:
    """`rows` and `groups` in stable order of their group, groups being in [0, group_count): a counting sort."""
    starts = _starts(groups, group_count)
    sorted_rows, sorted_groups = np.empty(len(rows), rows.dtype), np.empty(len(groups), np.int32)
    for i in range(len(rows)):
        place = np.uint64(starts[np.uint64(groups[i])])
        sorted_rows[place] = rows[i]
        sorted_groups[place] = groups[i]
        starts[np.uint64(groups[i])] += 1
    return sorted_rows, sorted_groups


@kernel
def _swapped(word: Any) -> Any:
    """The bytes of a uint64 the other way round (LLVM makes one instruction of it)."""
    swapped = np.uint64(0)
    for _ in range(8):
        swapped = (swapped << np.uint64(8)) | (word & np.uint64(255))
        word >>= np.uint64(8)
    return swapped


@kernel
def stored_heads(
    tags: npt.NDArray[np.uint64], groups: npt.NDArray[np.int32], by_tag: Integers, group_count: int
) -> Any:
    """The order of rows by group, then tag, and the bytes of their `STORED_HEAD`s in that order, laid end to end.

    `by_tag` is their order by tag: what is left is a counting sort.
    """
    starts = _starts(groups, group_count)
    order, heads = np.empty(len(by_tag), np.int64), np.empty(_HEAD_BYTES * np.uint64(len(by_tag)), np.uint8)
    heads_at = heads.ctypes.data
    for row in by_tag:
        group = np.uint64(groups[np.uint64(row)])
        place = np.uint64(starts[group])
        starts[group] += 1
        order[place] = row
        head = heads_at + place * _HEAD_BYTES
        store_u8(head, group >> np.uint64(8))
        store_u8(head + np.uint64(1), group)
        store_u64(head + np.uint64(2), _swapped(tags[np.uint64(row)]))
    return order, heads


@kernel
def argsort(values: npt.NDArray[np.uint64]) -> Any:
    """The order of `values`, stable: a radix sort by the bits in which they differ.

    Of 100,000 values it takes 14 (20 bits) to 21 ns each (64 bits), NumPy's 52.
    """
    order, other_order = np.arange(len(values)), np.empty(len(values), np.int64)
    if len(values) == 0:
        return order
    least = values.min()
    spread = values.max() - least
    left, other_left = values - least, np.empty(len(values), np.uint64)
    starts = np.empty(_DIGITS + 1, np.int64)
    shift = np.uint64(0)
    while shift < np.uint64(64) and spread >> shift != 0:
        starts[:] = 0
        for value in left:
            starts[((value >> shift) & _DIGIT) + np.uint64(1)] += 1
        for digit in range(_DIGITS):
            starts[digit + 1] += starts[digit]
        for i in range(len(left)):
            digit = (left[i] >> shift) & _DIGIT
            place = np.uint64(starts[digit])
            starts[digit] += 1
            other_order[place], other_left[place] = order[i], left[i]
        order, other_order = other_order, order
        left, other_left = other_left, left
        shift += np.uint64(_DIGIT_BITS)
    return order


@kernel
def last_rows(slots: Integers, slot_count: int) -> Any:
    """Of rows that have `slots` in [0, slot_count): the number of the last row of each slot."""
    last = np.empty(slot_count, np.int64)
    for i in range(len(slots)):
        last[slots[i]] = i
    return last


@kernel
def mark_different(values: Array, valid: Bools, old: Array, old_valid: Bools, different: Bools) -> None:
    """`mark_changed` for gathered values: set `different[i]` where the i-th ones are not equal. Bits are compared."""
    for i in range(len(values)):
        if valid[i] != old_valid[i] or (valid[i] and values[i] != old[i]):
            different[i] = True
