"""Failures that a simulation looks for: a rule that must hold for every job, and does not.

Failures of its own (a thread started outside of every process, say) are other errors: they show nothing about a job.
"""

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.observe.event_log import ObservedRules

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
