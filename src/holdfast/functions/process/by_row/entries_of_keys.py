"""The entries of a key's list or map in a batch, as Python values, and the memory that they take.

Loaded entries count with the average of their arrays, so that no object is measured; written entries are measured when
the memory is asked for.
"""

import sys
from itertools import chain, islice
from typing import Any

from holdfast.functions.process.by_row.cells import CELL_BYTES

ABSENT: Any = object()
"""Marks an entry that does not exist, since None is a possible value."""


class MapOfKey:
    """A key's map in this batch: the entries that were read or written, the keys of those written in order of their
    first writes, and a flag that is True if these are all entries of the map."""

    __slots__ = ("_measured", "_measured_bytes", "complete", "found", "size", "written")

    def __init__(self, size: int) -> None:
        self.size = size
        self.found: dict[Any, Any] = {}
        self.written: dict[Any, None] = {}
        self.complete = size == 0
        self._measured = self._measured_bytes = 0

    def load(self, entries: dict[Any, Any], entry_bytes: int) -> None:
        """Add the stored entries, all of them, of so many bytes each. Those that the batch has found already stay."""
        self.found = entries | self.found if self.found else entries
        self.complete = True
        self._measured_bytes += entry_bytes * len(entries)
        self._measured = len(self.found)

    def held_bytes(self) -> int:
        """Return the approximate memory of the entries; each written entry is measured once."""
        count = len(self.found) - self._measured
        if count > 0:
            new = islice(reversed(self.found.items()), count)
            self._measured_bytes += sum(map(sys.getsizeof, chain.from_iterable(new))) + CELL_BYTES * count
            self._measured += count
        return self._measured_bytes


class ListOfKey:
    """A key's list in this batch: the list that replaces the stored list, if any, and the added elements."""

    __slots__ = ("_measured", "_measured_bytes", "_stored_bytes", "added", "replaced", "stored")

    def __init__(self, size: int) -> None:
        self.stored: list[Any] | None = None if size else []
        self.replaced: list[Any] | None = None
        self.added: list[Any] = []
        self._stored_bytes = self._measured = self._measured_bytes = 0

    def load(self, elements: list[Any], element_bytes: int) -> None:
        """Take in the stored elements, of so many bytes each."""
        self.stored = elements
        self._stored_bytes = element_bytes * len(elements)

    def replace(self, elements: list[Any]) -> None:
        """Replace all elements by others."""
        self.replaced, self.added = elements, []
        self._measured = self._measured_bytes = 0

    def held_bytes(self) -> int:
        """Return the approximate memory of the elements: each added element is measured once, and all elements
        of a list that replaces the stored list count like its first."""
        count = len(self.added) - self._measured
        if count > 0:
            self._measured_bytes += sum(map(sys.getsizeof, islice(self.added, self._measured, None)))
            self._measured_bytes += CELL_BYTES * count
            self._measured += count
        held = self._stored_bytes + self._measured_bytes
        if self.replaced:
            held += len(self.replaced) * (CELL_BYTES + sys.getsizeof(self.replaced[0]))
        return held

    @property
    def complete(self) -> bool:
        return self.stored is not None
