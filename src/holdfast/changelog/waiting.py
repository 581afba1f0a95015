"""An estimate of the changes that wait in a table until the log collects them, and the rule for collecting them early.

    batch ──add──► newest: left to cuts that lag ──► older ──past a bound──► collected ahead of the next cut, together
                      └──past a bound, with rows that are mostly new──► collected ahead, each batch by itself

All changes that wait are stored at the cut. A row that many batches change is then stored once. But rows that are
stored only once anyway are better stored ahead, and a cut with more bytes than may be in flight would make batches
wait. Changes that are collected together become a single change set, inside of which no cut can end. So the newest
batches are left alone, or collected each by itself: a cut is ordered when its batch is committed, and comes while few
further batches are. Pure.
"""

import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from holdfast.ids import NO_BATCH, BatchNumber

LAG_BATCHES, LAG_BATCHES_MIN = 8, 3
"""The newest batches, which are left to cuts: at most and at least. A higher value lets a cut lag further, and leaves
more to it."""
LAG_DIVISOR = 4
"""Divisor of the bound for the bytes of these batches: where they are large, fewer are left."""
NEW_SHARE = 0.9
"""Share of new rows among the rows that batches change, from which rows count as stored only once anyway. A lower value
collects more tables early, and stores more rows more than once."""
ROW_BYTES = 256.0
"""Bytes of a row until rows were collected. A higher value collects earlier for the first time."""


class WaitingChanges(NamedTuple):
    """Numbers of the rows of a change set that waits elsewhere: all rows, the rows that no earlier waiting change set
    has (maybe more), and the rows by which the table grew."""

    touched: int
    unseen: int
    new: int

    def plus(self, other: "WaitingChanges") -> "WaitingChanges":
        return WaitingChanges(self.touched + other.touched, self.unseen + other.unseen, self.new + other.new)


_NONE = WaitingChanges(0, 0, 0)


class UncollectedRows:
    """The numbers of rows that wait. Not thread-safe."""

    def __init__(self) -> None:
        self._row_bytes = ROW_BYTES
        self._newest: deque[tuple[BatchNumber, WaitingChanges]] = deque()
        self._older = _NONE
        self._older_to = NO_BATCH
        """The last batch of the older rows; `NO_BATCH` if there are none."""

    @property
    def size_bytes(self) -> int:
        """About the bytes that a cut would have to store."""
        return int((self._older.unseen + self._newest_rows()) * self._row_bytes)

    def add(self, batch: BatchNumber, changes: tuple[int, int, int]) -> None:
        """Add the numbers of the rows that a batch left to wait."""
        self._newest.append((batch, WaitingChanges(*changes)))

    def due(self, new_bytes_max: int, bytes_max: int) -> list[BatchNumber]:
        """Return the batches up to each of which all changes are to be collected now, in order; mostly none.

        `new_bytes_max` bounds the bytes of rows that are mostly new, `bytes_max` those of all rows.
        """
        mostly_new = self._mostly_new()
        if mostly_new:
            bytes_max = min(bytes_max, new_bytes_max)
        rows_max = bytes_max / self._row_bytes
        while len(self._newest) > LAG_BATCHES or (
            len(self._newest) > LAG_BATCHES_MIN and self._newest_rows() > rows_max / LAG_DIVISOR
        ):
            self._older_to, changes = self._newest.popleft()
            self._older = self._older.plus(changes)
        each_by_itself = mostly_new and self._newest_rows() > rows_max
        if self._older.unseen <= rows_max and not each_by_itself:
            return []
        found = [] if self._older_to == NO_BATCH else [self._older_to]
        self._older, self._older_to = _NONE, NO_BATCH
        if each_by_itself:
            found += [batch for batch, _ in self._newest]
            self._newest.clear()
        return found

    def collected(self, rows: int, size_bytes: int) -> None:
        """Learn the size of a row from rows that were collected."""
        if rows:
            self._row_bytes = size_bytes / rows

    def taken(self, up_to_batch: BatchNumber) -> None:
        """Forget the batches up to that batch, since a cut takes them."""
        self._keep(lambda batch: batch > up_to_batch)

    def rewind(self, to_batch: BatchNumber) -> None:
        """Forget the batches after that batch, since they were undone."""
        self._keep(lambda batch: batch <= to_batch)

    def clear(self) -> None:
        """Forget all batches, at the end of the log."""
        self.taken(BatchNumber(sys.maxsize))

    def _newest_rows(self) -> int:
        return sum(changes.unseen for _, changes in self._newest)

    def _mostly_new(self) -> bool:
        touched = self._older.touched + sum(changes.touched for _, changes in self._newest)
        return self._older.new + sum(changes.new for _, changes in self._newest) >= NEW_SHARE * touched

    def _keep(self, which: Callable[[BatchNumber], bool]) -> None:
        self._newest = deque(each for each in self._newest if which(each[0]))
        if not which(self._older_to):
            self._older, self._older_to = _NONE, NO_BATCH
