"""Account of the rows that a job loses while it continues without a TaskManager (`on_loss="drop"`). No I/O.
Thread-safe.

    batch committed ──► rows taken and dropped, by subtask ──a checkpoint of everybody covers the batch──► forgotten
                            │              │ a checkpoint has an older part of its subtasks
                            │              ▼
                            │           declared: that record says it, and makes it final
                            │ a replacement joins from checkpoint c
                            ▼
                        lost: for its subtasks, rows taken after c (their effect on state), and rows dropped since then
                            │ the job goes back to c before the next checkpoint
                            ▼
                        not lost after all: everything after c is processed again

A loss that several checkpoints declare in parts, until a replacement joins, is reported as a single loss. Invariant:
rows sent to a subtask = rows in its state + rows that a loss names.
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
    """The batches since the newest checkpoint, the losses of the current outage that records declare, and the losses
    that no checkpoint has made final yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[CommittedRows] = deque()
        self._position: Position | None = None
        self._declared: dict[tuple[int, ...], LostRows] = {}
        """Final losses of subtasks that are still missing, by subtasks."""
        self._declaring: tuple[BatchNumber, LostRows] | None = None
        """The loss declared by a record that may not be written yet, and the batch of that record."""
        self._open: list[tuple[LostRows | None, LostRows]] = []
        """Losses that are not final, as pairs: the part of the loss that is final, if any, and the loss."""

    def committed(self, rows: CommittedRows, position: Position) -> None:
        with self._lock:
            self._batches.append(rows)
            self._position = position

    def declared(
        self, batch: BatchNumber, subtasks: Collection[int], begins: Position | None, ends: Position, loss: LostRows
    ) -> list[LostRows]:
        """Return the losses that a record after `batch` makes final, because it has older state of `subtasks`. `begins`
        and `ends` are the positions of the record before it and of the record itself. `loss` has time and cause.
        """
        with self._lock:
            lost = [each for each in self._batches if each.batch <= batch]
            final, self._declaring = self._shown(), None
            if not subtasks:
                return final
            found = _lost(lost, subtasks, _ranges(begins, ends), loss)
            before = self._declared.get(found.subtasks)
            self._declaring = batch, found if before is None else before.grown_by(found)
            return [*final, self._declaring[1]]

    def joined(self, subtasks: Collection[int], base: int, begins: Position | None, loss: LostRows) -> LostRows:
        """Note that subtasks continue from the state after batch `base`, whose position is `begins`.

        Returns `loss` with the rows lost thereby, including rows that records have declared as lost already.
        """
        with self._lock:
            lost = [each for each in self._batches if each.batch > base]
            self._batches = deque(_without(each, subtasks) for each in self._batches)
            found = _lost(lost, subtasks, _ranges(begins, self._position), replace(loss, batches=(base, base)))
            before = self._declared.get(found.subtasks)
            self._declared.clear()
            self._open.append((before, found))
            return self._shown()[-1]

    def recorded(self, batch: BatchNumber) -> list[LostRows]:
        """Note a checkpoint after that batch; return the losses that it makes final."""
        with self._lock:
            while self._batches and self._batches[0].batch <= batch:
                self._batches.popleft()
            final, self._open = self._shown(), []
            if self._declaring is not None and self._declaring[0] == batch:
                self._declared[self._declaring[1].subtasks] = self._declaring[1]
                final.append(self._declaring[1])
            self._declaring = None
            return final

    def went_back(self) -> list[LostRows]:
        """Note a return to the newest checkpoint; return the losses that it repairs: their rows are processed again."""
        with self._lock:
            self._batches.clear()
            self._declared.clear()
            repaired, self._open = [each for _, each in self._open], []
            return repaired

    @property
    def not_final(self) -> tuple[LostRows, ...]:
        """The losses that a return to the newest checkpoint would repair at least in part."""
        with self._lock:
            return tuple(self._shown())

    @property
    def dropped(self) -> int:
        """Rows dropped for TaskManagers that are still missing."""
        with self._lock:
            declared = sum(sum(each.rows_dropped.values()) for each in self._declared.values())
            return declared + sum(sum(each.dropped.values()) for each in self._batches)

    def _shown(self) -> list[LostRows]:
        return [each if before is None else before.grown_by(each) for before, each in self._open]


def _lost(
    batches: list[CommittedRows],
    subtasks: Collection[int],
    positions: dict[str, dict[str, tuple[SplitPosition, SplitPosition]]],
    loss: LostRows,
) -> LostRows:
    """Return `loss` with the rows of subtasks in these batches."""
    return replace(
        loss,
        batches=(batches[0].batch, batches[-1].batch) if batches else loss.batches,
        subtasks=tuple(sorted(subtasks)),
        rows_forgotten=_sum([each.taken for each in batches], subtasks),
        rows_dropped=_sum([each.dropped for each in batches], subtasks),
        positions=positions,
    )


def _sum(rows: list[SubtaskRows], subtasks: Collection[int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in rows:
        for (operator, subtask), count in each.items():
            if subtask in subtasks and count:
                total[f"{operator}/{subtask}"] += count
    return dict(sorted(total.items()))


def _without(batch: CommittedRows, subtasks: Collection[int]) -> CommittedRows:
    """Return the rows of a batch without the rows of subtasks whose loss is reported already."""

    def others(rows: SubtaskRows) -> SubtaskRows:
        return Counter({key: count for key, count in rows.items() if key[1] not in subtasks})

    return CommittedRows(batch.batch, others(batch.taken), others(batch.dropped))


def _ranges(
    begins: Position | None, ends: Position | None
) -> dict[str, dict[str, tuple[SplitPosition, SplitPosition]]]:
    """Return the positions between which the lost rows lie, by source and split."""
    if ends is None:
        return {}
    started: Mapping[str, Mapping[str, SplitPosition]] = {} if begins is None else begins.offsets
    return {
        source: {split: (started.get(source, {}).get(split), stop) for split, stop in splits.items()}
        for source, splits in ends.offsets.items()
    }
