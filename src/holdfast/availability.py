"""Answers to one question: may the checkpoint that is due be cut at this batch boundary?

    function, sink ──is_snapshot_available()──► SnapshotAvailability ──unless AVAILABLE──► Refusal
    source ───────── SourcePlan.availability ──►

Functions and sinks are asked after each committed batch; a source gives its answer with each plan. An answer holds for
that one boundary only. The checkpoint rules (`checkpoint/`) decide what follows from a refusal.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from holdfast.errors import USER_ERRORS, described


class SnapshotAvailability(msgspec.Struct, frozen=True):
    """Says whether a checkpoint may be cut at the batch boundary at hand, and why not.

    `AVAILABLE` allows the cut. `SOFT_FAILURE` refuses it for an expected reason, and does not count as a failure.
    `HARD_FAILURE` refuses it because something is wrong, and counts against `tolerable_failed_checkpoints`. `kind` says
    which of the three it is, and `message` gives the reason, which `because` sets:

        return hf.SnapshotAvailability.SOFT_FAILURE.because("transaction 17 is open")
    """

    kind: Literal["available", "soft_failure", "hard_failure"]
    message: str = ""

    AVAILABLE: ClassVar["SnapshotAvailability"]
    SOFT_FAILURE: ClassVar["SnapshotAvailability"]
    HARD_FAILURE: ClassVar["SnapshotAvailability"]

    def because(self, message: str) -> "SnapshotAvailability":
        """Return the same answer with a message, which the log, the history and errors show."""
        return SnapshotAvailability(self.kind, message)


SnapshotAvailability.AVAILABLE = SnapshotAvailability("available")
SnapshotAvailability.SOFT_FAILURE = SnapshotAvailability("soft_failure", "no reason was given")
SnapshotAvailability.HARD_FAILURE = SnapshotAvailability("hard_failure", "no reason was given")


class Refusal(msgspec.Struct, frozen=True):
    """A refusal of a cut at one batch boundary: who refuses, and why. A `hard` refusal counts as a failure."""

    who: str
    reason: str
    hard: bool = False

    def __str__(self) -> str:
        return f"{self.who} ({'hard' if self.hard else 'soft'}): {self.reason}"


def ask(who: str, question: Callable[[], object]) -> Refusal | None:
    """Ask a function or a sink whether a cut may be taken. Returns the refusal, or None if there is none.

    `question` is a user's code. An error in it is a hard refusal: the batch is already committed, so the error can have
    no other effect.
    """
    return refusal(who, answered(question))


def answered(question: Callable[[], object]) -> Any:
    """Return the answer of a user's code; an error in it becomes a hard failure. `refusal` checks the answer's type."""
    try:
        return question()
    except USER_ERRORS as error:
        return SnapshotAvailability.HARD_FAILURE.because(f"is_snapshot_available() raised {described(error)}")


def refusal(who: str, answer: object) -> Refusal | None:
    """Turn an answer into a refusal, or into None if a cut may be taken. An answer of a wrong type is a hard
    refusal."""
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
