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

from holdfast.state.compiled import copy_bytes, inlined, kernel, load_u64, prefetch, same_bytes
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
_PREFETCH_FROM = 1 << 15
"""Words of an index (256 KB) from which on fetching ahead pays."""
_0, _1, _32 = np.uint64(0), np.uint64(1), np.uint64(32)


@kernel
def home_of(tag: Any, capacity: Any) -> Any:
    """Where the probing for `tag` begins (uint64, as all positions are: signed ones cost a check for each access)."""
    return ((mix(tag) >> _32) * capacity) >> _32


@kernel
def _next(p: Any, capacity: Any) -> Any:
    return p + _1 if p + _1 < capacity else _0


@kernel
def _slot_of(meta: Any) -> Any:
    return (meta & _SLOT_MASK) - 1


@inlined
def _find_homes(tags: Integers, row: int, block: int, entries: Integers, homes: Any) -> None:
    """The homes of `tags[row : row + block]`; fetches their cache lines where the index is larger than the cache."""
    capacity = np.uint64(len(entries) >> 1)
    for i in range(block):
        homes[i] = home_of(tags[np.uint64(row + i)], capacity)
    if len(entries) >= _PREFETCH_FROM:
        base = entries.ctypes.data
        for i in range(block):
            prefetch(base + homes[i] * np.uint64(16))


@inlined
def _is_full(control: Integers, slot_tags: Integers) -> Any:
    no_slot = control[FREE] == 0 and control[SLOTS_USED] == len(slot_tags)
    return no_slot or control[COUNT] >= control[COUNT_MAX]


@inlined
def _insert(tag: int, p: Any, entries: Integers, slot_tags: Integers, free: Integers, control: Integers) -> Any:
    """Put `tag` at the empty entry `p`, without a stamp; returns its slot."""
    if control[FREE] > 0:
        control[FREE] -= 1
        slot = free[np.uint64(control[FREE])]
    else:
        slot = control[SLOTS_USED]
        control[SLOTS_USED] += 1
    control[COUNT] += 1
    entries[p + p] = tag
    slot_tags[np.uint64(slot)] = tag
    return slot


@inlined
def _touch(slot: int, p: Any, stamp: int, entries: Integers, control: Integers, fresh: Integers) -> None:
    entries[p + p + _1] = (stamp << 32) | (slot + 1)
    fresh[np.uint64(control[FRESH])] = slot
    control[FRESH] += 1


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
    capacity = np.uint64(len(entries) >> 1)
    homes = np.empty(_BLOCK, np.uint64)
    row = start
    while row < len(keys):
        block = min(_BLOCK, len(keys) - row)
        _find_homes(keys, row, block, entries, homes)
        for i in range(block):
            at = np.uint64(row + i)
            key, p = keys[at], homes[i]
            while True:
                meta = entries[p + p + _1]
                if entries[p + p] == key and meta >> 32 == stamp:
                    break
                if meta == 0 or entries[p + p] == key:
                    if meta == 0:
                        if _is_full(control, slot_tags):
                            return row + i
                        meta = _insert(key, p, entries, slot_tags, free, control) + 1
                    _touch(_slot_of(meta), p, stamp, entries, control, fresh)
                    break
                p = _next(p, capacity)
            slots[at] = _slot_of(meta)
        row += block
    return row


@inlined
def _fetch_keys(
    hashes: Integers, row: int, block: int, entries: Integers, homes: Any, extents: Any, arena: Any
) -> None:
    """Move `homes` on to the first entry of the same hash, or an empty one; fetch the cache lines of the keys there."""
    capacity = np.uint64(len(entries) >> 1)
    for i in range(block):
        p = homes[i]
        while entries[p + p] != hashes[np.uint64(row + i)] and entries[p + p + _1] != 0:
            p = _next(p, capacity)
        homes[i] = p
        prefetch(_extent_of(entries[p + p + _1], extents))
    for i in range(block):
        prefetch(arena + load_u64(_extent_of(entries[homes[i] + homes[i] + _1], extents)))


