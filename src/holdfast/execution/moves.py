"""Facts and orders of a rescale, and of a move away from machines that are about to be removed; part of `events`.

RescaleAsked ──► FollowMoves ──► MovesFollow ──► HandOver ──► HandedOver | NotHandedOver ──► … ──► EndMoves
"""

from dataclasses import dataclass

from holdfast.execution.places import Places
from holdfast.ids import BatchNumber, ProcessId


@dataclass(frozen=True, slots=True)
class RescaleAsked:
    """A user or the autoscaler wants another layout. There is one rescale at a time; `EndMoves` has its outcome."""

    task_managers: int
    parallelism: int
    until_s: float
    """Time, in the time of ticks, at which the rescale is given up."""
    away: bool = False
    """True: the layout stays the same, but TaskManagers on machines that are about to be removed are replaced."""
    in_place: bool = False
    """True: no TaskManager follows; gained subtasks are restored while no batch runs."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """The machine of a TaskManager is about to be removed: another TaskManager should take its place before that."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class MovesFollow:
    """All TaskManagers that gain subtasks in this layout have their state at the newest record."""

    holders: tuple[int, ...]
    parallelism: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Everything committed is in a record, and all TaskManagers that gain subtasks have their state at that record."""

    batch: BatchNumber
    """The last committed batch."""


@dataclass(frozen=True, slots=True)
class NotHandedOver:
    """The hand-over could not be done now; nothing has changed."""

    reason: str


@dataclass(frozen=True, slots=True)
class FollowMoves:
    """Have all TaskManagers that gain subtasks follow their logs. The command replaces earlier ones."""

    before: Places
    """The places of the layout that is deployed."""
    after: Places
    """The places of the new layout."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """Record everything committed, and have all TaskManagers that gain subtasks catch up with the record. No batch runs
    meanwhile."""


@dataclass(frozen=True, slots=True)
class EndMoves:
    """The rescale has ended. `error`: the reason why the old layout stays; None: the new layout is deployed."""

    places: Places
    """The places in the layout that is deployed now."""
    error: str | None = None
    away: bool = False
