"""Checkpoints that are taken while TaskManagers are missing (`on_loss="drop"`).

    newest record: a part for each TaskManager ──TaskManagersMissing──► the next record names the parts of the missing
                                                    │                   again
                                                    └ it has no part of one, or broadcast state has changed since:
                                                      no cut until all are there

A part belongs to an incarnation, which keeps its share of the subtasks until the job is rescaled. After a rescale no
part stands in for a TaskManager until the first record in the new layout. Invariant: a record has a part for each
TaskManager, and marks the parts that belong to an older checkpoint. Does not own: which rows are lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.ids import NO_BATCH, BatchNumber, Incarnation


@dataclass(frozen=True, slots=True)
class TaskManagersMissing:
    """Batches continue without these TaskManagers; the newest record may have their parts. After a further loss, the
    event comes again with all missing TaskManagers."""

    reason: str
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """A TaskManager's part of a checkpoint: its manifest, and all objects that the manifest needs, its own included."""

    incarnation: Incarnation
    manifest: str
    objects: frozenset[str]
    batch: BatchNumber


class RecordedParts:
    """The parts of the newest record, by TaskManager; empty until this epoch has written a record."""

    def __init__(self) -> None:
        self._recorded: Mapping[int, CheckpointPart] = {}
        self._found: frozenset[str] = frozenset()
        self._broadcast = NO_BATCH
        self.absence: TaskManagersMissing | None = None
        """The current loss; None while no TaskManager is missing."""

    def recorded(self, parts: Mapping[int, CheckpointPart]) -> None:
        self._recorded, self._found = dict(parts), frozenset()

    def found(self, objects: frozenset[str]) -> None:
        """Note the objects of a base that an earlier epoch recorded."""
        self._found = objects

    def moved(self) -> None:
        """Note that TaskManagers have other subtasks than the recorded parts."""
        self._found, self._recorded = self.objects(), {}

    def objects(self) -> frozenset[str]:
        """All objects that the newest record's parts need."""
        return self._found.union(*(part.objects for part in self._recorded.values()))

    def broadcast_changed(self, batch: BatchNumber) -> None:
        """Note a batch that changed broadcast state."""
        self._broadcast = batch

    @property
    def missing(self) -> frozenset[int]:
        return frozenset() if self.absence is None else self.absence.missing

    def stand_in(self, live: Mapping[int, Incarnation]) -> bool:
        """Return True if a checkpoint may be taken with the recorded parts of the missing TaskManagers, whose
        incarnations are in `live`."""
        parts = self.of(self.missing)
        fit = all(live.get(each) == part.incarnation and part.batch >= self._broadcast for each, part in parts.items())
        return fit and len(parts) == len(self.missing)

    def of(self, missing: frozenset[int]) -> dict[int, CheckpointPart]:
        """Return the newest record's parts of the `missing` TaskManagers, as far as it has them."""
        return {each: self._recorded[each] for each in sorted(missing) if each in self._recorded}
