"""How long a checkpoint took, part by part, and how large it is: put together from what TaskManagers answer.

No clocks of different machines are compared: the start delay is what the JobMaster waited for the answer to its `cut`,
less the synchronous part that the TaskManager measured. Control thread only.
"""

from dataclasses import dataclass, field

from holdfast.protocol.taskmanager import Acknowledgement


@dataclass(frozen=True)
class CheckpointStats:
    """One checkpoint that completed. Times in seconds; those of TaskManagers are the slowest one's.

    `duration_s`: from the cut to the record. `start_delay_s`: until the last TaskManager began. `sync_s`: while batches
    could not commit. `async_s`: from then until its part was stored. `incremental_bytes`: what was stored for it;
    `full_bytes`: all the state that it refers to, of which `materialized_bytes` are tables and the rest logs.
    """

    checkpoint_id: int
    number: int
    batch: int
    duration_s: float
    incremental_bytes: int
    full_bytes: int
    sync_s: float = 0.0
    async_s: float = 0.0
    start_delay_s: float = 0.0
    materialized_bytes: int = 0


@dataclass
class Watch:
    """A checkpoint under way, begun at `started_s`."""

    started_s: float
    _answered_s: dict[int, float] = field(default_factory=dict)
    _acknowledged: dict[int, Acknowledgement] = field(default_factory=dict)

    def answered(self, task_manager: int, now_s: float) -> None:
        """A TaskManager has begun: its `cut` returned."""
        self._answered_s[task_manager] = now_s - self.started_s

    def acknowledged(self, ack: Acknowledgement) -> None:
        """A TaskManager's part is stored; a repetition says the same."""
        self._acknowledged[ack.task_manager] = ack

    def completed(self, checkpoint_id: int, number: int, batch: int, now_s: float) -> CheckpointStats:
        """The record was written."""
        acks = self._acknowledged
        delays_s = [waited_s - acks[each].sync_ms / 1000 for each, waited_s in self._answered_s.items() if each in acks]
        return CheckpointStats(
            checkpoint_id,
            number,
            batch,
            now_s - self.started_s,
            sum(ack.incremental_bytes for ack in acks.values()),
            sum(ack.full_bytes for ack in acks.values()),
            sync_s=max((ack.sync_ms for ack in acks.values()), default=0.0) / 1000,
            async_s=max((ack.async_ms - ack.sync_ms for ack in acks.values()), default=0.0) / 1000,
            start_delay_s=max([0.0, *delays_s]),
            materialized_bytes=sum(ack.materialized_bytes for ack in acks.values()),
        )
