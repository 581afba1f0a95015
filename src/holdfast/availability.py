"""Answers to one question: may the checkpoint that is due be cut at this batch boundary?

    function, sink ──is_snapshot_available()──► SnapshotAvailability ──unless AVAILABLE──► Refusal
    source ───────── SourcePlan.availability ──►

Functions and sinks are asked after each batch is committed, and a source says it with each plan. The answer holds for
that one boundary. The checkpoint rules (`checkpoint/`) decide what follows from a refusal.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from holdfast.errors import USER_ERRORS, described


class SnapshotAvailability(msgspec.Struct, frozen=True):
    """Says whether a checkpoint may be cut at the batch boundary at hand, and why not.

    `AVAILABLE`: it may. `SOFT_FAILURE`: it may not, which is expected; it counts as no failure. `HARD_FAILURE`: it may
    not, and that is wrong; it counts against `tolerable_failed_checkpoints`. `kind` tells which of them it is, and
    `message` the reason, given with `because`:

        return hf.SnapshotAvailability.SOFT_FAILURE.because("transaction 17 is open")
    """

    kind: Literal["available", "soft_failure", "hard_failure"]
    message: str = ""

    AVAILABLE: ClassVar["SnapshotAvailability"]
    SOFT_FAILURE: ClassVar["SnapshotAvailability"]
    HARD_FAILURE: ClassVar["SnapshotAvailability"]

    def because(self, message: str) -> "SnapshotAvailability":
        """Return the same answer with a message, which log, history and errors show."""
        return SnapshotAvailability(self.kind, message)


SnapshotAvailability.AVAILABLE = SnapshotAvailability("available")
SnapshotAvailability.SOFT_FAILURE = SnapshotAvailability("soft_failure", "no reason was given")
SnapshotAvailability.HARD_FAILURE = SnapshotAvailability("hard_failure", "no reason was given")


class Refusal(msgspec.Struct, frozen=True):
    """Names who refuses a cut at one batch boundary, and why. `hard`: it counts as a failure."""

    who: str
    reason: str
    hard: bool = False

    def __str__(self) -> str:
        return f"{self.who} ({'hard' if self.hard else 'soft'}): {self.reason}"


def ask(who: str, question: Callable[[], object]) -> Refusal | None:
    """Ask a function or a sink, and return the refusal; None where a cut may be taken.

    `question` is code of a user. An error in it is a hard refusal: the batch is committed by then, so that nothing else
    can come of it.
    """
    return refusal(who, answered(question))


def answered(question: Callable[[], object]) -> Any:
    """Return the answer of a source's code of users; an error in it is a hard refusal. `refusal` checks the type."""
    try:
        return question()
    except USER_ERRORS as error:
        return SnapshotAvailability.HARD_FAILURE.because(f"is_snapshot_available() raised {described(error)}")


def refusal(who: str, answer: object) -> Refusal | None:
    """Return the refusal that an answer is; None where a cut may be taken. An answer of another type is a hard one."""
    if not isinstance(answer, SnapshotAvailability):
        expected = "SnapshotAvailability.AVAILABLE, SOFT_FAILURE or HARD_FAILURE"
        return Refusal(
            who, f"the answer whether a checkpoint may be cut is {answer!r}; expected: {expected}", hard=True
        )
    if answer.kind == "available":
        return None
    return Refusal(who, answer.message, hard=answer.kind == "hard_failure")


def listed(refusals: Sequence[Refusal]) -> str:
    """Name the refusals on a single line: hard ones first, and no more than three by name."""
    ordered = sorted(refusals, key=lambda each: not each.hard)
    more = f"; and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return "; ".join(map(str, ordered[:3])) + more
