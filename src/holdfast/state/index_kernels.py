"""Kernels of the index: key → slot.

A table of entries, two 64-bit words each, is probed linearly from a *home* that the tag decides:

    word 0   tag: the key itself (int64 keys), or its hash (byte keys, which are then compared as bytes)
    word 1   0 = empty, else  stamp << 32 | (slot + 1)

`stamp` is the batch that touched the row last, so that the first touch costs no further cache miss. Homes grow with the
mixed tag (`high 32 bits × capacity >> 32`), so any capacity will do, and a table is poured into another in a single
sequential sweep. The index may be in the middle of a sweep:

    old       ····················[home, home, home, …)     from SWEEP_START on, SWEPT positions are empty for good
    entries   [home, home, home, …)····················     all keys whose home in `old` was swept

A sweep begins and rests at an empty position, and no run of entries crosses an empty position, so a tag's home in `old`
alone tells which table it is in. Nothing is marked as deleted: removal shifts the followers back.

`control` is the state shared with Python: see the constants. Insertion stops where room runs out and reports the row;
the caller makes room and goes on from there. Kernels do no bounds checks; callers pass arguments that fit. Positions
and addresses are uint64: signed ones cost a check for each access.
"""

from typing import Any

import numpy as np

from holdfast.state.compiled import copy_bytes, inlined, kernel, load_u64, prefetch, same_bytes, store_u64
from holdfast.state.hashing import mix
from holdfast.state.physical import Integers, Slots

CONTROL_FIELDS = 12
COUNT, COUNT_MAX, SLOTS_USED, FREE, FRESH, UNSEEN, ARENA_USED, ARENA_LIVE, SWEEP_START, SWEPT, KEY_LENGTHS, FINDS = (
    range(CONTROL_FIELDS)
)
"""The fields of `control`: entries, and their greatest number; slots ever used, and slots on the free list; rows
touched by this look-up, and the unseen among them; bytes used in the arena, and the bytes of live keys among them (both
0 in a `FixedIndex`, and while no key is longer than `INLINE_MAX`); the begin of the sweep of `old`, and the number of
positions that the sweep has passed; the bytes of all keys that have cells; 1 while a look-up only finds keys."""

CELL_WORDS = 4
"""64-bit words of the cell of a key without a fixed width: the key's length, then the key itself, or, if it is longer
than `INLINE_MAX`, its place in the arena."""
INLINE_MAX = 8 * (CELL_WORDS - 1)
"""Greatest length in bytes of a key that is in its cell. With a longer cell, more keys are found without a further
cache miss, and short keys take more memory."""

_AHEAD = 24
"""The rows between two steps of fetching ahead: more cache lines than a processor core waits for at once. By
blocks of 32 rows, each fetched and then processed, look-ups in a large index took 1.1 to 1.7 times as long, removals
1.6 times."""
_LAST_IN_LINE = np.uint64(48)
"""The distance of the last entry of a cache line from the first."""
_SLOT_MASK = np.uint64(0xFFFFFFFF)
_PREFETCH_FROM = 1 << 15
"""Words of an index (256 KB) from which on fetching ahead pays."""
_0, _1, _4, _8, _16, _32 = np.uint64(0), np.uint64(1), np.uint64(4), np.uint64(8), np.uint64(16), np.uint64(32)
_CELL, _INLINE = np.uint64(8 * CELL_WORDS), np.uint64(INLINE_MAX)


@kernel
def _scaled(mixed: Any, capacity: Any) -> Any:
    return ((mixed >> _32) * capacity) >> _32


@kernel
def _distance(start: Any, stop: Any, capacity: Any) -> Any:
    """Steps from `start` forward to `stop`."""
    return stop - start if stop >= start else stop + capacity - start


@kernel
def _next(p: Any, capacity: Any) -> Any:
    return p + _1 if p + _1 < capacity else _0


@kernel
def _after(p: Any, table_at: Any, table_end: Any) -> Any:
    """The address of the entry after the one at `p`."""
    return table_at if p + _16 == table_end else p + _16


