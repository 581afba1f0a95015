"""The kinds of index: from keys to slots (row numbers of a table).

    IntegerIndex     keys of integer kind: holds the keys themselves
    FixedIndex       keys whose columns all have a fixed width: the key of a slot is in an arena, at the slot's place
    VariableIndex    other keys: the slot has a cell with the key, or with the place of a long key in an arena

`KeyIndex` has all that they share.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state import index_kernels, kernels
from holdfast.state.growing import enlarge
from holdfast.state.hashing import groups_of, groups_of_integers
from holdfast.state.index_kernels import ARENA_LIVE, ARENA_USED, CELL_WORDS, INLINE_MAX, KEY_LENGTHS
from holdfast.state.key_index import OFFSET_BYTES, SLOTS_LEAST, KeyIndex, next_capacity
from holdfast.state.keys import (
    Keys,
    decode_bytes,
    decode_integers,
    encode_columns,
    fixed_widths,
    group_columns,
    is_integer_kind,
    key_groups,
)
from holdfast.state.physical import Bytes, Integers, Slots, fixed_bytes_array

ARENA_LEAST = 1024
_NO_CELLS = np.empty((0, CELL_WORDS), np.int64)


class IntegerIndex(KeyIndex):
    """The index for keys of integer kind."""

    def keys(self, slots: Slots) -> Keys:
        return Keys(kernels.gather(self._tags, slots))

    def _key_bytes(self, slots: Slots) -> None:
        return None

    def _columns(self, slots: Slots, tags: Integers) -> list[object]:
        return decode_integers(tags, self.key_schema)

    def _groups(self, slots: Slots, tags: Integers, max_parallelism: int) -> npt.NDArray[np.int32]:
        return groups_of_integers(tags, max_parallelism)

    def _tags_of(self, keys: Keys) -> Integers:
        assert keys.values is not None
        return keys.values


class BytesIndex(KeyIndex):
    """The index for keys of byte kind: the part that does not depend on where their bytes are."""

    def __init__(self, key_schema: pa.Schema) -> None:
        super().__init__(key_schema)
        self._arena = np.empty(0, np.uint8)

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self._arena.nbytes

    def keys(self, slots: Slots) -> Keys:
        return Keys(None, *self._key_bytes(slots))

    @abstractmethod
    def _key_bytes(self, slots: Slots) -> tuple[Integers, Bytes]: ...

    def _columns(self, slots: Slots, tags: Integers) -> list[object]:
        return decode_bytes(*self._key_bytes(slots), self.key_schema)

    def _groups(self, slots: Slots, tags: Integers, max_parallelism: int) -> npt.NDArray[np.int32]:
        leading = group_columns(self.key_schema)
        if leading == len(self.key_schema):
            return groups_of(tags.view(np.uint64), max_parallelism)
        return key_groups(
            encode_columns(self._columns(slots, tags)[:leading], self.key_schema.names[:leading]), max_parallelism
        )

    def _tags_of(self, keys: Keys) -> Integers:
        return keys.hashes.view(np.int64)


class FixedIndex(BytesIndex):
    """The index for keys whose columns all have a fixed width: the key of a slot is in the arena at the slot's place.

    A key with nulls is shorter than others; the rest of its place is unused.
    """

    def __init__(self, key_schema: pa.Schema) -> None:
        super().__init__(key_schema)
        self._widths = np.array(fixed_widths(key_schema), np.int64)
        self._flag_bytes = int(len(self._widths) > 1)
        """Bytes before each value of a key: a flag tells whether it is there, if there are several values."""
        self._stride = int(self._widths.sum()) + len(self._widths) * self._flag_bytes
        self._has_nulls = False
        """True if a key with nulls was ever looked up."""
        enlarge(self, "_arena", len(self._tags) * self._stride)

    def lookup(self, keys: Keys, stamp: int, first: int = 0, inserts: bool = True) -> tuple[Slots, Slots, Slots]:
        self._has_nulls |= bool(keys.byte_offsets[-1] - keys.byte_offsets[0] < len(keys) * self._stride)
        return super().lookup(keys, stamp, first, inserts)

    def _strings_of(self, keys: Keys) -> Any:
        return keys.byte_offsets, keys.bytes, _NO_CELLS, self._arena, self._stride

    def _grow_slots(self, capacity: int) -> None:
        super()._grow_slots(capacity)
        enlarge(self, "_arena", capacity * self._stride)

    def _keep(self, live: Slots) -> None:
        super()._keep(live)
        kept = np.zeros(len(self._tags) * self._stride, np.uint8)
        before = self._arena.reshape(-1, self._stride)
        np.take(before, live, axis=0, out=kept.reshape(-1, self._stride)[: len(live)], mode="clip")
        self._arena = kept

    def _key_bytes(self, slots: Slots) -> tuple[Integers, Bytes]:
        if self._has_nulls:
            offsets = index_kernels.gather_fixed_lengths(self._arena, self._stride, self._widths, slots)
        else:
            offsets = np.arange(len(slots) + 1, dtype=np.int64) * self._stride
        return offsets, index_kernels.gather_bytes(self._arena, slots.astype(np.int64) * self._stride, offsets)

    def _columns(self, slots: Slots, tags: Integers) -> list[object]:
        if self._has_nulls:
            return super()._columns(slots, tags)
        ends = np.cumsum(self._widths + self._flag_bytes).tolist()
        columns = []
        for field, width, end in zip(self.key_schema, self._widths.tolist(), ends, strict=True):
            values = index_kernels.gather_field(self._arena, self._stride, end - width, width, slots)
            columns.append(fixed_bytes_array(values, None, field.type))
        return columns


class VariableIndex(BytesIndex):
    """The index for other keys of byte kind. A key of at most `INLINE_MAX` bytes is in the cell of its slot, so that a
    look-up misses the cache once for it: cells begin at multiples of their size, so that none lies in two cache lines.
    Bytes of removed long keys stay in the arena until more than half of the arena belongs to removed keys."""

    def __init__(self, key_schema: pa.Schema) -> None:
        super().__init__(key_schema)
        self._words = np.zeros(CELL_WORDS * (1 + SLOTS_LEAST), np.int64)
        """The cells, behind `_lead` words that are not used."""
        self._lead = self._aligned()
        self._arena = np.empty(ARENA_LEAST, np.uint8)

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self._words.nbytes

    @property
    def key_bytes(self) -> float:
        columns = len(self.key_schema)
        beside = OFFSET_BYTES if columns == 1 else -columns  # several values have their lengths and flags with them
        return int(self._control[KEY_LENGTHS]) / max(1, len(self)) + beside

    @property
    def _cells(self) -> Integers:
        """The cell of each slot; no reference may be kept, since the memory grows where it lies."""
        return self._words[self._lead :][: CELL_WORDS * len(self._tags)].reshape(-1, CELL_WORDS)

    def _aligned(self) -> int:
        """Return the words before the first multiple of a cell's size."""
        return -(self._words.ctypes.data // 8) % CELL_WORDS

    def remove(self, slots: Slots) -> None:
        super().remove(slots)
        lengths = self._cells[slots, 0]
        self._control[KEY_LENGTHS] -= lengths.sum()
        self._control[ARENA_LIVE] -= lengths[lengths > INLINE_MAX].sum()

    def _long(self, slots: Slots) -> Slots:
        """Return the slots whose keys are in the arena."""
        long: Slots = slots[self._cells[slots, 0] > INLINE_MAX]
        return long

    def _strings_of(self, keys: Keys) -> Any:
        return keys.byte_offsets, keys.bytes, self._cells, self._arena, 0

    def _make_room(self, keys: Keys, row: int, new: float, *, grows: bool) -> None:
        super()._make_room(keys, row, new, grows=grows)
        length = int(keys.byte_offsets[row + 1] - keys.byte_offsets[row])
        if length > INLINE_MAX and self._control[ARENA_USED] + length > len(self._arena):
            self._make_arena_room(length)

    def _make_arena_room(self, length: int) -> None:
        """Make room for `length` bytes: from removed keys if they take more than half, else by growing."""
        if self._control[ARENA_LIVE] * 2 < self._control[ARENA_USED]:
            metas = np.concatenate([self._entries[1::2], self._old[1::2]])
            long = self._long(((metas[metas != 0] & 0xFFFFFFFF) - 1).astype(np.int32))
            self._place(long, *self._key_bytes(long))
        wanted = int(self._control[ARENA_USED]) + length
        if wanted > len(self._arena):
            enlarge(self, "_arena", max(wanted, next_capacity(len(self._arena))))

    def _grow_slots(self, capacity: int) -> None:
        before = len(self._tags) * CELL_WORDS
        super()._grow_slots(capacity)
        enlarge(self, "_words", (1 + capacity) * CELL_WORDS)
        lead, self._lead = self._lead, self._aligned()
        if lead != self._lead:  # the memory moved to another place within a cell
            self._words[self._lead :][:before] = self._words[lead:][:before].copy()

    def _keep(self, live: Slots) -> None:
        offsets, data = self._key_bytes(self._long(live))
        kept = self._cells[live]
        super()._keep(live)
        self._words = np.zeros(CELL_WORDS * (1 + len(self._tags)), np.int64)
        self._lead = self._aligned()
        self._cells[: len(live)] = kept
        self._place(self._long(np.arange(len(live), dtype=np.int32)), offsets, data)

    def _key_bytes(self, slots: Slots) -> tuple[Integers, Bytes]:
        offsets, data = index_kernels.gather_keys(self._cells, self._arena, slots)
        return offsets, data

    def _place(self, long: Slots, offsets: Integers, data: Bytes) -> None:
        """Let the arena consist of these long keys."""
        self._cells[long, 1] = offsets[:-1]
        self._arena = data
        enlarge(self, "_arena", max(ARENA_LEAST, len(data)))
        self._control[[ARENA_USED, ARENA_LIVE]] = len(data)


def new_index(key_schema: pa.Schema) -> KeyIndex:
    """The index for keys of that schema."""
    if is_integer_kind(key_schema):
        return IntegerIndex(key_schema)
    return FixedIndex(key_schema) if fixed_widths(key_schema) else VariableIndex(key_schema)


def columns_of_stored(stored: Sequence[bytes], key_schema: pa.Schema) -> tuple[npt.NDArray[np.int32], list[object]]:
    """Key groups and key columns of keys in the form of `StoredKeys`."""
    size = kernels.STORED_HEAD.itemsize
    heads = np.frombuffer(b"".join([key[:size] for key in stored]), kernels.STORED_HEAD)
    groups = heads["group"].astype(np.int32)
    if is_integer_kind(key_schema):
        return groups, decode_integers(heads["tag"].astype(np.int64), key_schema)
    offsets = np.zeros(len(stored) + 1, np.int64)
    np.cumsum([len(key) - size for key in stored], out=offsets[1:])
    data = np.frombuffer(b"".join([key[size:] for key in stored]), np.uint8)
    return groups, decode_bytes(offsets, data, key_schema)
