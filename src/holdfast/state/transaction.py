"""What a batch touched: the rows' old state, saved at the first touch. Undo, change set and clean-up rest on it.

One batch is one transaction. Slots mean something only until it ends. Does not own the rows themselves.
"""

from dataclasses import dataclass

import numpy as np

from holdfast.state import kernels
from holdfast.state.columns import Column, Values
from holdfast.state.physical import Bools, Integers


@dataclass(frozen=True)
class OldRows:
    """Rows as they were before the batch: at position i, the row of `slots[i]`."""

    slots: Integers
    present: Bools
    columns: list[tuple[Values, Bools]]

    @property
    def memory_bytes(self) -> int:
        own = self.slots.nbytes + self.present.nbytes
        return own + sum(values.nbytes + valid.nbytes for values, valid in self.columns)


class Transaction:
    """The touched rows of batch `batch`, in order of first touch: one segment for each lookup that touched any."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self._segments: list[OldRows] = []

    @property
    def memory_bytes(self) -> int:
        return sum(segment.memory_bytes for segment in self._segments)

    def save(self, slots: Integers, present: Bools, columns: list[Column]) -> None:
        """Remember the rows of `slots`, touched for the first time and not yet written."""
        old_columns = [column.gather(slots) for column in columns]
        self._segments.append(OldRows(slots, kernels.gather(present, slots), old_columns))

    def old_rows(self) -> OldRows | None:
        """All rows touched so far; None where no lookup was made."""
        if len(self._segments) > 1:
            self._segments = [_concatenated(self._segments)]
        return self._segments[0] if self._segments else None


def _concatenated(segments: list[OldRows]) -> OldRows:
    columns = zip(*(segment.columns for segment in segments), strict=True)
    return OldRows(
        np.concatenate([segment.slots for segment in segments]),
        np.concatenate([segment.present for segment in segments]),
        [
            (np.concatenate([part[0] for part in column]), np.concatenate([part[1] for part in column]))
            for column in columns
        ],
    )