@kernel
def _slot_of(meta: Any) -> Any:
    return np.int64(meta & _SLOT_MASK) - 1


@kernel
def _in_old(home: Any, old_capacity: Any, start: Any, swept: Any) -> Any:
    """Return whether a tag with that home in `old` is still there."""
    return _distance(start, home, old_capacity) >= swept


@inlined
def _homes(tags: Any, start: int, stop: int, entries: Any, old: Any, control: Any) -> Any:
    """Addresses of the homes of rows `[start, stop)`, in the table that their tags belong to until the next sweep."""
    homes = np.empty(stop - start, np.uint64)
    capacity, old_capacity = np.uint64(len(entries) >> 1), np.uint64(len(old) >> 1)
    entries_at, old_at = entries.ctypes.data, old.ctypes.data
    for i in range(len(homes)):
        homes[i] = entries_at + _scaled(mix(tags[np.uint64(start + i)]), capacity) * _16
    if old_capacity > _0:
        begun, swept = np.uint64(control[SWEEP_START]), np.uint64(control[SWEPT])
        for i in range(len(homes)):
            home = _scaled(mix(tags[np.uint64(start + i)]), old_capacity)
            if _in_old(home, old_capacity, begun, swept):
                homes[i] = old_at + home * _16
    return homes


@inlined
def _fetch(homes: Any, i: int) -> None:
    """Fetch the entry at home `i` and the next three, in a cache line or two: most keys are in one of them."""
    if i >= 0 and i < len(homes):
        prefetch(homes[np.uint64(i)])
        prefetch(homes[np.uint64(i)] + _LAST_IN_LINE)


@inlined
def _is_full(control: Any, slot_tags: Any) -> Any:
    no_slot = control[FREE] == 0 and control[SLOTS_USED] == len(slot_tags)
    return no_slot or control[COUNT] >= control[COUNT_MAX]


@inlined
def _new_slot(tag: Any, slot_tags: Any, free: Any, control: Any) -> Any:
    if control[FREE] > 0:
        control[FREE] -= 1
        slot = free[np.uint64(control[FREE])]
    else:
        slot = control[SLOTS_USED]
        control[SLOTS_USED] += 1
    control[COUNT] += 1
    slot_tags[np.uint64(slot)] = np.int64(tag)
    return slot


@inlined
def _touch(slot: Any, p: Any, before: Any, stamp: Any, first: Any, control: Any, fresh: Any, unseen: Any) -> None:
    """Stamp the entry at `p`, whose stamp was `before`, and note its slot."""
    store_u64(p + _8, (stamp << _32) | np.uint64(slot + 1))
    fresh[np.uint64(control[FRESH])] = slot
    control[FRESH] += 1
    if before < first:
        unseen[np.uint64(control[UNSEEN])] = slot
        control[UNSEEN] += 1


@kernel
def _extent(table: Integers) -> Any:
    """The addresses of a table's begin and end."""
    at = table.ctypes.data
    return at, at + _8 * np.uint64(len(table))


@inlined
def _fetch_place(tags: Any, start: int, homes: Any, i: int, ends: Any, cells: Any, arena: Any, stride: Any) -> None:
    """Move home `i` on to the first entry of the same hash, or an empty entry; fetch the cell of the key there, or the
    key itself where keys have no cells.

    Rows inserted before its turn only fill empty entries, and no entry moves during a look-up, so probing may begin at
    the moved home.
    """
    if i >= 0 and i < len(homes):
        entries_at, entries_end, old_at, old_end = ends
        tag, p = np.uint64(tags[np.uint64(start + i)]), homes[np.uint64(i)]
        in_old = p >= old_at and p < old_end
        while load_u64(p) != tag and load_u64(p + _8) != _0:
            p += _16
            if p == (old_end if in_old else entries_end):
                p = old_at if in_old else entries_at
        homes[np.uint64(i)] = p
        slot = _slot_or_0(load_u64(p + _8))
        prefetch(arena + slot * stride if stride > _0 else cells + slot * _CELL)


