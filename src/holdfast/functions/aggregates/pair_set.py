"""Distinct pairs of a group and a value, by compiled loops: the sets of many keys at once.

Pairs are divided by group first. Then the hash table of a group at a time is as large as the group, so that most fit
into the processor's caches.
"""

from typing import Any

import numpy as np

from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.grouping import order_of
from holdfast.state.compiled import kernel
from holdfast.state.hashing import mix
from holdfast.state.physical import Slots

WAITING_LEAST = 1 << 16
"""Pairs that wait at least until repeats are taken out. A higher value takes them out less often, and takes more
memory."""


class PairSet:
    """Distinct pairs; those of a group stay in the order in which they came first.

    Pairs wait, repeats among them, until as many wait as are known.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[IntArray, IntArray]] = []
        """The known pairs, and pairs that were added since."""
        self._known = self._added = 0

    @property
    def memory_bytes(self) -> int:
        return sum(groups.nbytes + values.nbytes for groups, values in self._waiting)

    def add(self, groups: IntArray | Slots, values: IntArray) -> None:
        """Add pairs; pairs that are known already change nothing."""
        self._waiting.append((groups.astype(np.int64), np.array(values)))
        self._added += len(groups)
        if self._added > max(WAITING_LEAST, self._known):
            self._settle()

    def by_group(self, places: IntArray, count: int) -> tuple[IntArray, IntArray]:
        """Return the values by group, in order of arrival: the groups' offsets with the end; the values.

        `places` has the number of each group, all below `count`.
        """
        groups, values = self._settle()
        order, starts = order_of(places[groups], count)
        return starts, values[order]

    def _settle(self) -> tuple[IntArray, IntArray]:
        groups = np.concatenate([np.empty(0, np.int64), *(groups for groups, _ in self._waiting)])
        values = np.concatenate([np.empty(0, np.int64), *(values for _, values in self._waiting)])
        starts, values = distinct_of_groups(groups, values, int(groups.max(initial=-1)) + 1)
        groups = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        self._waiting, self._known, self._added = [(groups, values)], len(values), 0
        return groups, values


@kernel
def distinct_of_groups(groups: Any, values: Any, count: int) -> tuple[IntArray, IntArray]:
    """Return the distinct values of each group, below `count`, in order of arrival: the groups' offsets with the end;
    the values."""
    starts = np.zeros(count + 1, np.int64)
    for group in groups:
        starts[group + 1] += 1
    most = 0
    for group in range(count):
        most = max(most, starts[group + 1])
        starts[group + 1] += starts[group]
    cursors, found = starts[:count].copy(), np.empty(len(values), np.int64)
    for i in range(len(groups)):
        found[cursors[groups[i]]] = values[i]
        cursors[groups[i]] += 1
    room = 2
    while room < 2 * most:
        room *= 2
    entries, kept = np.empty(room, np.int64), 0
    for group in range(count):
        begin, stop, room = starts[group], starts[group + 1], 2
        while room < 2 * (stop - begin):
            room *= 2
        entries[:room] = 0
        starts[group] = kept
        for i in range(begin, stop):
            value = found[i]
            place = np.int64(mix(value) & np.uint64(room - 1))
            while entries[place] != 0 and found[entries[place] - 1] != value:
                place = (place + 1) & (room - 1)
            if entries[place] == 0:
                found[kept] = value
                kept += 1
                entries[place] = kept
    starts[count] = kept
    return starts, found[:kept]
