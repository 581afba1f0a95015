"""Account of what a job loses while it goes on without a TaskManager (`on_loss="drop"`). No I/O. Thread-safe.

    batch committed ──► rows taken and dropped, by subtask ──a checkpoint covers the batch──► forgotten
                                    │ a replacement joins from checkpoint c
                                    ▼
                 lost: for its subtasks, rows taken after c (their effect on state), and rows dropped since then
                                    │ the job goes back to c before the next checkpoint
                                    ▼
                 not lost after all: everything after c is processed again

Invariant: rows that went to a subtask = rows in its state + rows that a loss names.
"""

import threading
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from holdfast.checkpoint.positions import Position
from holdfast.formats.history import LostRows
from holdfast.ids import BatchNumber, SplitPosition

SubtaskRows = Counter[tuple[str, int]]
"""Rows by operator and subtask."""


@dataclass(frozen=True)
class CommittedRows:
    """The rows of a committed batch: those that subtasks took, and those that were dropped."""

    batch: BatchNumber
    taken: SubtaskRows
    dropped: SubtaskRows


class LossLedger:
    """The batches since the newest checkpoint, and the losses that no checkpoint has made final."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[CommittedRows] = deque()
        self._position: Position | None = None
        self._open: list[LostRows] = []

    def committed(self, rows: CommittedRows, position: Position) -> None:
        with self._lock:
            self._batches.append(rows)
            self._position = position

    def joined(self, subtasks: Collection[int], base: int, begins: Position | None, loss: LostRows) -> LostRows:
        """Note that subtasks go on from the state after batch `base`, at which position `begins` stands.

        Returns `loss` with the rows that are lost by that.
        """
        with self._lock:
            lost = [each for each in self._batches if each.batch > base]
            self._batches = deque(_without(each, subtasks) for each in self._batches)
        forgotten = _sum([each.taken for each in lost], subtasks)
        dropped = _sum([each.dropped for each in lost], subtasks)
        found = replace(
            loss,
            batches=(lost[0].batch, lost[-1].batch) if lost else (base, base),
            subtasks=tuple(sorted(subtasks)),
            rows_forgotten=forgotten,
            rows_dropped=dropped,
            positions=_ranges(begins, self._position),
        )
        with self._lock:
            self._open.append(found)
        return found

    def recorded(self, batch: BatchNumber) -> list[LostRows]:
        """Note a checkpoint after that batch; return the losses that it makes final."""
        with self._lock:
            while self._batches and self._batches[0].batch <= batch:
                self._batches.popleft()
            final, self._open = self._open, []
            return final

    def went_back(self) -> list[LostRows]:
        """Note a return to the newest checkpoint; return the losses that it repairs: their rows are processed again."""
        with self._lock:
            self._batches.clear()
            repaired, self._open = self._open, []
            return repaired

    @property
    def not_final(self) -> tuple[LostRows, ...]:
        """The losses that a return to the newest checkpoint would repair."""
        with self._lock:
            return tuple(self._open)

    @property
    def dropped(self) -> int:
        """Rows dropped since the newest checkpoint, for TaskManagers that are still missing."""
        with self._lock:
            return sum(sum(each.dropped.values()) for each in self._batches)


def _sum(rows: list[SubtaskRows], subtasks: Collection[int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in rows:
        for (operator, subtask), count in each.items():
            if subtask in subtasks and count:
                total[f"{operator}/{subtask}"] += count
    return dict(sorted(total.items()))


def _without(batch: CommittedRows, subtasks: Collection[int]) -> CommittedRows:
    """The rows of a batch except rows of subtasks whose loss is told: they are not told twice."""

    def others(rows: SubtaskRows) -> SubtaskRows:
        return Counter({key: count for key, count in rows.items() if key[1] not in subtasks})

    return CommittedRows(batch.batch, others(batch.taken), others(batch.dropped))


def _ranges(
    begins: Position | None, ends: Position | None
) -> dict[str, dict[str, tuple[SplitPosition, SplitPosition]]]:
    """The positions from which and up to which rows are among the lost, by source and split."""
    if ends is None:
        return {}
    started: Mapping[str, Mapping[str, SplitPosition]] = {} if begins is None else begins.offsets
    return {
        source: {split: (started.get(source, {}).get(split), stop) for split, stop in splits.items()}
        for source, splits in ends.offsets.items()
    }
