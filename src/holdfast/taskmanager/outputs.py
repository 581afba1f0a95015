"""Output of a TaskManager's subtasks, kept by batch, operator and subtask until the JobMaster releases it.

Output may be read any number of times (a pull task may be retried). A request for output that was dropped, or never
made, is an error and never gets an empty answer.
"""

import threading
from collections.abc import Iterable

import pyarrow as pa

from holdfast.errors import StaleCall
from holdfast.ids import BatchNumber
from holdfast.taskmanager.buffers import RowBuffer, SpillArea

ROWS_PER_BATCH_MAX = 128 * 1024
"""Rows of a record batch as it is read; a longer batch is cut. Each is sent as a message of its own, so a higher value
overlaps sending and receiving less."""


class Outputs:
    """Safe for use from several threads."""

    def __init__(self, area: SpillArea) -> None:
        self._area = area
        self._kept: dict[tuple[int, str, int], RowBuffer] = {}
        self._lock = threading.Lock()

    def new(self) -> RowBuffer:
        """Make a buffer for output, which `put` keeps or its owner drops."""
        return RowBuffer(self._area)

    def put(self, batch: BatchNumber, operator: str, subtask: int, rows: Iterable[pa.RecordBatch]) -> int:
        """Keep the whole output of a subtask in a batch (possibly none); returns the number of rows."""
        kept = rows if isinstance(rows, RowBuffer) else self.new()
        if kept is not rows:
            for piece in rows:
                kept.append(piece)
        with self._lock:
            replaced = self._kept.pop((batch, operator, subtask), None)
            self._kept[batch, operator, subtask] = kept
        if replaced is not None:
            replaced.drop()
        return kept.rows

    def read(self, batch: BatchNumber, operator: str, subtask: int) -> list[pa.RecordBatch]:
        """The output, cut into batches of at most `ROWS_PER_BATCH_MAX` rows.

        Raises
        ------
        StaleCall
            If it is not held: released, undone, or never made.
        """
        with self._lock:
            return [piece for rows in self._of(batch, operator, subtask).batches() for piece in _cut(rows)]

    def read_small(
        self, batch: BatchNumber, which: Iterable[tuple[str, int]], bytes_max: int
    ) -> list[list[pa.RecordBatch] | None]:
        """Return outputs by operator and subtask, in order, as long as they fit into `bytes_max` together; None for the
        others.

        Raises `StaleCall` if one of them is not held.
        """
        found: list[list[pa.RecordBatch] | None] = []
        with self._lock:
            for operator, subtask in which:
                kept = self._of(batch, operator, subtask)
                size = kept.bytes_in_memory
                fits = size is not None and size <= bytes_max
                bytes_max -= size if size is not None and fits else 0
                found.append(list(kept.batches()) if fits else None)
        return found

    def _of(self, batch: BatchNumber, operator: str, subtask: int) -> RowBuffer:
        kept = self._kept.get((batch, operator, subtask))
        if kept is None:
            raise StaleCall(
                f"operator {operator!r}, subtask {subtask}: the output of batch {batch} is not held here "
                "(released, undone or never made); the task that asks is left over"
            )
        return kept

    def release(self, batch: BatchNumber) -> None:
        """Drop the output of batches up to and including `batch`."""
        with self._lock:
            gone = [self._kept.pop(key) for key in list(self._kept) if key[0] <= batch]
        for kept in gone:
            kept.drop()

    def release_all(self) -> None:
        with self._lock:
            gone = list(self._kept.values())
            self._kept.clear()
        for kept in gone:
            kept.drop()

    def __len__(self) -> int:
        return len(self._kept)


def _cut(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [rows.slice(start, ROWS_PER_BATCH_MAX) for start in range(0, rows.num_rows, ROWS_PER_BATCH_MAX)]
