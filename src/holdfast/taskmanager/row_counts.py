"""Counts of a subtask's input, output and late rows. They belong to batches, and go back when the state goes back.

    process ──► in flight ──commit──► counted with the batch ──rewind──► as after the batch of the checkpoint
                    └──undo──► forgotten

So each row counts once, however often it is processed. Counts are kept for each batch since the last completed
checkpoint, since a rewind goes no further back.
"""

from typing import NamedTuple

from holdfast.ids import BatchNumber, CheckpointId


class RowCounts(NamedTuple):
    rows_in: int = 0
    rows_out: int = 0
    late: int = 0

    def plus(self, other: "RowCounts") -> "RowCounts":
        return RowCounts(self.rows_in + other.rows_in, self.rows_out + other.rows_out, self.late + other.late)


class SubtaskRowCounts:
    """The counts of a subtask since its deployment."""

    def __init__(self) -> None:
        self.committed = RowCounts()
        self._in_flight = RowCounts()
        self._after: dict[BatchNumber, RowCounts] = {}
        """The counts after each batch that a rewind may go back to."""
        self._cuts: dict[CheckpointId, BatchNumber] = {}

    def note(self, rows_in: int = 0, rows_out: int = 0, late: int = 0) -> None:
        """Add rows of the batch in flight."""
        self._in_flight = self._in_flight.plus(RowCounts(rows_in, rows_out, late))

    def commit(self, batch: BatchNumber) -> None:
        self.committed = self._after[batch] = self.committed.plus(self._in_flight)
        self._in_flight = RowCounts()

    def undo(self) -> None:
        self._in_flight = RowCounts()

    def rewind(self, to_batch: BatchNumber) -> None:
        """Go back to the counts after a batch; the batch before the deployment has none."""
        self.committed = self._after.get(to_batch, RowCounts())
        self._after = {batch: counts for batch, counts in self._after.items() if batch <= to_batch}

    def cut(self, checkpoint_id: CheckpointId, batch: BatchNumber) -> None:
        self._cuts[checkpoint_id] = batch

    def completed(self, checkpoint_id: CheckpointId) -> None:
        """Forget the counts before the cut of a completed checkpoint."""
        cut = self._cuts.get(checkpoint_id)
        if cut is not None:
            self._after = {batch: counts for batch, counts in self._after.items() if batch >= cut}
        self._cuts = {number: batch for number, batch in self._cuts.items() if number > checkpoint_id}
