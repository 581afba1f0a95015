"""The reports of the control loop, passed on to the other parts. All come on the loop's thread, and return at once."""

from collections.abc import Callable

from holdfast.checkpoint.events import Position
from holdfast.checkpoint.outstanding import Outstanding
from holdfast.execution import events as ev
from holdfast.formats.history import CheckpointStats
from holdfast.ids import Incarnation
from holdfast.jobmaster.assembly import MasterParts

LOOK_AT_CLUSTER_S = 1.0
"""Seconds between checks of the Spark session; they bound how late its end is noticed while nothing runs."""
LOOK_FOR_SLOTS_S = 0.1
"""Seconds between two looks at the slots while a TaskManager is missing; a higher value delays failover."""


class ControlReports:
    """Implements `checkpoints.control.Listener`."""

    def __init__(self, parts: MasterParts) -> None:
        self._parts = parts
        self._looked_at_cluster_s = float("-inf")

    def completed(self, stats: CheckpointStats, position: Position) -> None:
        parts = self._parts
        parts.progress.checkpoint(stats)
        if final := parts.losses.recorded(stats.batch):
            parts.control.history.add_losses(final)
        parts.news.completed(position)
        parts.following.completed(stats)
        parts.conductor.interruption.wake()
        parts.facts.tell(ev.CheckpointCompleted())

    def not_completed(self, stats: CheckpointStats) -> None:
        self._parts.progress.not_completed(stats)

    def failover(self, reason: str) -> None:
        self._parts.facts.failover(reason)

    def planning(self, paused_by: frozenset[str]) -> None:
        self._parts.facts.tell(ev.SinksLag(paused_by))

    def died(self, dead: list[Incarnation], outstanding: Outstanding) -> None:
        self._parts.sweeper.died(dead, outstanding)

    def tick(self, now_s: float, outstanding: Callable[[], Outstanding]) -> None:
        parts = self._parts
        parts.sweeper.tick(now_s, outstanding)
        parts.following.look(now_s)
        parts.rescales.look(now_s)
        parts.senders.check_heartbeats()
        missing = parts.task_managers.missing
        if now_s - self._looked_at_cluster_s >= (LOOK_FOR_SLOTS_S if missing else LOOK_AT_CLUSTER_S):
            self._looked_at_cluster_s = now_s
            if parts.facts.look_at_cluster():
                parts.senders.make_room(missing)
