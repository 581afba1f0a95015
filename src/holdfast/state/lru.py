"""Exact least-recently-used order of a table's slots: a doubly linked list in one integer column.

    links[2n], links[2n + 1]   of node n = slot + 1: the node used after it, the node used before it
    node 0                     the ring's own: links[1] is the newest, links[0] the oldest
    -1                         a slot that is not in the list

Every row of a look-up touches its slot, in row order. Does not own which slots are in use.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.state.compiled import kernel, prefetch
from holdfast.state.physical import Integers

Links = npt.NDArray[np.int32]

AHEAD = 24
"""Rows ahead of the current one whose links are fetched; their neighbours half as many ahead."""


class Recency:
    """The list. Slots at or above the capacity must be announced by `grow` first."""

    def __init__(self, capacity: int) -> None:
        self._links: Links = np.zeros(2, np.int32)
        self.grow(capacity)

    @property
    def memory_bytes(self) -> int:
        return self._links.nbytes

    def grow(self, capacity: int) -> None:
        links = np.full(2 * (capacity + 1), -1, np.int32)
        links[: len(self._links)] = self._links
        self._links = links

    def touch(self, slots: Integers) -> None:
        """Each slot in turn becomes the newest."""
        _touch(slots, self._links)

    def remove(self, slots: Integers) -> None:
        _remove(slots, self._links)

    def pop_oldest(self, count: int) -> Integers:
        """Takes out up to `count` slots, the oldest first."""
        popped: Integers = _pop_oldest(count, self._links)
        return popped

    def renumber(self, live: Integers, capacity: int) -> None:
        """The i-th of `live`, which are all slots in the list, becomes slot i."""
        number = np.zeros(len(self._links) // 2, np.int64)
        number[live] = np.arange(len(live))
        order = self.pop_oldest(len(live))
        self._links = np.zeros(2, np.int32)
        self.grow(capacity)
        self.touch(number[order])


@kernel
def _touch(slots: Integers, links: Links) -> None:
    base = links.ctypes.data
    count = len(slots)
    for i in range(count):
        if i + AHEAD < count:
            prefetch(base + np.uint64(8) * np.uint64(slots[i + AHEAD] + 1))
            near = np.uint64(2) * np.uint64(slots[i + AHEAD // 2] + 1)
            if links[near] > 0:
                prefetch(base + np.uint64(8) * np.uint64(links[near]))
                prefetch(base + np.uint64(8) * np.uint64(links[near + np.uint64(1)]))
        node = np.uint64(slots[i] + 1)
        newest = np.uint64(links[1])
        if newest == node:
            continue
        at = np.uint64(2) * node
        if links[at] >= 0:
            _unlink(at, links)
        links[at] = 0
        links[at + np.uint64(1)] = newest
        links[np.uint64(2) * newest] = node
        links[1] = node


@kernel
def _unlink(at: Any, links: Links) -> None:
    after, before = np.uint64(links[at]), np.uint64(links[at + np.uint64(1)])
    links[np.uint64(2) * after + np.uint64(1)] = before
    links[np.uint64(2) * before] = after


@kernel
def _remove(slots: Integers, links: Links) -> None:
    for slot in slots:
        at = np.uint64(2) * np.uint64(slot + 1)
        if links[at] >= 0:
            _unlink(at, links)
            links[at] = -1
            links[at + np.uint64(1)] = -1


@kernel
def _pop_oldest(count: int, links: Links) -> Any:
    popped = np.empty(count, np.int64)
    taken = 0
    node = links[0]
    while taken < count and node != 0:
        popped[taken] = node - 1
        taken += 1
        newer = links[2 * node]
        links[2 * node] = -1
        links[2 * node + 1] = -1
        node = newer
    links[0] = node
    links[2 * node + 1] = 0
    return popped[:taken]