@inlined
def _fetch_key(homes: Any, i: int, cells: Any, arena: Any) -> None:
    """Fetch the key of the entry at home `i` if it is not in its cell, which was fetched before."""
    if i >= 0 and i < len(homes):
        cell = cells + _slot_or_0(load_u64(homes[np.uint64(i)] + _8)) * _CELL
        if load_u64(cell) > _INLINE:
            prefetch(arena + load_u64(cell + _8))


@kernel
def _slot_or_0(meta: Any) -> Any:
    """The slot of an entry, or any slot for an empty entry."""
    return np.uint64(max(_slot_of(meta), 0))


@kernel
def _place_of(cell: Any, arena: Any) -> Any:
    """The address of the bytes of the key with this cell."""
    return cell + _8 if load_u64(cell) <= _INLINE else arena + load_u64(cell + _8)


@kernel
def _is_key(meta: Any, cells: Any, arena: Any, stride: Any, key: Any, length: Any) -> Any:
    slot = np.uint64(_slot_of(meta))
    if stride > _0:  # no key of several columns begins with another: the bytes behind a shorter key do not matter
        return same_bytes(arena + slot * stride, key, length)
    cell = cells + slot * _CELL
    return load_u64(cell) == np.uint64(length) and same_bytes(_place_of(cell, arena), key, length)


@inlined
def _keep_key(slot: Any, cells: Any, arena: Any, control: Any, key: Any, length: Any) -> None:
    cell = cells + np.uint64(slot) * _CELL
    store_u64(cell, np.uint64(length))
    control[KEY_LENGTHS] += length
    if length > INLINE_MAX:
        store_u64(cell + _8, np.uint64(control[ARENA_USED]))
        control[ARENA_USED] += length
        control[ARENA_LIVE] += length
    copy_bytes(key, _place_of(cell, arena), length)


@kernel
def lookup(
    tags: Integers,
    strings: Any,
    start: int,
    stop: int,
    stamp: int,
    first: int,
    entries: Integers,
    old: Integers,
    slot_tags: Integers,
    free: Slots,
    control: Integers,
    slots: Slots,
    fresh: Slots,
    unseen: Slots,
) -> Any:
    """Slot of each key of rows `[start, stop)`, inserting unknown ones, or (`FINDS`) with -1 for them; returns the row
    where room ran out, or `stop`.

    `fresh` collects, once and in order, each slot whose stamp was not `stamp`; `unseen` collects those of them whose
    stamp was below `first`. `strings` is None for int64 keys, their own tags; for byte keys it is (offsets, data,
    cells, arena, stride): the key of a slot begins in `arena` at `slot * stride`, or with a stride of 0 where
    `cells[slot]` says. Numba compiles a version for None and a version for byte keys. A new entry passes through the
    code for found entries: with a second call of `_touch`, the loop takes twice the time.
    """
    ends = _extent(entries) + _extent(old)
    entries_at, entries_end, old_at, old_end = ends
    mark, first_mark = np.uint64(stamp), np.uint64(first)
    if strings is not None:
        offsets, data, cells, arena, key_bytes = strings
        keys_at, arena_at, cells_at = data.ctypes.data, arena.ctypes.data, cells.ctypes.data
        stride = np.uint64(key_bytes)
    homes = _homes(tags, start, stop, entries, old, control)
    fetches = len(entries) >= _PREFETCH_FROM
    lead = _AHEAD if strings is None else 3 * _AHEAD
    for i in range(-lead if fetches else 0, len(homes)):
        if fetches:
            _fetch(homes, i + lead)
            if strings is not None:
                _fetch_place(tags, start, homes, i + 2 * _AHEAD, ends, cells_at, arena_at, stride)
                if control[ARENA_LIVE] > 0:
                    _fetch_key(homes, i + _AHEAD, cells_at, arena_at)
            if i < 0:
                continue
        at = np.uint64(start + i)
        tag, p = np.uint64(tags[at]), homes[np.uint64(i)]
        in_old = p >= old_at and p < old_end
        if strings is not None:
            key = keys_at + np.uint64(offsets[at])
            length = offsets[at + _1] - offsets[at]
        while True:
            meta = load_u64(p + _8)
            if meta == _0:
                if control[FINDS]:
                    slot = -1
                    break
                if _is_full(control, slot_tags):
                    return start + i
                is_long = strings is not None and stride == _0 and length > INLINE_MAX
                if is_long and control[ARENA_USED] + length > len(arena):
                    return start + i
                meta = np.uint64(_new_slot(tag, slot_tags, free, control) + 1)
                store_u64(p, tag)
                if strings is not None and stride > _0:
                    copy_bytes(key, arena_at + np.uint64(_slot_of(meta)) * stride, length)
                elif strings is not None:
                    _keep_key(_slot_of(meta), cells_at, arena_at, control, key, length)
            if load_u64(p) == tag and (strings is None or _is_key(meta, cells_at, arena_at, stride, key, length)):
                slot = _slot_of(meta)
                if meta >> _32 != mark:
                    _touch(slot, p, meta >> _32, mark, first_mark, control, fresh, unseen)
                break
            p += _16
            if p == (old_end if in_old else entries_end):
                p = old_at if in_old else entries_at
        slots[at] = slot
    return stop


