"""Kernels of columns (slot → value), and of rows in order of their key groups.

Kernels do no bounds checks; callers pass arguments that fit.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.state.compiled import kernel, store_u8, store_u64
from holdfast.state.physical import Bools, Integers, Slots

Array = npt.NDArray[Any]

STORED_HEAD = np.dtype([("group", ">u2"), ("tag", ">i8")])
"""The head of a key in a base store: its key group, and the key itself or its hash. Format:
`docs/reference/format/materialized.md`."""

_HEAD_BYTES = np.uint64(STORED_HEAD.itemsize)
_DIGIT_BITS_MAX = 11
"""Bits that a step of the radix sort takes. With more bits, a step would write to more places than the processor's
first cache has lines, which is slower."""


@kernel
def gather(values: Array, slots: Slots) -> Any:
    """`values[slots]`, without bounds checks."""
    out = np.empty(len(slots), values.dtype)
    for i in range(len(slots)):
        out[i] = values[np.uint64(slots[i])]
    return out


@kernel
def scatter(values: Array, slots: Slots, source: Array) -> None:
    """`values[slots] = source`; if a slot comes twice, its last value stays."""
    for i in range(len(slots)):
        values[np.uint64(slots[i])] = source[i]


@kernel
def scatter_some(values: Array, slots: Slots, source: Array) -> None:
    """`scatter`, except where the slot is negative."""
    for i in range(len(slots)):
        if slots[i] >= 0:
            values[np.uint64(slots[i])] = source[i]


@kernel
def fill(values: Array, slots: Slots, value: Any) -> None:
    """`values[slots] = value`."""
    for i in range(len(slots)):
        values[np.uint64(slots[i])] = value


@kernel
def where(flags: Bools) -> Any:
    """Return the positions of the set flags; no other thread may write flags meanwhile."""
    total = 0
    for flag in flags:
        total += flag
    found = np.empty(total + 1, np.int32)  # flags behind the last set flag write to the extra element
    count = 0
    for i in range(len(flags)):
        found[np.uint64(count)] = i
        count += flags[i]
    return found[:total]


@kernel
def claim(slots: Slots, flags: Bools) -> Any:
    """Clear the flags of the distinct `slots`; return the positions in `slots` of those whose flag was set. A slot past
    the end of `flags` has no flag."""
    claimed = np.empty(len(slots), np.int32)
    count = 0
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        if slot < np.uint64(len(flags)) and flags[slot]:
            flags[slot] = False
            claimed[count] = i
            count += 1
    return claimed[:count]


@kernel
def mark_changed(values: Array, valid: Bools, slots: Slots, old: Array, old_valid: Bools, changed: Bools) -> None:
    """Set `changed[i]` where the column's value at `slots[i]` is no longer the old value. Bits are compared."""
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        if valid[slot] != old_valid[i] or (valid[slot] and values[slot] != old[i]):
            changed[i] = True


@kernel
def _starts(groups: npt.NDArray[np.int32], group_count: int) -> Any:
    """The positions at which the rows of each group begin, in order of the groups."""
    starts = np.zeros(group_count + 1, np.int64)
    for group in groups:
        starts[group + 1] += 1
    for group in range(group_count):
        starts[group + 1] += starts[group]
    return starts


@kernel
def targets_by_group(groups: npt.NDArray[np.int32], group_count: int) -> Any:
    """Return each row's place in the stable order of `groups`, which are in [0, group_count), and the ordered groups.

    Scatter rows to these places: a scatter reads in order, and writes to as many runs as there are groups. A gather by
    the inverse order would read from as many runs, which takes longer.
    """
    targets, in_order = np.empty(len(groups), np.int32), np.empty(len(groups), np.int32)
    starts = _starts(groups, group_count)
    for group in range(group_count):
        in_order[starts[group] : starts[group + 1]] = group
    for i in range(len(groups)):
        targets[i] = starts[np.uint64(groups[i])]
        starts[np.uint64(groups[i])] += 1
    return targets, in_order


@kernel
def numbers_by_slot(slots: Slots, slot_count: int) -> Any:
    """Return, for each slot in [0, slot_count), its number among the distinct `slots`, from 1 on; 0 for others."""
    numbers = np.zeros(slot_count, np.int32)
    for i in range(len(slots)):
        numbers[np.uint64(slots[i])] = i + 1
    return numbers


@kernel
def _swapped(word: Any) -> Any:
    """The bytes of a uint64 the other way round (LLVM makes a single instruction of it)."""
    swapped = np.uint64(0)
    for _ in range(8):
        swapped = (swapped << np.uint64(8)) | (word & np.uint64(255))
        word >>= np.uint64(8)
    return swapped


@kernel
def _bits_of(value: Any) -> Any:
    """Number of bits that it takes to write a uint64."""
    bits = 0
    while bits < 64 and value >> np.uint64(bits) != 0:
        bits += 1
    return bits


