"""Deleted rows that keep their slots, because changes that wait to be logged name rows by slot.

    commit of a deletion ──► blank, not present, still in the index ──► its changes are collected ──► out of the index
                                        └──► the key comes again: the same slot     └── or there are too many of them

If their slots went at once, each batch that deletes rows would have to read all waiting changes with their keys, and
the log would merge them by key later: that was half of the time of a join whose rows stay for a batch. Over a base
store, slots go at once. Does not own the rows.
"""

from collections.abc import Callable

import numpy as np

from holdfast.state import kernels
from holdfast.state.growing import enlarge
from holdfast.state.history import UndoHistory
from holdfast.state.physical import Bools, Slots
from holdfast.state.rows import Rows
from holdfast.state.unlogged import Unlogged

DELETED_LEAST = 1 << 12
"""Number of deleted rows up to which they keep their slots even if their changes were collected. A higher value takes
more memory for small tables, and looks for slots that may go less often."""
DELETED_BYTES_MAX = 128 * 1024 * 1024
"""Bound on the memory of deleted rows, above which waiting changes are read and all their slots go. A higher value
takes more memory where rows stay for less than the time between two checkpoints, and merges changes less often."""


class DeletedRows:
    """The deleted rows of a table, marked by slot. A row that came again keeps its mark until the next `remove`.

    `slots_go` is called before slots lose their keys. `keep`: whether slots stay at all.
    """

    def __init__(
        self, rows: Rows, history: UndoHistory, unlogged: Unlogged, slots_go: Callable[[Slots], None], keep: bool
    ) -> None:
        self._rows = rows
        self._history = history
        self._unlogged = unlogged
        self._slots_go = slots_go
        self._keep = keep
        self.clear()

    def clear(self) -> None:
        """Forget all marks: the index has only present rows."""
        self._marks: Bools = np.zeros(0, np.bool_)
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        """The memory that their slots take."""
        index = self._rows.index
        return int(self._count * (index.memory_bytes / index.slot_capacity + self._rows.slot_bytes))

    @property
    def absent(self) -> int:
        """Number of the rows in the index that were deleted."""
        return int(np.count_nonzero(self._marks & ~self._rows.present[: len(self._marks)]))

    def settle(self, absent: Slots, before: Bools) -> Slots:
        """Take those of distinct absent slots out of the index that nothing names; return them. `before`: whether their
        rows were there before the batch: nothing names the slot of a row that was not, unless it is marked."""
        stays = self._marked(absent)
        if self._keep and self._unlogged.waits:
            stays |= before
        elif before.any():
            self._slots_go(absent[before])
        gone = absent[~stays]
        self._rows.remove(gone)
        if len(gone) < len(absent):
            self._mark(absent[stays])
        return gone

    def _mark(self, slots: Slots) -> None:
        self._rows.blank(slots)
        if len(self._marks) < self._rows.capacity:
            enlarge(self, "_marks", self._rows.capacity)
        self._count += len(slots) - int(np.count_nonzero(kernels.gather(self._marks, slots)))
        kernels.fill(self._marks, slots, True)

    def remove(self, bytes_max: int = DELETED_BYTES_MAX) -> None:
        """Take rows out of the index, between batches, whose deletions were collected; all of them if they take more
        memory."""
        if self._count and self.memory_bytes > bytes_max:
            self._slots_go(np.empty(0, np.int32))
        elif self._count <= DELETED_LEAST or not self._unlogged.were_collected():
            return
        elif self._unlogged.has_gaps:
            self._slots_go(np.empty(0, np.int32))
        else:
            self._history.fix_keys(self._rows.index)
        self._rows.remove(self._unnamed(), are_blank=True)

    def _marked(self, slots: Slots) -> Bools:
        """Mark the slots of deleted rows."""
        if not self._count:
            return np.zeros(len(slots), np.bool_)
        known = slots < len(self._marks)
        known[known] = kernels.gather(self._marks, slots[known])
        return known

    def _unnamed(self) -> Slots:
        """Return the slots of deleted rows that no waiting change names; their marks go, and those of present rows."""
        marked = kernels.where(self._marks)
        absent = self._rows.absent(marked)
        named = np.zeros(self._rows.capacity, np.bool_)
        for slots in self._unlogged.named():
            kernels.fill(named, slots, True)
        is_named = kernels.gather(named, absent)
        kernels.fill(self._marks, marked, False)
        kernels.fill(self._marks, absent[is_named], True)
        self._count = int(np.count_nonzero(is_named))
        gone: Slots = absent[~is_named]
        return gone