@inlined
def _place(tag: Any, meta: Any, table: Any, capacity: Any) -> None:
    """Put an entry, whose tag is not there, into a table with room."""
    p = _scaled(mix(tag), capacity)
    while table[p + p + _1] != 0:
        p = _next(p, capacity)
    table[p + p] = tag
    table[p + p + _1] = meta


@kernel
def insert_distinct(slot_tags: Integers, count: int, entries: Integers) -> None:
    """Insert slots 0 … count - 1, whose keys are distinct, into an empty index."""
    capacity = np.uint64(len(entries) >> 1)
    for slot in range(count):
        _place(slot_tags[slot], slot + 1, entries, capacity)


@kernel
def first_empty(entries: Integers) -> Any:
    """A position that no run of entries crosses, so that a sweep can begin there."""
    p = 0
    while entries[2 * p + 1] != 0:
        p += 1
    return p


@kernel
def sweep(old: Integers, entries: Integers, control: Integers, count: int) -> Any:
    """Move the entries of the next `count` positions of `old`, to the end of the run there; return whether `old` is
    empty.

    A run that begins before SWEEP_START may extend past it, so the sweep ends at the first empty position after a full
    round.
    """
    old_capacity, capacity = np.uint64(len(old) >> 1), np.uint64(len(entries) >> 1)
    swept = np.uint64(control[SWEPT])
    wanted = swept + np.uint64(count)
    p = np.uint64(control[SWEEP_START]) + swept
    if p >= old_capacity:
        p -= old_capacity
    while True:
        meta = old[p + p + _1]
        if meta != 0:
            _place(old[p + p], meta, entries, capacity)
            old[p + p + _1] = 0
        elif swept >= wanted or swept >= old_capacity:
            break
        swept += _1
        p = _next(p, old_capacity)
    control[SWEPT] = min(swept, old_capacity)
    return swept >= old_capacity


@inlined
def _take_out(slot: Any, home: Any, table_at: Any, table_end: Any) -> None:
    """Make the entry of `slot` a hole, and move followers back into it as far as they may go."""
    capacity = (table_end - table_at) >> _4
    wanted = np.uint64(slot + 1)
    p = home
    while load_u64(p + _8) & _SLOT_MASK != wanted:
        p = _after(p, table_at, table_end)
    hole = p
    while True:
        p = _after(p, table_at, table_end)
        meta = load_u64(p + _8)
        if meta == _0:
            break
        tag = load_u64(p)
        its_home = table_at + _scaled(mix(tag), capacity) * _16
        # Probing from its home crosses the hole, maybe past the table's end.
        if (its_home <= hole or its_home > p) if hole < p else (its_home <= hole and its_home > p):
            store_u64(hole, tag)
            store_u64(hole + _8, meta)
            hole = p
    store_u64(hole + _8, _0)