@kernel
def _extent_of(meta: Any, extents: Any) -> Any:
    """The address of the extent of an entry's key (of any key for an empty entry)."""
    return extents + np.uint64(max(_slot_of(meta), 0)) * np.uint64(16)


@kernel
def _is_key(extent: Any, arena: Any, key: Any, length: Any) -> Any:
    same_length = load_u64(extent + np.uint64(8)) == np.uint64(length)
    return same_length and same_bytes(arena + load_u64(extent), key, length)


@inlined
def _keep_key(slot: int, extents: Integers, arena: int, control: Integers, key: int, length: int) -> None:
    extents[slot, 0] = control[ARENA_USED]
    extents[slot, 1] = length
    copy_bytes(key, arena + control[ARENA_USED], length)
    control[ARENA_USED] += length
    control[ARENA_LIVE] += length


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
    capacity = np.uint64(len(entries) >> 1)
    keys_at, arena_at, extents_at = data.ctypes.data, arena.ctypes.data, extents.ctypes.data
    homes = np.empty(_BLOCK, np.uint64)
    row = start
    while row < len(hashes):
        block = min(_BLOCK, len(hashes) - row)
        _find_homes(hashes, row, block, entries, homes)
        if len(entries) >= _PREFETCH_FROM:
            _fetch_keys(hashes, row, block, entries, homes, extents_at, arena_at)
        for i in range(block):
            at = np.uint64(row + i)
            tag, p = hashes[at], homes[i]
            key = keys_at + offsets[at]
            length = offsets[at + _1] - offsets[at]
            while True:
                meta = entries[p + p + _1]
                if meta == 0:
                    if _is_full(control, slot_tags) or control[ARENA_USED] + length > len(arena):
                        return row + i
                    meta = _insert(tag, p, entries, slot_tags, free, control) + 1
                    _keep_key(_slot_of(meta), extents, arena_at, control, key, length)
                    _touch(_slot_of(meta), p, stamp, entries, control, fresh)
                    break
                if entries[p + p] == tag and _is_key(_extent_of(meta, extents_at), arena_at, key, length):
                    if meta >> 32 != stamp:
                        _touch(_slot_of(meta), p, stamp, entries, control, fresh)
                    break
                p = _next(p, capacity)
            slots[at] = _slot_of(meta)
        row += block
    return row


@kernel
def rehash(entries: Integers, larger: Integers) -> None:
    """Insert all entries, known to be distinct, into `larger`, which is empty."""
    capacity = np.uint64(len(larger) >> 1)
    for old in range(len(entries) >> 1):
        if entries[2 * old + 1] != 0:
            p = home_of(entries[2 * old], capacity)
            while larger[p + p + _1] != 0:
                p = _next(p, capacity)
            larger[p + p] = entries[2 * old]
            larger[p + p + _1] = entries[2 * old + 1]


@kernel
def _distance(start: Any, stop: Any, capacity: Any) -> Any:
    """Steps from `start` forward to `stop`."""
    return stop - start if stop >= start else stop + capacity - start


@kernel
def remove(slots: Integers, entries: Integers, slot_tags: Integers, free: Integers, control: Integers) -> None:
    """Take the entries of `slots`, which must be there, out of the index; the slots go onto the free list."""
    capacity = np.uint64(len(entries) >> 1)
    for slot in slots:
        hole = home_of(slot_tags[slot], capacity)
        while _slot_of(entries[hole + hole + _1]) != slot:
            hole = _next(hole, capacity)
        p = _next(hole, capacity)
        while entries[p + p + _1] != 0:
            if _distance(home_of(entries[p + p], capacity), p, capacity) >= _distance(hole, p, capacity):
                entries[hole + hole] = entries[p + p]
                entries[hole + hole + _1] = entries[p + p + _1]
                hole = p
            p = _next(p, capacity)
        entries[hole + hole + _1] = 0
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
        out[i] = values[np.uint64(slots[i])]
    return out


