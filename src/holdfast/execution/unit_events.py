"""Events and commands of the rules that assign units to senders (`units`)."""

import math
from dataclasses import dataclass

from holdfast.ids import ProcessId

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SenderServes:
    """A sender has registered."""

    sender: ProcessId


@dataclass(frozen=True, slots=True)
class SenderEnded:
    """A sender has ended, or was given up: its work does not count any more."""

    sender: ProcessId
    reason: str


@dataclass(frozen=True, slots=True)
class SenderLeaves:
    """The executor of a sender is about to be removed: the sender finishes its order, gets no other, and is then given
    up."""

    sender: ProcessId
    reason: str


@dataclass(frozen=True, slots=True)
class SendersWanted:
    """Spark has slots for `count` senders: this number of long-running senders is wanted from now on."""

    count: int


@dataclass(frozen=True, slots=True)
class LevelBegun:
    """The `units` of a level, by number, must run. A level ends before the next level begins."""

    units: tuple[int, ...]
    isolated: frozenset[int] = frozenset()
    """Units that fail by themselves if their sender is lost; other units are given to another sender."""
    unit_s_max: float = math.inf
    """Seconds that a sender may take for a unit."""


@dataclass(frozen=True, slots=True)
class LevelLeft:
    """The level is not needed any more: it is done, has failed, or its run was given up."""

    now_s: float


@dataclass(frozen=True, slots=True)
class UnitReported:
    """A sender reports the outcome of a unit. `is_last`: the last report about its order."""

    sender: ProcessId
    attempt: int
    unit: int
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """A sender has reported everything about an order, and can take another order."""

    sender: ProcessId
    attempt: int


@dataclass(frozen=True, slots=True)
class AnswerBroke:
    """The connection to a sender broke off, so its progress with an order is unknown."""

    sender: ProcessId
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SplitTold:
    """A sender that took too long for a unit named the split that it reads; empty: it did not answer."""

    sender: ProcessId
    attempt: int
    unit: int
    split: str


@dataclass(frozen=True, slots=True)
class UnitsTick:
    """Time passed."""

    now_s: float


SenderEvent = SenderServes | SenderEnded | SenderLeaves | SendersWanted | AnswerEnded | AnswerBroke | SplitTold
Event = SenderEvent | LevelBegun | LevelLeft | UnitReported | UnitsTick


# --- commands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Give:
    """Have a sender run units. `UnitReported` answers for each unit, and `AnswerEnded` at the end; or `AnswerBroke`."""

    sender: ProcessId
    attempt: int
    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CancelOrder:
    """Tell a sender that an order is not wanted any more."""

    sender: ProcessId
    attempt: int


@dataclass(frozen=True, slots=True)
class AcceptOutcome:
    """Take the report just handled as the unit's outcome."""

    unit: int


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """The unit failed with its sender, which has ended or is given up. `split`: the split at which the sender hung;
    None: the sender ended by itself."""

    sender: ProcessId
    unit: int
    reason: str
    split: str | None = None


@dataclass(frozen=True, slots=True)
class AskForSplit:
    """Ask a sender which split it reads. Answered by `SplitTold`."""

    sender: ProcessId
    attempt: int
    unit: int


@dataclass(frozen=True, slots=True)
class RunInSpark:
    """Run units as a short Spark job, because there is no sender, and none is expected."""

    units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LevelDone:
    """All units given to senders are counted."""


@dataclass(frozen=True, slots=True)
class LevelFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class StartSenders:
    """Keep the senders with these numbers running from now on: one that ends is started again. Others that have not
    served yet are ended."""

    numbers: frozenset[int]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End a sender. Answered by `SenderEnded`."""

    sender: ProcessId
    reason: str


SenderCommand = Give | CancelOrder | AskForSplit | StartSenders | GiveUp
Command = SenderCommand | AcceptOutcome | UnitFailed | RunInSpark | LevelDone | LevelFailed
