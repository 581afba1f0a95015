"""Exact least-recently-used order of a table's slots: when each was used last, and a log of uses once rows leave.

    last_use[slot]   the number of the slot's last use, from 1; 0: it is not in the order
    log[n - 1]       the slot of use n; before `oldest` there is none that is in the order

Until a row has to leave, a touch is a single store. Then the log begins, with all slots in order, and a touch appends
to it; a use that is no longer the slot's last is skipped when the log reaches it, so the order is exact. A full log is
rewritten without these uses, or ends if no row has left since the last rewriting. There is no linked list, and slots
are sorted only when a log begins. Every row of a look-up touches its slot, in row order. Does not own which slots are
in use.
"""

from typing import Any

import numpy as np

from holdfast.state import kernels
from holdfast.state.compiled import kernel, prefetch
from holdfast.state.growing import enlarge
from holdfast.state.physical import Integers, Slots

_AHEAD = 32
"""Number of uses between the use being processed and the use being prefetched: a base store empties the processor's
caches between batches. A higher value fetches earlier, and fills more of the cache."""
LOG_SHARE = 4
"""The log has room for 4 uses of each slot, on average. A higher value makes rewriting rarer."""


class Recency:
    """The order. Slots at or above the capacity must be announced by `grow` first."""

    def __init__(self, capacity: int) -> None:
        self._last_use: Integers = np.zeros(capacity, np.int64)
        self._uses = 0
        self._log: Slots | None = None
        self._oldest = 0

    @property
    def memory_bytes(self) -> int:
        return self._last_use.nbytes + (0 if self._log is None else self._log.nbytes)

    def grow(self, capacity: int) -> None:
        enlarge(self, "_last_use", capacity)

    def touch(self, slots: Slots, *, distinct: bool = False) -> None:
        """Make each slot in turn the newest; `distinct` promises that no slot comes twice."""
        if self._log is not None and self._uses + len(slots) > len(self._log):
            self._make_room(len(slots))
        if self._log is None:
            _touch(slots, self._last_use, self._uses)
            self._uses += len(slots)
        else:
            self._uses = _touch_logged(slots, distinct, self._last_use, self._log, self._uses)

    def remove(self, slots: Slots) -> None:
        kernels.fill(self._last_use, slots, 0)

    def pop_oldest(self, count: int) -> Slots:
        """Take out up to `count` slots, the oldest first."""
        log = self._begin_log() if self._log is None else self._log
        popped = np.empty(count, np.int32)
        taken, self._oldest = _pop(log, self._oldest, self._uses, self._last_use, popped)
        return popped[:taken]

    def renumber(self, live: Slots, capacity: int) -> None:
        """Renumber all slots in the order: the i-th of `live` becomes slot i."""
        self._last_use = kernels.gather(self._last_use, live)
        self.grow(capacity)
        self._log = None

    def _begin_log(self) -> Slots:
        """Begin the log with all slots, in the order of their last uses, which are numbered anew."""
        slots = kernels.where(self._last_use != 0)
        slots = slots[kernels.argsort(kernels.gather(self._last_use, slots).view(np.uint64))]
        self._log = np.empty(LOG_SHARE * len(slots), np.int32)
        self._log[: len(slots)] = slots
        self._last_use[slots] = np.arange(1, len(slots) + 1)
        self._oldest, self._uses = 0, len(slots)
        return self._log

    def _make_room(self, uses: int) -> None:
        """Make room in the log for so many uses, or end the log."""
        assert self._log is not None
        if self._oldest == 0:
            self._log = None
            return
        self._uses = _rewrite(self._log, self._oldest, self._uses, self._last_use)
        self._oldest = 0
        if len(self._log) < LOG_SHARE * self._uses + uses:
            enlarge(self, "_log", LOG_SHARE * self._uses + uses)


@kernel
def _touch(slots: Slots, last_use: Integers, uses: int) -> None:
    for i in range(len(slots)):
        last_use[np.uint64(slots[i])] = uses + i + 1


@kernel
def _touch_logged(slots: Slots, distinct: bool, last_use: Integers, log: Slots, uses: int) -> Any:
    """Log the last use of each slot among `slots`. Returns how many uses there are now."""
    if not distinct:
        for i in range(len(slots)):
            last_use[np.uint64(slots[i])] = -i - 1
    last_use_at = last_use.ctypes.data
    for i in range(len(slots)):
        prefetch(last_use_at + np.uint64(slots[min(i + _AHEAD, len(slots) - 1)]) * np.uint64(8))
        slot = np.uint64(slots[i])
        if distinct or last_use[slot] == -i - 1:
            log[uses] = slots[i]
            uses += 1
            last_use[slot] = uses
    return uses


@kernel
def _pop(log: Slots, oldest: int, uses: int, last_use: Integers, popped: Slots) -> Any:
    """Move on from `oldest` until `popped` is full; return how many slots it has, and the place to go on from."""
    at, taken = oldest, 0
    last_use_at = last_use.ctypes.data
    while at < uses and taken < len(popped):
        prefetch(last_use_at + np.uint64(log[min(at + _AHEAD, uses - 1)]) * np.uint64(8))
        slot = np.uint64(log[at])
        at += 1
        if last_use[slot] == at:
            popped[taken] = log[at - 1]
            last_use[slot] = 0
            taken += 1
    return taken, at


@kernel
def _rewrite(log: Slots, oldest: int, uses: int, last_use: Integers) -> Any:
    """Leave out uses that are not the last of their slots, and number the others anew; return the number of others."""
    kept = 0
    for at in range(oldest, uses):
        slot = np.uint64(log[at])
        if last_use[slot] == at + 1:
            log[kept] = log[at]
            kept += 1
            last_use[slot] = kept
    return kept
