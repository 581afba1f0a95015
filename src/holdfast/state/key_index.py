"""The index: from keys to slots (row numbers of a table), exact, growing and shrinking.

A slot stays with its key until the key is removed; then it is free and may be given to another key. The index grows
without a stall: entries are poured into a larger table some at a time, before each look-up. Meanwhile keys are found in
either table (`index_kernels`) and the system gets back the emptied pages. Arrays by slot grow where they lie
(`growing`). The index shrinks by `compact`, at once. This module has the part that all kinds of index share: entries,
slots and the free list. The kinds are in `index`. Does not own values, transactions, or the meaning of the stamps.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import StateTooLarge
from holdfast.state import index_kernels, kernels
from holdfast.state.growing import enlarge, give_back, whole_pages
from holdfast.state.index_kernels import (
    ARENA_LIVE,
    ARENA_USED,
    CONTROL_FIELDS,
    COUNT,
    COUNT_MAX,
    FINDS,
    FREE,
    FRESH,
    KEY_LENGTHS,
    SLOTS_USED,
    SWEEP_START,
    SWEPT,
    UNSEEN,
)
from holdfast.state.keys import Keys
from holdfast.state.physical import Bytes, Integers, Slots, byte_width

ENTRIES_LEAST = 128
INDEX_ENTRY_BYTES = 16
"""Bytes of an entry of the index."""
LOADS_MAX = ((1 << 14, 0.125), (1 << 18, 0.375))
"""Pairs of a number of entries and the load from which on an index of up to that number grows. Small indexes are kept
sparse, which costs no memory worth counting and saves mispredicted branches."""
LOAD_MAX = 0.625
SLOTS_LEAST = 64
GROW_BY_PART_FROM = 1 << 17
"""Size below which arrays double, so that small tables grow in few steps. Larger arrays grow less, since memory counts
for more: entries and a `VariableIndex`'s arena by a half; slots, of which each column has as many, by an eighth."""
SLOTS_STEP_MAX = 1 << 18
"""The most slots that are added at once: adding costs in proportion to the slots added."""
SLOTS_MAX = int(np.iinfo(np.int32).max)
"""Numbers of rows, counted from 1 in places, fit int32 (`physical.Slots`)."""
PROBE_ROWS = 1 << 14
"""Rows that a kernel looks up or removes at once: their homes (128 KB) stay in the processor's cache, and few of them
are computed unnecessarily when space runs out."""
SWEEP_LEAST = 1 << 15
SWEEP_PER_ROW = 4
"""Positions of the old table that a look-up pours while entries are poured: at least, and for each row. The new table
has room for a third of the old table's positions, so it is not full before all are poured. Higher values end the
pouring sooner and make each look-up slower."""
OFFSET_BYTES = 4
"""Bytes of a value of variable width in a column, beside the value's own."""
_EMPTY = np.empty(0, np.int64)


