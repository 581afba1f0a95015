"""Kernels of the index (key → slot) and of columns (slot → value).

The index is one array of entries, two int64 each, probed linearly from a *home* that the tag decides:

    entries[2p]      tag: the key itself (int64 keys), or its hash (byte keys, which are then compared as bytes)
    entries[2p + 1]  0 = empty, else  stamp << 32 | (slot + 1)

`stamp` is the batch that touched the row last, so that the first touch costs no further cache miss.
Homes grow with the mixed tag (`high 32 bits × capacity >> 32`), so any capacity will do, and growing is one
sequential sweep. Nothing is marked as deleted: removal shifts the followers back.

`control` is the state shared with Python: see the constants. Insertion stops where room runs out and reports
the row; the caller makes room and goes on from there. Kernels do no bounds checks; callers pass what fits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.state.compiled import kernel, load_u64, prefetch
from holdfast.state.encoding import copy_bytes
from holdfast.state.hashing import mix

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

COUNT, COUNT_MAX, SLOTS_USED, FREE, FRESH, ARENA_USED, ARENA_LIVE = range(7)
CONTROL_FIELDS = 7
"""`control`: entries, the most that fit; slots ever used, slots on the free list; rows touched by this lookup;
bytes used in the arena, and those of live keys."""

_BLOCK = 32
_SLOT_MASK = 0xFFFFFFFF
_32 = np.uint64(32)


@kernel
def home_of(tag: int, capacity: int) -> Any:
    """Where the probing for `tag` begins."""
    return np.int64(((mix(tag) >> _32) * np.uint64(capacity)) >> _32)


@kernel
def _take_slot(control: Integers, free: Integers) -> Any:
    if control[FREE] > 0:
        control[FREE] -= 1
        slot = free[control[FREE]]
    else:
        slot = control[SLOTS_USED]
        control[SLOTS_USED] += 1
    control[COUNT] += 1
    return slot


@kernel
def _is_full(control: Integers, slot_tags: Integers) -> Any:
    no_slot = control[FREE] == 0 and control[SLOTS_USED] == len(slot_tags)
    return no_slot or control[COUNT] >= control[COUNT_MAX]


@kernel
def lookup_integers(
    keys: Integers,
    start: int,
    stamp: int,
    entries: Integers,
    slot_tags: Integers,
    free: Integers,
    control: Integers,
    slots: Integers,
    fresh: Integers,
) -> Any:
    """Slot of each key from row `start` on, inserting unknown ones; returns the row where room ran out, or n.

    `fresh` collects each slot whose stamp was another one, once, in order.
    """
    capacity = len(entries) >> 1
    base = entries.ctypes.data
    homes = np.empty(_BLOCK, np.int64)
    row = start
    while row < len(keys):
        block = min(_BLOCK, len(keys) - row)
        for i in range(block):
            homes[i] = home_of(keys[row + i], capacity)
            prefetch(base + homes[i] * 16)
        for i in range(block):
            key, p = keys[row + i], homes[i]
            while True:
                meta = entries[2 * p + 1]
                if meta != 0 and entries[2 * p] == key:
                    slot = (meta & _SLOT_MASK) - 1
                    if meta >> 32 == stamp:
                        break
                elif meta != 0:
                    p = p + 1 if p + 1 < capacity else 0
                    continue
                else:
                    if _is_full(control, slot_tags):
                        return row + i
                    slot = _take_slot(control, free)
                    entries[2 * p] = key
                    slot_tags[slot] = key
                entries[2 * p + 1] = (stamp << 32) | (slot + 1)
                fresh[control[FRESH]] = slot
                control[FRESH] += 1
                break
            slots[row + i] = slot
        row += block
    return row


@kernel
def _same_bytes(a: Bytes, a_start: int, b: Bytes, b_start: int, length: int) -> Any:
    a_base, b_base = a.ctypes.data + a_start, b.ctypes.data + b_start
    i = 0
    while i + 8 <= length:
        if load_u64(a_base + i) != load_u64(b_base + i):
            return False
        i += 8
    while i < length:
        if a[a_start + i] != b[b_start + i]:
            return False
        i += 1
    return True


@kernel
def lookup_bytes(
    hashes: Integers,
    offsets: Integers,
    data: Bytes,
    start: int,
    stamp: int,
    entries: Integers,
    slot_tags: Integers,
    free: Integers,
    control: Integers,
    slots: Integers,
    fresh: Integers,
    extents: Integers,
    arena: Bytes,
) -> Any:
    """`lookup_integers` for byte keys. `extents[slot]` is (start, length) of the slot's key in `arena`."""
    capacity = len(entries) >> 1
    base = entries.ctypes.data
    homes = np.empty(_BLOCK, np.int64)
    row = start
    while row < len(hashes):
        block = min(_BLOCK, len(hashes) - row)
        for i in range(block):
            homes[i] = home_of(hashes[row + i], capacity)
            prefetch(base + homes[i] * 16)
        extents_base, arena_base = extents.ctypes.data, arena.ctypes.data
        for i in range(block):
            meta = entries[2 * homes[i] + 1]
            if meta != 0:
                prefetch(extents_base + ((meta & _SLOT_MASK) - 1) * 16)
        for i in range(block):
            meta = entries[2 * homes[i] + 1]
            if meta != 0:
                prefetch(arena_base + extents[(meta & _SLOT_MASK) - 1, 0])
        for i in range(block):
            tag, p = hashes[row + i], homes[i]
            key_start = offsets[row + i]
            length = offsets[row + i + 1] - key_start
            while True:
                meta = entries[2 * p + 1]
                slot = (meta & _SLOT_MASK) - 1
                if (
                    meta != 0
                    and entries[2 * p] == tag
                    and extents[slot, 1] == length
                    and _same_bytes(arena, extents[slot, 0], data, key_start, length)
                ):
                    if meta >> 32 == stamp:
                        break
                elif meta != 0:
                    p = p + 1 if p + 1 < capacity else 0
                    continue
                else:
                    if _is_full(control, slot_tags) or control[ARENA_USED] + length > len(arena):
                        return row + i
                    slot = _take_slot(control, free)
                    entries[2 * p] = tag
                    slot_tags[slot] = tag
                    extents[slot, 0] = control[ARENA_USED]
                    extents[slot, 1] = length
                    copy_bytes(data, key_start, length, arena, control[ARENA_USED])
                    control[ARENA_USED] += length
                    control[ARENA_LIVE] += length
                entries[2 * p + 1] = (stamp << 32) | (slot + 1)
                fresh[control[FRESH]] = slot
                control[FRESH] += 1
                break
            slots[row + i] = slot
        row += block
    return row