@kernel
def remove(slots: Slots, tags: Integers, entries: Integers, old: Integers, free: Slots, control: Integers) -> None:
    """Take the entries of `slots`, which have these tags and must be there, out of the index; they become free."""
    entries_at, entries_end = _extent(entries)
    old_at, old_end = _extent(old)
    homes = _homes(tags, 0, len(slots), entries, old, control)
    first_free = control[FREE]
    for i in range(-_AHEAD, len(slots)):
        _fetch(homes, i + _AHEAD)
        if i < 0:
            continue
        home, slot = homes[np.uint64(i)], slots[np.uint64(i)]
        if home >= old_at and home < old_end:
            _take_out(slot, home, old_at, old_end)
        else:
            _take_out(slot, home, entries_at, entries_end)
        free[np.uint64(first_free + i)] = slot
    control[FREE] += len(slots)
    control[COUNT] -= len(slots)


@kernel
def clear_stamps(entries: Integers) -> None:
    """Forget which batch touched which row."""
    for p in range(len(entries) >> 1):
        entries[2 * p + 1] &= 0xFFFFFFFF


@kernel
def gather_keys(cells: Integers, arena: Any, slots: Slots) -> Any:
    """Offsets (from 0) and bytes of the keys of `slots`, laid end to end."""
    offsets, at, arena_at = np.zeros(len(slots) + 1, np.int64), cells.ctypes.data, arena.ctypes.data
    for i in range(len(slots)):
        offsets[i + 1] = offsets[i] + cells[np.uint64(slots[i]), 0]
    out = np.empty(offsets[-1], np.uint8)
    target = out.ctypes.data
    for i in range(len(slots)):
        prefetch(_place_of(at + np.uint64(slots[min(i + _AHEAD, len(slots) - 1)]) * _CELL, arena_at))
        cell = at + np.uint64(slots[i]) * _CELL
        copy_bytes(_place_of(cell, arena_at), target + offsets[i], offsets[i + 1] - offsets[i])
    return offsets, out


@kernel
def gather_fixed_lengths(arena: Any, stride: int, widths: Integers, slots: Slots) -> Any:
    """Offsets (from 0) of the keys of `slots`, laid end to end; keys have fields of these widths, which may be null."""
    offsets = np.zeros(len(slots) + 1, np.int64)
    at = arena.ctypes.data
    for i in range(len(slots)):
        prefetch(at + np.uint64(slots[min(i + _AHEAD, len(slots) - 1)]) * np.uint64(stride))
        position = np.int64(slots[np.uint64(i)]) * stride
        length = np.int64(len(widths))
        for width in widths:
            there = np.int64(arena[np.uint64(position)])
            length += there * width
            position += 1 + there * width
        offsets[i + 1] = offsets[i] + length
    return offsets


@kernel
def gather_field(arena: Any, stride: int, begin: int, width: int, slots: Slots) -> Any:
    """Return the bytes `[begin, begin + width)` of the keys of `slots`, laid end to end."""
    out = np.empty(len(slots) * width, np.uint8)
    source, target = np.uint64(arena.ctypes.data) + np.uint64(begin), np.uint64(out.ctypes.data)
    size, step = np.uint64(width), np.uint64(stride)
    for i in range(len(slots)):
        prefetch(source + np.uint64(slots[min(i + _AHEAD, len(slots) - 1)]) * step)
        if size == _8:
            store_u64(target, load_u64(source + np.uint64(slots[np.uint64(i)]) * step))
        else:
            copy_bytes(source + np.uint64(slots[np.uint64(i)]) * step, target, size)
        target += size
    return out


@kernel
def gather_bytes(arena: Any, begins: Integers, offsets: Integers) -> Any:
    """The keys that begin at these places of the arena, laid end to end at these offsets."""
    out = np.empty(offsets[-1], np.uint8)
    source, target = arena.ctypes.data, out.ctypes.data
    for i in range(len(begins)):
        prefetch(source + begins[min(i + 2 * _AHEAD, len(begins) - 1)])
        copy_bytes(source + begins[i], target + offsets[i], offsets[i + 1] - offsets[i])
    return out
