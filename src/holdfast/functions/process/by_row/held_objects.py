"""The memory of the Python objects that a row operator holds until its batch ends.

    slice of rows ──► called ──► its keys' cells are measured ──► an eighth of the memory more than at the last check?
                                                                      └─► check: `StateTooLarge` in the midst of a batch

A slice costs the measurement of its own keys. Sizes are those of single objects: of a tuple without its elements.
"""

from collections.abc import Sequence

import numpy as np

from holdfast.functions.operator import BatchRoom
from holdfast.functions.process.by_row.keyed_states import AnyCells
from holdfast.state.physical import Slots


class HeldObjects:
    """The objects in some cells, measured by key."""

    def __init__(self, cells: Sequence[AnyCells]) -> None:
        self._cells = cells
        self._of_slots = np.zeros(0, np.int64)
        self.bytes = self._checked = 0

    def measure(self, slots: Slots, room: BatchRoom) -> None:
        """Measure the cells of these slots, which were called; check the room where objects have grown by a piece."""
        if not len(slots) or not self._cells:
            return
        slots = np.sort(slots)  # and only then distinct: NumPy's `unique` takes ten times as long
        slots = slots[np.append(slots[1:] != slots[:-1], True)]
        if slots[-1] >= len(self._of_slots):
            self._of_slots = np.append(self._of_slots, np.zeros(2 * int(slots[-1]) + 2 - len(self._of_slots), np.int64))
        given = slots.tolist()
        now = sum(cells.held_bytes(given) for cells in self._cells)
        self.bytes += int(np.sum(now - self._of_slots[slots]))
        self._of_slots[slots] = now
        if self.bytes - self._checked > room.piece_bytes:
            self._checked = self.bytes
            room.check()

    def reset(self) -> None:
        """Forget the batch."""
        self._of_slots = np.zeros(0, np.int64)
        self.bytes = self._checked = 0