@kernel
def scatter(values: Array, slots: Integers, source: Array) -> None:
    """`values[slots] = source`; where a slot comes twice, the last one stays."""
    for i in range(len(slots)):
        values[np.uint64(slots[i])] = source[i]


@kernel
def fill(values: Array, slots: Integers, value: Any) -> None:
    """`values[slots] = value`."""
    for i in range(len(slots)):
        values[np.uint64(slots[i])] = value


@kernel
def gather_lengths(extents: Integers, slots: Integers) -> Any:
    """Offsets (from 0) of the keys of `slots`, laid end to end."""
    offsets = np.zeros(len(slots) + 1, np.int64)
    for i in range(len(slots)):
        offsets[i + 1] = offsets[i] + extents[np.uint64(slots[i]), 1]
    return offsets


@kernel
def gather_bytes(extents: Integers, arena: Bytes, slots: Integers, offsets: Integers) -> Any:
    """The keys of `slots`, laid end to end."""
    out = np.empty(offsets[-1], np.uint8)
    source, target = arena.ctypes.data, out.ctypes.data
    for i in range(len(slots)):
        ahead = min(i + _BLOCK, len(slots) - 1)
        prefetch(source + extents[np.uint64(slots[ahead]), 0])
        slot = np.uint64(slots[i])
        copy_bytes(source + extents[slot, 0], target + offsets[i], extents[slot, 1])
    return out


@kernel
def mark_changed(values: Array, valid: Bools, slots: Integers, old: Array, old_valid: Bools, changed: Bools) -> None:
    """Set `changed[i]` where the column's value at `slots[i]` is no longer the old one. Bits are compared."""
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        if valid[slot] != old_valid[i] or (valid[slot] and values[slot] != old[i]):
            changed[i] = True


@kernel
def sort_by_group(groups: npt.NDArray[np.int32], group_count: int, rows: Integers) -> Any:
    """`rows` and `groups` in stable order of their group, groups being in [0, group_count): a counting sort."""
    starts = np.zeros(group_count + 1, np.int64)
    for group in groups:
        starts[group + 1] += 1
    for group in range(group_count):
        starts[group + 1] += starts[group]
    sorted_rows, sorted_groups = np.empty(len(rows), np.int64), np.empty(len(groups), np.int32)
    for i in range(len(rows)):
        place = np.uint64(starts[np.uint64(groups[i])])
        sorted_rows[place] = rows[i]
        sorted_groups[place] = groups[i]
        starts[np.uint64(groups[i])] += 1
    return sorted_rows, sorted_groups


@kernel
def last_rows(slots: Integers, slot_count: int) -> Any:
    """Of rows that have `slots` in [0, slot_count): the number of the last row of each slot."""
    last = np.empty(slot_count, np.int64)
    for i in range(len(slots)):
        last[slots[i]] = i
    return last


@kernel
def first_rows(slots: Integers, seen: Bools) -> Any:
    """Numbers of the rows whose slot no earlier row has; `seen` is False at all of them, and True afterwards."""
    first = np.empty(len(slots), np.int64)
    count = 0
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        if not seen[slot]:
            seen[slot] = True
            first[count] = i
            count += 1
    return first[:count]


@kernel
def mark_different(values: Array, valid: Bools, old: Array, old_valid: Bools, different: Bools) -> None:
    """`mark_changed` for gathered values: set `different[i]` where the i-th ones are not equal. Bits are compared."""
    for i in range(len(values)):
        if valid[i] != old_valid[i] or (valid[i] and values[i] != old[i]):
            different[i] = True


@kernel
def insert_distinct(slot_tags: Integers, count: int, entries: Integers) -> None:
    """Insert slots 0 … count - 1, whose keys are distinct, into an empty index."""
    capacity = np.uint64(len(entries) >> 1)
    for slot in range(count):
        p = home_of(slot_tags[slot], capacity)
        while entries[p + p + _1] != 0:
            p = _next(p, capacity)
        entries[p + p] = slot_tags[slot]
        entries[p + p + _1] = slot + 1