class KeyIndex(ABC):
    """The part that all kinds of index share. `_tags` has the tag of each slot's key: the key itself, or its hash."""

    def __init__(self, key_schema: pa.Schema) -> None:
        self.key_schema = key_schema
        self._control = np.zeros(CONTROL_FIELDS, np.int64)
        self._tags = np.zeros(SLOTS_LEAST, np.int64)
        self._free = np.empty(0, np.int32)
        self._fresh = np.empty(0, np.int32)
        self._unseen = np.empty(0, np.int32)
        self._entries = self._old = _EMPTY
        self._swept_pages_end = self._given_back = 0
        """The end of the old table's swept whole pages, in bytes, and the number of bytes given back to the system."""
        self._use_entries(np.zeros(2 * ENTRIES_LEAST, np.int64))

    def __len__(self) -> int:
        return int(self._control[COUNT])

    @property
    def slot_capacity(self) -> int:
        """A bound above every slot that was assigned."""
        return len(self._tags)

    @property
    def slots_used(self) -> int:
        """A bound greater than every slot that has a key or is on the free list."""
        return int(self._control[SLOTS_USED])

    @property
    def memory_bytes(self) -> int:
        tables = self._entries.nbytes + self._old.nbytes - self._given_back
        return tables + self._tags.nbytes + self._free.nbytes + self._fresh.nbytes + self._unseen.nbytes

    @property
    def key_bytes(self) -> float:
        """About the bytes that a key takes in its columns, on average."""
        return self._column_bytes

    @cached_property
    def _column_bytes(self) -> int:
        """The bytes of a key in its columns, without values of variable width."""
        return sum(byte_width(kind) or OFFSET_BYTES for kind in self.key_schema.types)

    def reserve(self, keys: int) -> None:
        """Make room in an empty index for so many keys at once, instead of step by step."""
        self._use_entries(np.zeros(2 * _capacity_for(keys), np.int64))
        if keys > len(self._tags):
            self._grow_slots(keys)

    def lookup(self, keys: Keys, stamp: int, first: int = 0, inserts: bool = True) -> tuple[Slots, Slots, Slots]:
        """Return the slot of each row's key, inserting unknown keys, or else with -1 for them; the newly stamped slots;
        and the unseen among these.

        A slot is newly stamped, and listed once, if its stamp was not `stamp` before. A slot is unseen if its stamp was
        below `first`; the stamp of a new key is 0. `stamp` is in [1, 2^31), and not below the last stamp. Keys of a
        single column must not be null.

        Raises
        ------
        StateTooLarge
            There are `SLOTS_MAX` keys.
        """
        slots = np.empty(len(keys), np.int32)
        if len(self._fresh) < len(keys):
            self._fresh, self._unseen = np.empty((2, len(keys)), np.int32)
        self._control[[FRESH, UNSEEN, FINDS]] = 0, 0, not inserts
        row, before = 0, len(self)
        while row < len(keys):
            stop = min(len(keys), row + PROBE_ROWS)
            if len(self._old):
                self._sweep(max(SWEEP_LEAST, SWEEP_PER_ROW * (stop - row)))
            row = self._probe(keys, row, stop, stamp, first, slots)
            if row < stop:
                self._make_room(keys, row, (len(self) - before) / max(1, row), grows=before > 0)
        return slots, self._fresh[: self._control[FRESH]].copy(), self._unseen[: self._control[UNSEEN]].copy()

    def remove(self, slots: Slots) -> None:
        """Remove the keys of distinct `slots`, all in use."""
        wanted = int(self._control[FREE]) + len(slots)
        if wanted > len(self._free):
            enlarge(self, "_free", wanted + wanted // 4)
        for start in range(0, len(slots), PROBE_ROWS):
            piece = slots[start : start + PROBE_ROWS]
            tags = kernels.gather(self._tags, piece)
            index_kernels.remove(piece, tags, self._entries, self._old, self._free, self._control)

    def clear(self) -> None:
        """Remove all keys; capacities stay."""
        self._entries[:] = 0
        self._drop_old()
        self._control[[COUNT, SLOTS_USED, FREE, ARENA_USED, ARENA_LIVE, KEY_LENGTHS]] = 0

    def clear_stamps(self) -> None:
        """Clear all stamps: no slot counts as touched by any batch."""
        index_kernels.clear_stamps(self._entries)
        index_kernels.clear_stamps(self._old)

    def compact(self, live: Slots) -> None:
        """Keep only the keys of `live`, which are all keys there are; the i-th of them gets slot i."""
        self._keep(live)
        self._free = np.empty(0, np.int32)
        self._control[[COUNT, SLOTS_USED, FREE]] = 0, 0, 0
        self._drop_old()
        self._use_entries(np.zeros(2 * _capacity_for(len(live)), np.int64))
        index_kernels.insert_distinct(self._tags, len(live), self._entries)
        self._control[[COUNT, SLOTS_USED]] = len(live)

    def stored_keys(self, slots: Slots, max_parallelism: int) -> tuple[Slots, "StoredKeys"]:
        """Return the order of `slots` by key group and tag, and their stored keys in that order."""
        tags = kernels.gather(self._tags, slots)
        groups = self._groups(slots, tags, max_parallelism)
        order, heads = kernels.stored_heads(tags.view(np.uint64), groups, max_parallelism)
        key_bytes = self._key_bytes(kernels.gather(slots, order))
        return order, StoredKeys(heads.view(f"V{kernels.STORED_HEAD.itemsize}"), key_bytes)

    @abstractmethod
    def keys(self, slots: Slots) -> Keys:
        """Return copies of the keys of `slots`."""

    @abstractmethod
    def _key_bytes(self, slots: Slots) -> tuple[Integers, Bytes] | None:
        """Offsets and data of the keys of `slots`, where tags are not the keys themselves; else None."""

    def columns(self, slots: Slots) -> list[object]:
        """The key columns of `slots` as Arrow arrays."""
        return self._columns(slots, kernels.gather(self._tags, slots))

    def key_groups(self, slots: Slots, max_parallelism: int) -> npt.NDArray[np.int32]:
        """The key groups of `slots`."""
        return self._groups(slots, kernels.gather(self._tags, slots), max_parallelism)

    def grouped_columns(self, slots: Slots, max_parallelism: int) -> tuple[npt.NDArray[np.int32], list[object]]:
        """`key_groups` and `columns`."""
        tags = kernels.gather(self._tags, slots)
        return self._groups(slots, tags, max_parallelism), self._columns(slots, tags)

    @abstractmethod
    def _columns(self, slots: Slots, tags: Integers) -> list[object]:
        """The key columns of `slots`, which have these tags."""

    @abstractmethod
    def _groups(self, slots: Slots, tags: Integers, max_parallelism: int) -> npt.NDArray[np.int32]:
        """The key groups of `slots`, which have these tags."""

    @abstractmethod
    def _tags_of(self, keys: Keys) -> Integers: ...

    def _strings_of(self, keys: Keys) -> Any:
        """The arrays that the kernel `lookup` needs beside tags."""
        return None

    def _probe(self, keys: Keys, row: int, stop: int, stamp: int, first: int, slots: Slots) -> int:
        """Look up rows `[row, stop)`; return the row where room ran out, or `stop`."""
        return int(
            index_kernels.lookup(
                self._tags_of(keys),
                self._strings_of(keys),
                row,
                stop,
                stamp,
                first,
                self._entries,
                self._old,
                self._tags,
                self._free,
                self._control,
                slots,
                self._fresh,
                self._unseen,
            )
        )

    def _make_room(self, keys: Keys, row: int, new: float, *, grows: bool) -> None:
        """Make room so that the key of `row` can be inserted; `new` is the share of the rows before it that were.

        `grows`: there were keys before this look-up, so that further ones are to be expected after it.
        """
        control = self._control
        # Room for all rows that follow, if as many of them are new: each smaller step would be taken again.
        more = int(new * (len(keys) - row))
        if control[FREE] == 0 and control[SLOTS_USED] == len(self._tags):
            # An eighth more: exact room would be too little a few rows later, and each step may move the arrays.
            spare = more // 8 if grows else 0
            wanted = max(next_capacity(len(self._tags), 8), len(self._tags) + more + spare)
            capacity = min(wanted, len(self._tags) + SLOTS_STEP_MAX, SLOTS_MAX)
            if capacity == len(self._tags):
                raise StateTooLarge(
                    f"a state table has {capacity} rows in memory and cannot have more in a subtask: raise the job's "
                    "parallelism, or keep fewer in memory with RocksDBState"
                )
            self._grow_slots(capacity)
        if control[COUNT] >= control[COUNT_MAX]:
            self._pour(_capacity_for(int(control[COUNT]) + more, next_capacity(len(self._entries) // 2)))

    def _pour(self, capacity: int) -> None:
        """Begin to pour the entries into a table of that capacity; later look-ups continue it."""
        if len(self._old):
            self._sweep(len(self._old))
        self._old = self._entries
        self._control[[SWEEP_START, SWEPT]] = index_kernels.first_empty(self._old), 0
        self._use_entries(np.zeros(2 * capacity, np.int64))
        self._sweep(SWEEP_LEAST)

    def _sweep(self, positions: int) -> None:
        if index_kernels.sweep(self._old, self._entries, self._control, positions):
            self._drop_old()
        else:
            self._give_back_swept()

    def _give_back_swept(self) -> None:
        """Give back swept pages. Pages at the begin of the sweep may hold entries from the table's end: they stay."""
        begin, swept = (self._control[[SWEEP_START, SWEPT]] * INDEX_ENTRY_BYTES).tolist()
        stop = min(begin + swept, self._old.nbytes)
        first, last = whole_pages(self._old, max(begin, self._swept_pages_end), stop)
        if first < last:  # multiples of an entry: NumPy's arrays begin at such addresses
            self._swept_pages_end = last
            if not self._old.view(np.uint8)[first:last].view(np.int64)[1::2].any():
                self._given_back += (last - first) * give_back(self._old, first, last)

    def _drop_old(self) -> None:
        self._old = _EMPTY
        self._swept_pages_end = self._given_back = 0

    def _grow_slots(self, capacity: int) -> None:
        enlarge(self, "_tags", capacity)

    def _keep(self, live: Slots) -> None:
        kept = np.zeros(max(SLOTS_LEAST, len(live)), np.int64)  # arrays that kernels make cannot grow in place
        np.take(self._tags, live, out=kept[: len(live)], mode="clip")
        self._tags = kept

    def _use_entries(self, entries: Integers) -> None:
        self._entries = entries
        self._control[COUNT_MAX] = int(len(entries) // 2 * _load_max(len(entries) // 2))


class StoredKeys:
    """Keys as base stores have them: key group (2 bytes), tag (8 bytes), both big-endian; for byte keys also the key.

    A slice of the keys is made into a list only when the slice is asked for. Making the list of a whole batch at once
    takes twice as long, and its first keys have left the processor's cache by the time they are used.
    """

    def __init__(self, heads: npt.NDArray[Any], key_bytes: tuple[Integers, Bytes] | None) -> None:
        self._heads = heads
        self._key_bytes = key_bytes

    def __getitem__(self, piece: slice) -> list[bytes]:
        start, stop, _ = piece.indices(len(self._heads))
        heads: list[bytes] = self._heads[start:stop].tolist()
        if self._key_bytes is None:
            return heads
        offsets, data = self._key_bytes
        ends = offsets[start : stop + 1]
        stored = data[ends[0] : ends[-1]].tobytes()
        places = (ends - ends[0]).tolist()
        return [head + stored[begin:end] for head, (begin, end) in zip(heads, pairwise(places), strict=True)]


def next_capacity(capacity: int, part: int = 2) -> int:
    return capacity * 2 if capacity < GROW_BY_PART_FROM else capacity + capacity // part


def _load_max(capacity: int) -> float:
    return next((load for limit, load in LOADS_MAX if capacity <= limit), LOAD_MAX)


def _capacity_for(count: int, least: int = ENTRIES_LEAST) -> int:
    """The least capacity of the usual sequence, from `least` on, that takes `count` keys."""
    capacity = least
    while capacity * _load_max(capacity) < count:
        capacity = next_capacity(capacity)
    return capacity
