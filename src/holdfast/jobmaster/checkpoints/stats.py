"""Outcome of each trigger: durations and sizes of its checkpoint, or the reason why there is none.

Clocks of different machines are never compared: the start delay is the JobMaster's wait for the answer to its `cut`,
minus the synchronous part that the TaskManager measured. Only the control thread calls this module, except
`Watch.answered`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from holdfast.behind import Behind
from holdfast.checkpoint.outcomes import Outcome
from holdfast.formats.history import CheckpointStats, TaskManagerPart
from holdfast.ids import NO_BATCH, BatchNumber, CheckpointId, Epoch, Incarnation
from holdfast.jobmaster.checkpoints.gathered import CarriedPart
from holdfast.protocol.taskmanager import Acknowledgement

NONE_BEHIND: Behind = {}
PARKED_SHOWN_MAX = 100
"""Bound on the parked splits that an entry of the history lists."""
PARKED_NAMED_MAX = 3
"""Bound on the parked splits that the reason of an entry names."""


@dataclass
class Watch:
    """A checkpoint under way, begun at `started_s` by the monotonic clock and at `at_s` by the wall clock."""

    started_s: float
    at_s: float = 0.0
    trigger: str = ""
    batch: BatchNumber = NO_BATCH
    addresses: dict[int, str] = field(default_factory=dict)
    """Addresses of the TaskManagers that take part, by number."""
    _answered_s: dict[int, float] = field(default_factory=dict)
    _acknowledged: dict[int, Acknowledgement] = field(default_factory=dict)
    _parts: dict[tuple[int, Incarnation], CarriedPart] = field(default_factory=dict)

    def answered(self, task_manager: int, now_s: float) -> None:
        """Note that a TaskManager has begun: its `cut` returned. Any thread may call this."""
        self._answered_s[task_manager] = now_s - self.started_s

    def acknowledged(self, ack: Acknowledgement) -> None:
        """Note that a TaskManager's part is stored, or came with the acknowledgement; a repetition changes nothing."""
        if ack.part:
            self._parts[ack.task_manager, ack.incarnation] = CarriedPart(ack.part, ack.manifest_start)
            ack = replace(ack, part=b"")
        self._acknowledged[ack.task_manager] = ack

    def parts(self, of: Iterable[tuple[int, Incarnation]]) -> dict[int, CarriedPart]:
        """Return parts that came along, by TaskManager."""
        return {each[0]: self._parts[each] for each in of}

    def take_parts(self, of: Iterable[tuple[int, Incarnation]]) -> dict[int, CarriedPart]:
        """Take out the parts that came along, by TaskManager."""
        taken = self.parts(of)
        self._parts.clear()
        return taken

    def ended(
        self,
        checkpoint_id: CheckpointId,
        epoch: Epoch,
        now_s: float,
        outcome: Outcome,
        number: int = -1,
        counted: bool = False,
        reason: str = "",
        behind: Behind = NONE_BEHIND,
    ) -> CheckpointStats:
        """The figures, as far as they are known."""
        standing = [(f"{source}/{split}", each) for source in behind for split, each in behind[source].items()]
        failing = sum(bool(each.reason) and not each.parked for _, each in standing)
        parked = sorted(name for name, each in standing if each.parked)
        acks = self._acknowledged
        parts = tuple(self._part(task_manager) for task_manager in sorted(self.addresses))
        return CheckpointStats(
            checkpoint_id,
            number,
            self.batch,
            now_s - self.started_s,
            sum(ack.incremental_bytes for ack in acks.values()),
            sum(ack.full_bytes for ack in acks.values()),
            sync_s=max((each.sync_s for each in parts), default=0.0),
            async_s=max((each.async_s for each in parts), default=0.0),
            start_delay_s=max((each.start_delay_s for each in parts), default=0.0),
            materialized_bytes=sum(ack.materialized_bytes for ack in acks.values()),
            outcome=outcome.value,
            counted=counted,
            reason=reason or _left_out(failing, parked),
            trigger=self.trigger,
            at_s=self.at_s,
            epoch=epoch,
            failing_splits=failing,
            parked_splits=tuple(parked[:PARKED_SHOWN_MAX]),
            retries=sum(ack.retries for ack in acks.values()),
            hedges=sum(ack.hedges for ack in acks.values()),
            task_managers=parts,
        )

    def _part(self, task_manager: int) -> TaskManagerPart:
        ack, address = self._acknowledged.get(task_manager), self.addresses[task_manager]
        if ack is None:
            return TaskManagerPart(task_manager, address, answered=False)
        return TaskManagerPart(
            task_manager,
            address,
            answered=True,
            start_delay_s=max(0.0, self._answered_s.get(task_manager, 0.0) - ack.sync_ms / 1000),
            sync_s=ack.sync_ms / 1000,
            async_s=(ack.async_ms - ack.sync_ms) / 1000,
            incremental_bytes=ack.incremental_bytes,
            full_bytes=ack.full_bytes,
            retries=ack.retries,
            hedges=ack.hedges,
            subtasks=dict(ack.subtasks),
        )


def _left_out(failing: int, parked: list[str]) -> str:
    """Say which splits a completed checkpoint did not advance; empty if there are none."""
    found = [f"{len(parked)} parked splits: {', '.join(parked[:PARKED_NAMED_MAX])}"] if parked else []
    found += [f"{failing} failing splits"] if failing else []
    return f"without {' and '.join(found)}" if found else ""
