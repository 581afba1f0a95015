"""The arena of a table: the bytes of its values of variable width, in spaces that only grow.

    append ──► the current space ──► full of bytes that no row has: `compact` copies the rest to a new space
    copies of rows (undo, captures, changes that wait) hold the spaces that their handles name

Bytes are written once, so an old row is saved by its handles (`arena_kernels`), and goes back without a copy. A space
is let go as a whole, when neither the table nor a copy of a row holds it. Between batches, bytes that no row of the
table has are at most as many as those that a row has, and `GARBAGE_MIN`. Does not own the handles.
"""

import weakref
from collections.abc import Callable

import numpy as np

from holdfast.state import arena_kernels
from holdfast.state.arena_kernels import LONG, Handles
from holdfast.state.physical import Bools, Bytes, Integers

GARBAGE_MIN = 1 << 18
"""Bytes that no row has, up to which an arena is left as it is. A higher value copies small tables less often."""
CHUNK_LEAST, CHUNK_MOST = 1 << 12, 1 << 24
"""Bytes of a space's first chunk, and of its largest, except for larger appends: a chunk has twice the bytes of the
chunk before. The rest of a chunk that an append does not fit in stays unused."""


class Space:
    """Chunks of bytes that are written from begin to end and never moved."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self._chunks: list[Bytes] = []
        self._at = self._stop = 0
        """The address of the first unused byte of the last chunk, and the end of the chunk."""

    def room(self, length: int) -> int:
        """The address of `length` unused bytes, which count as used from now on."""
        if self._at + length > self._stop:
            usual = min(CHUNK_MOST, 2 * len(self._chunks[-1])) if self._chunks else CHUNK_LEAST
            chunk = np.empty(max(length, usual), np.uint8)
            self._chunks.append(chunk)
            self._at = chunk.ctypes.data
            self._stop = self._at + len(chunk)
        at = self._at
        self._at += length
        self.used_bytes += length
        return at


class Arena:
    """The bytes of a table's values. `live_bytes` is kept by the columns: bytes of values that rows have."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self._space = Space()
        self.spaces = frozenset([self._space])
        """All spaces that handles of the table's rows name."""
        self._all: tuple[weakref.ref[Space], ...] = (weakref.ref(self._space),)
        """Replaced as a whole, since other threads read it."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of all spaces, also of those that only copies of rows hold."""
        there = (each() for each in self._all)
        return sum(space.used_bytes for space in there if space is not None)

    def unused_bytes(self, undo_bytes: int) -> int:
        """Bytes that no row has, beyond those that the undo of the table counts."""
        return max(0, self.memory_bytes - self.live_bytes - undo_bytes)

    def append(self, offsets: Integers, data: Bytes, valid: Bools) -> Handles:
        """Copy values into the arena; return their handles."""
        if not len(valid):
            return np.zeros(0, np.uint64)
        begin, end = int(offsets[0]), int(offsets[-1])
        long_count = arena_kernels.long_count(offsets) if end - begin >= LONG else 0
        at = self._space.room(end - begin + 8 * long_count)
        if long_count:
            handles: Handles = arena_kernels.append(offsets, data, valid, at)
        else:
            arena_kernels.copy_in(data, begin, end, at)
            handles = arena_kernels.handles_of(offsets, valid, at)
        return handles

    def hold(self, spaces: "frozenset[Space] | set[Space]") -> None:
        """Keep these spaces too: rows are about to get handles into them."""
        if not spaces <= self.spaces:
            self.spaces |= spaces

    def compact(self, columns: Callable[[], list[Handles]]) -> None:
        """Copy all values to a new space if most bytes belong to no row. Between batches; `columns` are all handles."""
        used = sum(space.used_bytes for space in self.spaces)
        if used <= 2 * self.live_bytes + GARBAGE_MIN:
            return
        space = Space()
        for handles in columns():
            arena_kernels.move(handles, space.room(arena_kernels.stored_bytes(handles)))
        self._space, self.spaces = space, frozenset([space])
        self._all = (*(each for each in self._all if each() is not None), weakref.ref(space))