@kernel
def rehash(entries: Integers, larger: Integers) -> None:
    """Insert all entries, known to be distinct, into `larger`, which is empty."""
    capacity = len(larger) >> 1
    for old in range(len(entries) >> 1):
        if entries[2 * old + 1] != 0:
            p = home_of(entries[2 * old], capacity)
            while larger[2 * p + 1] != 0:
                p = p + 1 if p + 1 < capacity else 0
            larger[2 * p] = entries[2 * old]
            larger[2 * p + 1] = entries[2 * old + 1]


@kernel
def remove(slots: Integers, entries: Integers, slot_tags: Integers, free: Integers, control: Integers) -> None:
    """Take the entries of `slots`, which must be there, out of the index; the slots go onto the free list."""
    capacity = len(entries) >> 1
    for slot in slots:
        hole = home_of(slot_tags[slot], capacity)
        while (entries[2 * hole + 1] & _SLOT_MASK) - 1 != slot:
            hole = hole + 1 if hole + 1 < capacity else 0
        p = hole
        while True:
            p = p + 1 if p + 1 < capacity else 0
            if entries[2 * p + 1] == 0:
                break
            from_home = p - home_of(entries[2 * p], capacity)
            from_hole = p - hole
            if from_home + (capacity if from_home < 0 else 0) >= from_hole + (capacity if from_hole < 0 else 0):
                entries[2 * hole] = entries[2 * p]
                entries[2 * hole + 1] = entries[2 * p + 1]
                hole = p
        entries[2 * hole + 1] = 0
        free[control[FREE]] = slot
        control[FREE] += 1
        control[COUNT] -= 1


