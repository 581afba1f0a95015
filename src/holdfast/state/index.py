"""The kinds of index: from keys to slots (row numbers of a table).

    IntegerIndex     keys of integer kind: holds the keys themselves
    FixedIndex       keys whose columns all have a fixed width: the key of a slot is in an arena, at the slot's place
    VariableIndex    other keys: the keys are in an arena, end to end, and the slot has the key's place and length

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
from holdfast.state.index_kernels import ARENA_LIVE, ARENA_USED
from holdfast.state.key_index import SLOTS_LEAST, KeyIndex, next_capacity
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
from holdfast.state.physical import Bytes, Integers, Slots

ARENA_LEAST = 1024
_NO_EXTENTS = np.empty((0, 2), np.int64)


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
        self._stride = int(self._widths.sum()) + len(self._widths) * (len(self._widths) > 1)
        enlarge(self, "_arena", len(self._tags) * self._stride)

    def _strings_of(self, keys: Keys) -> Any:
        return keys.byte_offsets, keys.bytes, _NO_EXTENTS, self._arena, self._stride

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
        if len(self._widths) == 1:
            offsets = np.arange(len(slots) + 1, dtype=np.int64) * self._stride
        else:
            offsets = index_kernels.gather_fixed_lengths(self._arena, self._stride, self._widths, slots)
        return offsets, index_kernels.gather_bytes(self._arena, slots.astype(np.int64) * self._stride, offsets)


class VariableIndex(BytesIndex):
    """The index for other keys of byte kind. Bytes of removed keys stay in the arena until more than half of the arena
    belongs to removed keys."""

    def __init__(self, key_schema: pa.Schema) -> None:
        super().__init__(key_schema)
        self._extents = np.zeros((SLOTS_LEAST, 2), np.int64)
        self._arena = np.empty(ARENA_LEAST, np.uint8)

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self._extents.nbytes

    def remove(self, slots: Slots) -> None:
        super().remove(slots)
        self._control[ARENA_LIVE] -= self._extents[slots, 1].sum()

    def _strings_of(self, keys: Keys) -> Any:
        return keys.byte_offsets, keys.bytes, self._extents, self._arena, 0

    def _make_room(self, keys: Keys, row: int, new: float) -> None:
        super()._make_room(keys, row, new)
        length = int(keys.byte_offsets[row + 1] - keys.byte_offsets[row])
        if self._control[ARENA_USED] + length > len(self._arena):
            self._make_arena_room(length)

    def _make_arena_room(self, length: int) -> None:
        """Make room for `length` bytes: from removed keys if they take more than half, else by growing."""
        if self._control[ARENA_LIVE] * 2 < self._control[ARENA_USED]:
            metas = np.concatenate([self._entries[1::2], self._old[1::2]])
            in_use = ((metas[metas != 0] & 0xFFFFFFFF) - 1).astype(np.int32)
            self._place(in_use, *self._key_bytes(in_use))
        wanted = int(self._control[ARENA_USED]) + length
        if wanted > len(self._arena):
            enlarge(self, "_arena", max(wanted, next_capacity(len(self._arena))))

    def _grow_slots(self, capacity: int) -> None:
        super()._grow_slots(capacity)
        enlarge(self, "_extents", capacity)

    def _keep(self, live: Slots) -> None:
        offsets, data = self._key_bytes(live)
        super()._keep(live)
        self._extents = np.zeros((len(self._tags), 2), np.int64)
        self._place(np.arange(len(live), dtype=np.int32), offsets, data)

    def _key_bytes(self, slots: Slots) -> tuple[Integers, Bytes]:
        begins, offsets = index_kernels.gather_extents(self._extents, slots)
        return offsets, index_kernels.gather_bytes(self._arena, begins, offsets)

    def _place(self, slots: Slots, offsets: Integers, data: Bytes) -> None:
        self._extents[slots, 0] = offsets[:-1]
        self._extents[slots, 1] = np.diff(offsets)
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
