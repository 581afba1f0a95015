"""The command that keeps committables from filling the driver's memory, and the events that answer it.

The ledger decides when committables are gathered; `events.py` gives the place of this command in the order of commands.
"""

from dataclasses import dataclass

from holdfast.ids import BatchNumber, RunNumber


@dataclass(frozen=True, slots=True)
class Gather:
    """Store `committables`, of batches up to `batch`, as an object: they take too much of the driver's memory."""

    sink: str
    gathering: int
    run: RunNumber
    batch: BatchNumber
    committables: list[bytes]


@dataclass(frozen=True, slots=True)
class Gathered:
    """The committables of a `Gather` are stored; `committable` names them, and replaces them from now on."""

    sink: str
    gathering: int
    committable: bytes


@dataclass(frozen=True, slots=True)
class GatherFailed:
    """The gathering failed. Objects may have been stored, but are not looked for."""

    sink: str
    gathering: int


GatherEvent = Gathered | GatherFailed


@dataclass(frozen=True, slots=True)
class PausePlanning:
    """Plan no further batch: the sink has `unpublished_max` groups or more to publish, or too much output in memory."""

    sink: str


@dataclass(frozen=True, slots=True)
class ResumePlanning:
    """The sink is below its bounds again."""

    sink: str