@kernel
def clear_stamps(entries: Integers) -> None:
    """Forget which batch touched which row."""
    for p in range(len(entries) >> 1):
        entries[2 * p + 1] &= _SLOT_MASK


@kernel
def gather(values: Array, slots: Integers) -> Any:
    """`values[slots]`, without bounds checks."""
    out = np.empty(len(slots), values.dtype)
    for i in range(len(slots)):
        out[i] = values[slots[i]]
    return out


@kernel
def scatter(values: Array, slots: Integers, source: Array) -> None:
    """`values[slots] = source`; where a slot comes twice, the last one stays."""
    for i in range(len(slots)):
        values[slots[i]] = source[i]


@kernel
def fill(values: Array, slots: Integers, value: Any) -> None:
    """`values[slots] = value`."""
    for i in range(len(slots)):
        values[slots[i]] = value


@kernel
def gather_lengths(extents: Integers, slots: Integers) -> Any:
    """Offsets (from 0) of the keys of `slots`, laid end to end."""
    offsets = np.zeros(len(slots) + 1, np.int64)
    for i in range(len(slots)):
        offsets[i + 1] = offsets[i] + extents[slots[i], 1]
    return offsets


@kernel
def gather_bytes(extents: Integers, arena: Bytes, slots: Integers, offsets: Integers) -> Any:
    """The keys of `slots`, laid end to end."""
    out = np.empty(offsets[-1], np.uint8)
    for i in range(len(slots)):
        copy_bytes(arena, extents[slots[i], 0], extents[slots[i], 1], out, offsets[i])
    return out


@kernel
def mark_changed(values: Array, valid: Bools, slots: Integers, old: Array, old_valid: Bools, changed: Bools) -> None:
    """Set `changed[i]` where the column's value at `slots[i]` is no longer the old one. Bits are compared."""
    for i in range(len(slots)):
        slot = slots[i]
        if valid[slot] != old_valid[i] or (valid[slot] and values[slot] != old[i]):
            changed[i] = True


@kernel
def counting_sort(groups: npt.NDArray[np.int32], group_count: int) -> Any:
    """The stable order of rows by group, groups being in [0, group_count)."""
    starts = np.zeros(group_count + 1, np.int64)
    for group in groups:
        starts[group + 1] += 1
    for group in range(group_count):
        starts[group + 1] += starts[group]
    order = np.empty(len(groups), np.int64)
    for i in range(len(groups)):
        order[starts[groups[i]]] = i
        starts[groups[i]] += 1
    return order


@kernel
def last_rows(slots: Integers, slot_count: int) -> Any:
    """Of rows that have `slots` in [0, slot_count): the number of the last row of each slot."""
    last = np.empty(slot_count, np.int64)
    for i in range(len(slots)):
        last[slots[i]] = i
    return last


@kernel
def insert_distinct(slot_tags: Integers, count: int, entries: Integers) -> None:
    """Insert slots 0 … count - 1, whose keys are distinct, into an empty index."""
    capacity = len(entries) >> 1
    for slot in range(count):
        p = home_of(slot_tags[slot], capacity)
        while entries[2 * p + 1] != 0:
            p = p + 1 if p + 1 < capacity else 0
        entries[2 * p] = slot_tags[slot]
        entries[2 * p + 1] = slot + 1
