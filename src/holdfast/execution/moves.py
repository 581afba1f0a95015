"""Facts and orders of a rescale, and of a move away from machines that are to go; part of `events`.

RescaleAsked ──► FollowMoves ──► MovesFollow ──► HandOver ──► HandedOver | NotHandedOver ──► … ──► EndMoves
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.ids import BatchNumber, Incarnation, ProcessId


@dataclass(frozen=True, slots=True)
class RescaleAsked:
    """A user, or the autoscaler, wants another number of TaskManagers. One at a time; `EndMoves` tells how it ends."""

    task_managers: int
    parallelism: int
    until_s: float
    """When it is given up, by the time of ticks."""
    away: bool = False
    """True: as many as there are, but none of those whose machine is to go."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The machine of a TaskManager is to go: another TaskManager is to take its place before that."""

    process: ProcessId
    parallelism: int


@dataclass(frozen=True, slots=True)
class MovesFollow:
    """Everybody who gains subtasks by these places has their state as of the newest record."""

    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Everything committed is in a record, and everybody who gains subtasks has their state as of it."""

    batch: BatchNumber
    """The last committed batch."""


@dataclass(frozen=True, slots=True)
class NotHandedOver:
    """The hand-over could not be done now; nothing has changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class FollowMoves:
    """Have everybody who gains subtasks follow their logs. Replaces the orders before."""

    before: tuple[int, ...]
    """The TaskManager that holds each place now."""
    after: tuple[int, ...]
    """The TaskManager that is to hold each place."""
    live: Mapping[int, Incarnation]
    """The incarnations of those in `after`."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Record everything that is committed, and have everybody who gains subtasks reach the record. No batch runs."""


@dataclass(frozen=True, slots=True)
class EndMoves:
    """The rescale has ended. `error`: why there is still the layout of before; None: the new layout is deployed."""

    task_managers: int
    """Number of TaskManagers that hold places now."""
    error: str | None = None
    away: bool = False
