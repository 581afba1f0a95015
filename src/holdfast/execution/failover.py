"""A failover as a value: why a job goes back to a checkpoint, and whether all TaskManagers go back.

The execution machine makes it, the coordinator chooses its base, and the deployment that it leads to carries it:

    a `Cause` ──► AskBase(failover) ──► BaseChosen ──► Deploy(run, base, failover)
"""

from dataclasses import dataclass, replace
from enum import Enum

from holdfast.ids import ProcessId


class Why(Enum):
    """Kinds of causes."""

    LOST = "a process has ended"
    MISSING = "a process was missing for too long"
    FAILED = "work failed, and only the state of a checkpoint is known to be good"
    LAGGING = "a replacement would lack broadcast state that the others have"
    OUTAGE = "a store or a disk is away, which has a limit of its own: the restart does not count"
    ASKED = "somebody asked for it"
    RESCALED = "the job gets another number of TaskManagers"


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a failover. `process`: the lost process, if `why` is `LOST`."""

    why: Why
    text: str
    process: ProcessId | None = None

    def __str__(self) -> str:
        return self.text if self.process is None else f"{self.process.name} ended: {self.text}"

    def explained(self, process: ProcessId, reason: str) -> "Cause":
        """Return the cause with a better reason for the loss of a process; unchanged if the cause is not that loss."""
        return replace(self, text=reason) if self.why is Why.LOST and self.process == process else self


UNKNOWN = Cause(Why.FAILED, "unknown")


@dataclass(frozen=True, slots=True)
class Failover:
    """A return to a checkpoint. `causes`: oldest first."""

    causes: tuple[Cause, ...]
    joining: tuple[int, ...] | None = None
    """The TaskManagers that begin from the base while the others keep their state and batches are still committed;
    empty as long as they are not known. None: all TaskManagers go back."""

    @property
    def goes_on(self) -> bool:
        """True if only replacements restore, and the other TaskManagers continue."""
        return self.joining is not None

    def __str__(self) -> str:
        return "; ".join(map(str, self.causes))
