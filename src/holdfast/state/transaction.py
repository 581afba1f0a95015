"""The rows that a batch touched, with their old state, saved at the first touch. Undo, change set and clean-up use it.

Each batch has a transaction. Slots mean something only until it ends. Does not own the rows themselves, nor the rows
kept after the batch (`history`).
"""

import numpy as np

from holdfast.ids import BatchNumber
from holdfast.state.physical import Bools, Slots
from holdfast.state.rows import OldRows, Rows, concatenated

MEASURED_AGAIN_MAX = 1 << 16
"""Number of touched rows up to which a measurement during a batch measures all of them, since rows may grow. A higher
value notices the growth of more rows, and takes longer."""


class Transaction:
    """The touched rows of batch `batch`, in order of first touch: a segment for each look-up that touched any."""

    def __init__(self, batch: BatchNumber, first_stamp: int, none: OldRows) -> None:
        self.batch = batch
        self.first_stamp = first_stamp
        """Rows stamped before it are unseen (`unlogged.Chain`)."""
        self.deferred = False
        """True if its changes are to be collected after it is committed."""
        self.changed: Bools | None = None
        """The touched rows that changed, as marks; None if they were not determined since the last write."""
        self.object_bytes = 0
        """The bytes of replaced objects, which only the saved rows hold."""
        self._is_measured = False
        self._added_measured = 0
        self._segments = [none]
        self._unseen = [none.slots]

    @property
    def memory_bytes(self) -> int:
        rows = sum(segment.memory_bytes for segment in self._segments) + sum(slots.nbytes for slots in self._unseen)
        return rows + self.object_bytes

    def save(self, old: OldRows, unseen: Slots) -> None:
        """Remember rows touched for the first time and not yet written; `unseen` are some of them."""
        if len(old.slots):
            self._segments.append(old)
        if len(unseen):
            self._unseen.append(unseen)

    def measure(self, rows: Rows, added: bool = False) -> None:
        """Measure the objects of all touched rows once, at the end of the batch. With `added`, measure them during the
        batch; if many rows are touched, only those that were touched since the last measurement."""
        old = self.old_rows()
        if added:
            first = 0 if len(old.slots) <= MEASURED_AGAIN_MAX else self._added_measured
            rows.measure_objects(old.slots[first:])
            self._added_measured = len(old.slots)
        elif not self._is_measured:
            self._is_measured = True
            self.object_bytes = rows.replaced_bytes(old)
            rows.measure_objects(old.slots)

    @property
    def is_empty(self) -> bool:
        return not any(len(segment.slots) for segment in self._segments)

    def old_rows(self) -> OldRows:
        """The rows touched so far, as they were before the batch."""
        if len(self._segments) > 1:
            self._segments = [concatenated([each for each in self._segments if len(each.slots)])]
        return self._segments[0]

    def unseen(self) -> Slots:
        """The slots of rows touched so far that were stamped before `first_stamp`."""
        return np.concatenate(self._unseen) if len(self._unseen) > 2 else self._unseen[-1]

    def appeared(self, rows: Rows) -> int:
        """The number of rows by which the batch has enlarged the table so far."""
        old = self.old_rows()
        return int(np.count_nonzero(rows.present_at(old.slots))) - int(np.count_nonzero(old.present))
