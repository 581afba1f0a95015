"""The durable side of a table that another subtask stores. Nothing is stored here.

A table that every subtask has in full (`OperatorSpec.tables_everywhere`) is the same in all of them after each batch.
So the first subtask's `KeyedState` stores it for all, and each subtask restores it. The replicas take part in batches,
rewinds and the release of undo data.
"""

import threading

from holdfast.failpoints import hit
from holdfast.ids import BatchNumber, CheckpointId
from holdfast.materialize.sizes import Sizes
from holdfast.state.table import StateTable


class Replica:
    """A table that another subtask makes durable. It is called like a `KeyedState`."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._cuts: dict[CheckpointId, BatchNumber] = {}
        """The batch of each checkpoint that was cut and is not over."""
        self.sizes = Sizes()

    def commit(self, batch: BatchNumber) -> None:
        """Commit the table's batch in flight, if there is any."""
        if self._table.in_batch:
            self._table.commit()
        hit("taskmanager.commit.between")

    def checkpoint(self, checkpoint_id: CheckpointId, batch: BatchNumber) -> None:
        """Note the cut at `batch`; there is no handle."""
        with self._lock:
            self._cuts[checkpoint_id] = batch

    def completed(self, checkpoint_id: CheckpointId) -> None:
        """Note that a checkpoint was recorded: from now on undo need not reach back further."""
        with self._lock:
            batch = self._cuts.get(checkpoint_id)
            self._cuts = {number: cut for number, cut in self._cuts.items() if number > checkpoint_id}
        if batch is not None:
            self._table.release(batch)

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """Note that the checkpoint will not complete."""
        with self._lock:
            self._cuts.pop(checkpoint_id, None)

    def rewind(self, to_batch: BatchNumber) -> None:
        """Undo all batches after `to_batch`. Raises `HoldfastError` if undo does not reach back so far."""
        self._table.rewind(to_batch)
        with self._lock:
            self._cuts = {number: cut for number, cut in self._cuts.items() if cut <= to_batch}

    def held(self) -> list[str]:
        """Return no names: nothing is stored."""
        return []

    def close(self) -> None:
        return None
