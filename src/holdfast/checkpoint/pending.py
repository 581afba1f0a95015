"""Checkpoints between their cut and their record.

    COLLECTING ──all acknowledged──► READY ──StoreAndRecord──► SENT ──► recorded, or failed
         └────────── aborted ──────────┘                        (neither expires nor is aborted)

Does not own: the objects they name (`registry.py`), the count of failures (`failures.py`).
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from enum import Enum

from holdfast.checkpoint.events import Acknowledged, Position
from holdfast.checkpoint.missing import CheckpointPart, TaskManagersMissing
from holdfast.ids import BatchNumber, CheckpointId, Incarnation, RunNumber


class PendingState(Enum):
    COLLECTING = "collecting"
    READY = "ready"
    SENT = "sent"


@dataclass
class PendingCheckpoint:
    """A checkpoint whose cut was ordered."""

    checkpoint_id: CheckpointId
    batch: BatchNumber
    position: Position
    run: RunNumber
    expected: dict[int, Incarnation]
    triggered_s: float
    requests: list[str] = field(default_factory=list)
    parts: dict[int, CheckpointPart] = field(default_factory=dict)
    """Parts that were acknowledged."""
    absence: TaskManagersMissing | None = None
    """The TaskManagers that were missing at the cut."""
    sent: bool = False
    is_ahead: bool = False
    """True once its other objects were ordered while large parts were being stored."""

    @property
    def state(self) -> PendingState:
        if self.sent:
            return PendingState.SENT
        return PendingState.COLLECTING if self.missing() else PendingState.READY

    def missing(self) -> list[int]:
        """TaskManagers that have not acknowledged, in order."""
        return sorted(self.expected.keys() - self.parts.keys())

    def may_go_ahead(self, storing: Set[int]) -> bool:
        """Return whether it waits for TaskManagers, and only for those that are `storing` their parts themselves."""
        missing = self.missing()
        return bool(missing) and not self.is_ahead and storing >= set(missing)

    def carried(self) -> tuple[tuple[int, Incarnation], ...]:
        """TaskManagers whose parts came with their acknowledgements, in order."""
        return tuple(
            (each, self.parts[each].incarnation) for each in sorted(self.parts) if not self.parts[each].manifest
        )

    def expects(self, task_manager: int, incarnation: Incarnation) -> bool:
        """True if that incarnation's answer counts, and is still open."""
        return self.expected.get(task_manager) == incarnation and task_manager not in self.parts

    def acknowledge(self, event: Acknowledged) -> bool:
        """Take an acknowledgement; return False if it is not expected (late, doubled, or of another cut)."""
        if self.sent or event.batch != self.batch or not self.expects(event.task_manager, event.incarnation):
            return False
        self.parts[event.task_manager] = CheckpointPart(event.incarnation, event.manifest, event.objects, event.batch)
        return True


class PendingCheckpoints:
    """All pending checkpoints, in order of their ids."""

    def __init__(self) -> None:
        self._pending: dict[CheckpointId, PendingCheckpoint] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[PendingCheckpoint]:
        return iter(list(self._pending.values()))

    def get(self, checkpoint_id: CheckpointId) -> PendingCheckpoint | None:
        return self._pending.get(checkpoint_id)

    def add(self, pending: PendingCheckpoint) -> None:
        self._pending[pending.checkpoint_id] = pending

    def remove(self, checkpoint_id: CheckpointId) -> PendingCheckpoint | None:
        """Take a checkpoint out; None if it is not pending."""
        return self._pending.pop(checkpoint_id, None)

    @property
    def unanswered(self) -> PendingCheckpoint | None:
        """The checkpoint whose record was sent and is not answered yet."""
        return next((pending for pending in self if pending.sent), None)

    def abortable(self) -> list[PendingCheckpoint]:
        """Pending checkpoints whose record was not sent."""
        return [pending for pending in self if not pending.sent]

    def ready(self) -> PendingCheckpoint | None:
        """The newest checkpoint that every TaskManager acknowledged. Its record makes older pending checkpoints
        needless."""
        return next((pending for pending in reversed(list(self)) if pending.state is PendingState.READY), None)

    def expired(self, now_s: float, timeout_s: float) -> list[PendingCheckpoint]:
        """Pending checkpoints that took too long."""
        return [pending for pending in self.abortable() if now_s - pending.triggered_s >= timeout_s]

    def covering(self, batch: BatchNumber) -> PendingCheckpoint | None:
        """The newest checkpoint whose cut is at or past `batch`."""
        return next((pending for pending in reversed(list(self)) if pending.batch >= batch), None)

    def validate(self) -> None:
        """Check the invariants; raises AssertionError."""
        pending = list(self)
        assert sum(each.sent for each in pending) <= 1, "two records are unanswered at once"
        ids = [each.checkpoint_id for each in pending]
        assert ids == sorted(ids), f"out of order: {ids}"
        cuts = [each.batch for each in pending]
        assert cuts == sorted(cuts), f"a newer checkpoint has an older cut: {cuts}"
        for each in pending:
            assert each.sent or each.parts.keys() <= each.expected.keys(), f"{each.checkpoint_id}: from strangers"
            assert not each.sent or not each.missing(), f"{each.checkpoint_id}: recorded without {each.missing()}"
