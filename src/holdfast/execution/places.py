"""Places of TaskManagers: which process holds which share of the subtasks.

A job has as many places as it was declared with TaskManagers, and as many processes more as it has standbys. All
processes are alike and keep their numbers. A process that holds a place keeps it for as long as it lives; a place whose
holder is lost goes to the process started in its stead, or to a standby, whichever serves first.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holdfast.ids import Incarnation


class Places(NamedTuple):
    """The process that holds each place, by its number, and the incarnation of each of these processes."""

    holders: tuple[int, ...] = ()
    live: Mapping[int, Incarnation] = {}

    def hold(self, number: int, incarnation: Incarnation | int | None) -> bool:
        """True if that incarnation holds a place."""
        return self.live.get(number) == incarnation

    def still_held(self, serving: Mapping[int, Incarnation], absent: Collection[int] = ()) -> bool:
        """True if every holder still serves, but for those that are absent, which do not."""
        gone = {number for number, incarnation in self.live.items() if serving.get(number) != incarnation}
        return gone == set(absent)


def choose(count: int, before: Places, serving: Mapping[int, Incarnation]) -> Places | None:
    """Give each of `count` places to a process that serves; None while too few serve."""
    if len(serving) < count:
        return None
    holders = [number if number in serving else None for number in before.holders] or [None] * count
    free = iter(sorted(number for number in serving if number not in holders))
    chosen = tuple(next(free) if number is None else number for number in holders)
    return Places(chosen, {number: serving[number] for number in sorted(chosen)})
