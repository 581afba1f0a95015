"""Exact least-recently-used order of a table's slots, kept lazily: when each was used last, in one integer column.

    last_use[slot]   the number of the touch that used the slot last; 0: it is not in the order
    oldest           the slots used longest ago when they were last looked for, in order, each with its last use then

A touch is one store, nothing is linked. Only when rows must leave, a share of all slots is put into order; of those a
slot whose last use is another one by now is passed over when its turn comes, and all others are newer than these, so
the order is exact. Every row of a look-up touches its slot, in row order. Does not own which slots are in use.
"""

from typing import Any

import numpy as np

from holdfast.state import kernels
from holdfast.state.compiled import kernel
from holdfast.state.growing import enlarge
from holdfast.state.physical import Integers

OLDEST_SHARE = 8
"""One in this many slots is put into order at a time: each leaving row pays for looking at about so many."""
BUCKETS = 1024


class Recency:
    """The order. Slots at or above the capacity must be announced by `grow` first."""

    def __init__(self, capacity: int) -> None:
        self._last_use: Integers = np.zeros(capacity, np.int64)
        self._touches = 0
        self._oldest = self._oldest_use = np.empty(0, np.int64)
        self._next = 0

    @property
    def memory_bytes(self) -> int:
        return self._last_use.nbytes + self._oldest.nbytes + self._oldest_use.nbytes

    def grow(self, capacity: int) -> None:
        enlarge(self, "_last_use", capacity)

    def touch(self, slots: Integers) -> None:
        """Each slot in turn becomes the newest."""
        _touch(slots, self._last_use, self._touches)
        self._touches += len(slots)

    def remove(self, slots: Integers) -> None:
        kernels.fill(self._last_use, slots, 0)

    def pop_oldest(self, count: int) -> Integers:
        """Takes out up to `count` slots, the oldest first."""
        popped = np.empty(count, np.int64)
        taken = 0
        while True:
            taken, self._next = _pop(self._oldest, self._oldest_use, self._next, self._last_use, popped, taken)
            if taken == count or not self._look_for_oldest(count - taken):
                return popped[:taken]

    def renumber(self, live: Integers, capacity: int) -> None:
        """The i-th of `live`, which are all slots in the order, becomes slot i."""
        self._last_use = kernels.gather(self._last_use, live)
        self.grow(capacity)
        self._oldest = self._oldest_use = np.empty(0, np.int64)
        self._next = 0

    def _look_for_oldest(self, count: int) -> bool:
        """Put at least `count` of the slots into order, if there are so many; whether there are any."""
        slots = _oldest(self._last_use, self._touches, count, OLDEST_SHARE)
        use = kernels.gather(self._last_use, slots)
        order = kernels.argsort(use.view(np.uint64))
        self._oldest, self._oldest_use, self._next = slots[order], use[order], 0
        return len(slots) > 0


@kernel
def _touch(slots: Integers, last_use: Integers, touches: int) -> None:
    for i in range(len(slots)):
        last_use[np.uint64(slots[i])] = touches + i + 1


@kernel
def _pop(oldest: Integers, use: Integers, start: int, last_use: Integers, popped: Integers, taken: int) -> Any:
    """Move on through `oldest` until `popped` is full; how many are in it, and where to go on."""
    at = start
    while at < len(oldest) and taken < len(popped):
        slot = np.uint64(oldest[at])
        if last_use[slot] == use[at]:
            popped[taken] = oldest[at]
            last_use[slot] = 0
            taken += 1
        at += 1
    return taken, at


@kernel
def _oldest(last_use: Integers, touches: int, count: int, share: int) -> Any:
    """The slots of the oldest uses, in any order: `count`, or one in `share` of all if that is more, or some more."""
    first = touches
    for use in last_use:
        first = min(first, use if use != 0 else touches)
    shift = np.uint64(0)
    while np.uint64(touches - first) >> shift >= BUCKETS:
        shift += np.uint64(1)
    uses = np.zeros(BUCKETS, np.int64)
    for use in last_use:
        if use != 0:
            uses[np.uint64(use - first) >> shift] += 1
    wanted = max(count, uses.sum() // share)
    found, bucket = 0, 0
    while bucket < BUCKETS and found < wanted:
        found += uses[bucket]
        bucket += 1
    bound = first + (bucket << np.int64(shift))
    slots = np.empty(found + 1, np.int64)
    at = 0
    for slot in range(len(last_use)):
        slots[at] = slot  # without a branch, of which one in `share` would be mispredicted
        at += last_use[slot] != 0 and last_use[slot] < bound
    return slots[:found]
