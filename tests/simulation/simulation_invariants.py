"""Failures that a simulation looks for: a rule that must hold for every job, and does not.

Failures of its own (a thread started outside of every process, say) are other errors: they show nothing about a job.
"""

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.formats.history import LostRows, with_losses
from holdfast.journal.records import CheckpointRecord
from holdfast.observe.event_log import ObservedRules

LEAD_S_MAX = 15.0
"""Seconds by which the job's time may come to differ from the time that passed: wall clocks are set by seconds."""
SHOWN_CHARACTERS_MAX = 1_000


class Broken(AssertionError):
    """An invariant does not hold."""


def require(holds: object, what: str) -> None:
    """Raises `Broken`."""
    if not holds:
        raise Broken(what)


def require_equal(found: Any, wanted: Any, what: str) -> None:
    """Raises `Broken` with both."""
    if found != wanted:
        shown = (f"{each!r}"[:SHOWN_CHARACTERS_MAX] for each in (found, wanted))
        raise Broken("{}: found {}, wanted {}".format(what, *shown))


class PassingTime:
    """Time passes in a job as it does, however wrong the wall clock is: compared from record to record."""

    def __init__(self) -> None:
        self._lead_us: int | None = None
        """Microseconds by which the job's time is ahead of the time that passed, in the first record."""

    def recorded(self, number: int, record: CheckpointRecord) -> None:
        """Compare a new record with the first. Raises `Broken`."""
        assert record.clock is not None
        lead_us = record.batch_time_us - record.clock.elapsed_us
        self._lead_us = lead_us if self._lead_us is None else self._lead_us
        apart_s = abs(lead_us - self._lead_us) / 1e6
        require(apart_s <= LEAD_S_MAX, f"record {number}: the job's time is {apart_s:.0f} s from the time that passed")


class DeclaredLosses:
    """The rows that records declare as lost: a start that knows nothing but records counts the same rows."""

    def __init__(self) -> None:
        self._known: list[LostRows] = []
        self._rows: dict[int | None, int] = {}
        self.incomplete = 0
        """Records that have an older part of a TaskManager."""

    def recorded(self, record: CheckpointRecord) -> None:
        require(bool(record.losses) or not record.older_manifests, f"record {record.number} declares no loss")
        self._known = with_losses(self._known, record.losses)
        self._rows[record.number] = sum(each.rows for each in self._known)
        self.incomplete += bool(record.older_manifests)

    def rows(self, record: CheckpointRecord) -> int:
        """Rows that this record and those before it declare."""
        return self._rows[record.number]


def validated(handle: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """`ObservedRules.handle`, which checks the invariants of the rules after each event. Raises `Broken`."""

    def checked(rules: ObservedRules[Any, Any], event: Any) -> Sequence[Any]:
        commands = handle(rules, event)
        try:
            rules.validate()
        except AssertionError as broken:
            raise Broken(str(broken)) from None
        return commands

    return checked
