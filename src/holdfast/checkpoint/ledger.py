"""What was committed: the last batch, and the committables that no record holds yet.

Does not own: groups that a record holds (publication).
"""

from dataclasses import dataclass

from holdfast.checkpoint.events import BatchCommitted, Position
from holdfast.ids import BatchNumber


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    batch: BatchNumber
    position: Position


class Ledger:
    """Committed batches since the last recorded cut."""

    def __init__(self) -> None:
        self.last: CommittedBatch | None = None
        self.recorded: BatchNumber | None = None
        self._progress: BatchNumber | None = None
        self._committables: dict[BatchNumber, dict[str, list[bytes]]] = {}

    def is_new(self, batch: BatchNumber) -> bool:
        """Whether it is past the last committed one: numbers grow, also from run to run."""
        return self.last is None or batch > self.last.batch

    def committed(self, event: BatchCommitted) -> None:
        """A batch was committed; a repetition is ignored."""
        if not self.is_new(event.batch):
            return
        self.last = CommittedBatch(event.batch, event.position)
        staged = {sink: list(each) for sink, each in event.committables.items() if each}
        if staged:
            self._committables[event.batch] = staged
        if staged or event.progress:
            self._progress = event.batch

    @property
    def unrecorded_progress(self) -> BatchNumber | None:
        """The last batch with progress, if the newest record of this epoch is of an earlier cut."""
        if self._progress is None or (self.recorded is not None and self._progress <= self.recorded):
            return None
        return self._progress

    def committables(self, until: BatchNumber) -> dict[str, list[bytes]]:
        """Unrecorded committables of batches up to `until`, per sink, in order of batches."""
        taken: dict[str, list[bytes]] = {}
        for batch, staged in self._committables.items():
            if batch <= until:
                for sink, each in staged.items():
                    taken.setdefault(sink, []).extend(each)
        return dict(sorted(taken.items()))

    def record(self, cut: BatchNumber) -> None:
        """A record holds everything up to `cut` now."""
        self.recorded = cut
        self._committables = {batch: staged for batch, staged in self._committables.items() if batch > cut}

    def drop(self) -> dict[str, list[bytes]]:
        """Forget what no record holds: the job goes back to its newest record. Returns what was staged for nothing."""
        dropped: dict[str, list[bytes]] = {}
        if self.last is not None:
            dropped = self.committables(self.last.batch)
        self._committables.clear()
        self._progress = None
        return dropped

    def validate(self) -> None:
        """Check the invariants; raises AssertionError."""
        batches = list(self._committables)
        assert batches == sorted(batches), f"out of order: {batches}"
        if self.recorded is not None:
            assert all(batch > self.recorded for batch in batches), f"recorded to {self.recorded}, kept: {batches}"
