"""Distinct pairs of a group and a value, found by a compiled hash table: the sets of many keys at once."""

from typing import Any

import numpy as np

from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.grouping import order_of
from holdfast.state.compiled import kernel
from holdfast.state.hashing import mix
from holdfast.state.physical import Slots

PAIRS_LEAST = 64
"""Number of pairs for which a new set has room."""


class PairSet:
    """Pairs in the order in which each came first."""

    def __init__(self) -> None:
        self._groups, self._values = np.empty((2, PAIRS_LEAST), np.int64)
        self._entries = np.zeros(2 * PAIRS_LEAST, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        return self._groups.nbytes + self._values.nbytes + self._entries.nbytes

    @property
    def groups(self) -> IntArray:
        """The group of each pair."""
        return self._groups[: self._count]

    @property
    def values(self) -> IntArray:
        """The value of each pair."""
        return self._values[: self._count]

    def add(self, groups: IntArray | Slots, values: IntArray) -> None:
        """Add pairs; pairs that are known already change nothing."""
        row = 0
        while row < len(groups):
            row, self._count = add_pairs(groups, values, row, self._entries, self._groups, self._values, self._count)
            if row < len(groups):
                self._grow()

    def by_group(self, places: IntArray, count: int) -> tuple[IntArray, IntArray]:
        """Return the positions at which each group's values begin, with the end; and the values by group, in order of
        arrival.

        `places` has the number of each group, all below `count`.
        """
        order, starts = order_of(places[self.groups], count)
        return starts, self.values[order]

    def _grow(self) -> None:
        room = 2 * len(self._groups)
        self._groups, self._values = np.resize(self._groups, room), np.resize(self._values, room)
        self._entries = np.zeros(2 * room, np.int32)
        enter_pairs(self._entries, self.groups, self.values)


@kernel
def _place(group: Any, value: Any, entries: Any, groups: Any, values: Any) -> Any:
    """Return the place of a pair among the entries, or the free place where the pair belongs."""
    mask = entries.shape[0] - 1
    place = np.int64(mix(np.int64(mix(group)) ^ value) & np.uint64(mask))
    while entries[place] != 0:
        known = entries[place] - 1
        if values[known] == value and groups[known] == group:
            break
        place = (place + 1) & mask
    return place


@kernel
def add_pairs(
    of_rows: Any, values_of_rows: Any, row: Any, entries: Any, groups: Any, values: Any, count: Any
) -> tuple[int, int]:
    """Add the pairs of rows from `row` on; returns the row where room ran out, or their number, and the count."""
    while row < of_rows.shape[0]:
        group, value = np.int64(of_rows[row]), values_of_rows[row]
        place = _place(group, value, entries, groups, values)
        if entries[place] == 0:
            if count == groups.shape[0]:
                return row, count
            groups[count] = group
            values[count] = value
            count += 1
            entries[place] = count
        row += 1
    return row, count


@kernel
def enter_pairs(entries: Any, groups: Any, values: Any) -> None:
    """Enter distinct pairs into entries that are empty."""
    for i in range(groups.shape[0]):
        entries[_place(groups[i], values[i], entries, groups, values)] = i + 1