@kernel
def _extremes(values: npt.NDArray[np.uint64]) -> Any:
    """The least and the greatest of some values, of which there is at least one."""
    least = most = values[0]
    for value in values:
        least, most = min(least, value), max(most, value)
    return least, most


@kernel
def _ones(bits: int) -> Any:
    """A uint64 of so many bits, all set."""
    return np.uint64(0) if bits == 0 else ~np.uint64(0) >> np.uint64(64 - bits)


@kernel
def _sort_words(words: npt.NDArray[np.uint64], low: int, bits: int) -> Any:
    """`words` in stable order of their bits `[low, low + bits)`: a radix sort, which uses them up."""
    passes = (bits + _DIGIT_BITS_MAX - 1) // _DIGIT_BITS_MAX
    if passes == 0:
        return words
    width = (bits + passes - 1) // passes
    digit_count, mask = 1 << width, _ones(width)
    other, starts = np.empty(len(words), np.uint64), np.empty(digit_count + 1, np.int64)
    for number in range(passes):
        shift = np.uint64(low + number * width)
        starts[:] = 0
        for word in words:
            starts[((word >> shift) & mask) + np.uint64(1)] += 1
        for digit in range(digit_count):
            starts[digit + 1] += starts[digit]
        for word in words:
            place = (word >> shift) & mask
            other[np.uint64(starts[place])] = word
            starts[place] += 1
        words, other = other, words
    return words


@kernel
def argsort(values: npt.NDArray[np.uint64]) -> Any:
    """Return the stable order of `values`: sort words of the bits in which values differ and, below these, row numbers.

    If both do not fit into a word, the sort takes two rounds, the second by the upper bits.
    """
    order = np.empty(len(values), np.int32)
    if len(values) == 0:
        return order
    words = np.empty(len(values), np.uint64)
    for i in range(len(words)):
        words[i] = i
    least, most = _extremes(values)
    bits, row_bits = _bits_of(most - least), _bits_of(np.uint64(len(values) - 1))
    row = _ones(row_bits)
    done = 0
    while done < bits:
        some = min(bits - done, 64 - row_bits)
        for i in range(len(words)):
            value = ((values[words[i] & row] - least) >> np.uint64(done)) & _ones(some)
            words[i] = (value << np.uint64(row_bits)) | (words[i] & row)
        words = _sort_words(words, row_bits, some)
        done += some
    for i in range(len(words)):
        order[i] = words[i] & row
    return order


@kernel
def stored_heads(tags: npt.NDArray[np.uint64], groups: npt.NDArray[np.int32], group_count: int) -> Any:
    """The order of rows by group, then tag, and the bytes of their `STORED_HEAD`s in that order, laid end to end."""
    order, heads = np.empty(len(tags), np.int32), np.empty(_HEAD_BYTES * np.uint64(len(tags)), np.uint8)
    if len(tags) == 0:
        return order, heads
    words = np.empty(len(tags), np.uint64)
    least, most = _extremes(tags)
    group_bits, tag_bits = _bits_of(np.uint64(group_count - 1)), _bits_of(most - least)
    row_bits = _bits_of(np.uint64(len(tags) - 1))
    if group_bits + tag_bits + row_bits < 64:  # a word cannot be shifted by all of its bits
        for i in range(len(tags)):
            key = (np.uint64(groups[i]) << np.uint64(tag_bits)) | (tags[i] - least)
            words[i] = (key << np.uint64(row_bits)) | np.uint64(i)
    else:
        tag_bits = 0
        by_tag = argsort(tags)
        for i in range(len(tags)):
            row_of_tag = np.uint64(by_tag[i])
            words[i] = (np.uint64(groups[row_of_tag]) << np.uint64(row_bits)) | row_of_tag
    words = _sort_words(words, row_bits, tag_bits + group_bits)
    head: Any = heads.ctypes.data
    for i in range(len(words)):
        row = words[i] & _ones(row_bits)
        order[i] = row
        group = words[i] >> np.uint64(tag_bits + row_bits)
        store_u8(head, group >> np.uint64(8))
        store_u8(head + np.uint64(1), group)
        store_u64(head + np.uint64(2), _swapped(tags[row]))
        head += _HEAD_BYTES
    return order, heads


@kernel
def last_rows(slots: Slots | Integers, slot_count: int) -> Any:
    """Return the number of the last row of each slot, where rows have `slots` in [0, slot_count)."""
    last = np.empty(slot_count, np.int32)
    for i in range(len(slots)):
        last[slots[i]] = i
    return last


@kernel
def mark_different(values: Array, valid: Bools, old: Array, old_valid: Bools, different: Bools) -> None:
    """`mark_changed` for gathered values: set `different[i]` where the i-th ones are not equal. Bits are compared."""
    for i in range(len(values)):
        if valid[i] != old_valid[i] or (valid[i] and values[i] != old[i]):
            different[i] = True
