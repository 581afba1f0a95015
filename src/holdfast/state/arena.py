"""The arena of a table: the bytes of its values of variable width, in spaces that are written from begin to end.

    append ──► the newest space ──► full: another space
    copies of rows (undo, captures, changes that wait) hold the spaces that their handles name
    most bytes belong to no row: the values that rows have in the oldest space are appended anew, and the space goes

Bytes are written once, so an old row is saved by its handles (`arena_kernels`), and goes back without a copy. A space
is freed as a whole, once neither the table nor a copy of a row holds it. Between batches, the bytes that belong to no
row of the table are at most as many as those that belong to rows, plus `GARBAGE_MIN`. Does not own the handles.
"""

import weakref
from collections.abc import Callable

import numpy as np

from holdfast.state import arena_kernels
from holdfast.state.arena_kernels import LONG, Handles
from holdfast.state.physical import Bools, Bytes, Integers

GARBAGE_MIN = 1 << 18
"""Bytes that belong to no row, up to which an arena is left as it is. A higher value copies small tables less often."""
SPACE_LEAST, SPACE_SHARE = 1 << 12, 8
"""Bytes of the smallest space, and a divisor: a larger space has 1/8 of the bytes of all rows, unless an append needs
more. A higher divisor makes more and smaller spaces: undo then keeps fewer needless bytes, and a copy of rows holds
more spaces.
"""


class Space:
    """Bytes that are written from begin to end and never moved."""

    def __init__(self, size: int) -> None:
        self.used_bytes = 0
        self._bytes: Bytes = np.empty(size, np.uint8)
        self.begin = self._bytes.ctypes.data
        self.stop = self.begin + size
        """Addresses."""

    def room(self, length: int) -> int | None:
        """Return the address of `length` unused bytes, which count as used from now on; None if there are too few."""
        at = self.begin + self.used_bytes
        if at + length > self.stop:
            return None
        self.used_bytes += length
        return at


class Arena:
    """The bytes of a table's values. The columns maintain `live_bytes`, the bytes of the values that rows have."""

    def __init__(self) -> None:
        self.live_bytes = 0
        self._ordered: list[Space] = []
        self.spaces: frozenset[Space] = frozenset()
        """All spaces that handles of the table's rows name; in order, the oldest first."""
        self._all: tuple[weakref.ref[Space], ...] = ()
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
        if end - begin >= LONG and arena_kernels.long_count(np.diff(offsets)):
            return self.append_spans(offsets[:-1], np.diff(offsets) * valid, data)
        at = self._room(end - begin)
        arena_kernels.copy_in(data, begin, end, at)
        handles: Handles = arena_kernels.handles_of(offsets, valid, at)
        return handles

    def append_spans(self, begins: Integers, lengths: Integers, data: Bytes) -> Handles:
        """`append` for values that lie anywhere in `data`; nulls have no length."""
        at = self._room(int(lengths.sum()) + 8 * int(arena_kernels.long_count(lengths)))
        handles: Handles = arena_kernels.append_spans(begins, lengths, data, at)
        return handles

    def hold(self, spaces: "frozenset[Space] | set[Space]") -> None:
        """Keep these spaces too: rows are about to get handles into them."""
        if not spaces <= self.spaces:
            self._ordered[:0] = spaces - self.spaces
            self.spaces |= spaces

    def compact(self, columns: Callable[[], list[Handles]]) -> None:
        """Free the oldest spaces while most bytes belong to no row. Called between batches; `columns` returns all
        handles."""
        used = sum(space.used_bytes for space in self._ordered)
        for space in list(self._ordered):
            if used <= 2 * self.live_bytes + GARBAGE_MIN:
                return
            used += self._clean(space, columns()) - space.used_bytes

    def _clean(self, space: Space, columns: list[Handles]) -> int:
        """Free a space, after appending again the values that rows have in it; return the bytes of these values."""
        self._ordered.remove(space)
        moved = 0
        for handles in columns:
            length = int(arena_kernels.stored_bytes(handles, space.begin, space.stop))
            if length:
                arena_kernels.move(handles, space.begin, space.stop, self._room(length))
                moved += length
        self.spaces -= {space}
        return moved

    def _room(self, length: int) -> int:
        """The address of `length` unused bytes of the newest space."""
        at = self._ordered[-1].room(length) if self._ordered else None
        if at is not None:
            return at
        space = Space(max(length, SPACE_LEAST, self.live_bytes // SPACE_SHARE))
        self._ordered.append(space)
        self.spaces |= {space}
        self._all = (*(each for each in self._all if each() is not None), weakref.ref(space))
        at = space.room(length)
        assert at is not None
        return at
