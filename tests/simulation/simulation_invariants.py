"""What a simulation looks for: that something does not hold which must hold for every job.

Failures of its own (a thread started outside of every process, say) are other errors: they show nothing about a job.
"""

from typing import Any

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
