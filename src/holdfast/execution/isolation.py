"""Isolation of the splits that fail a level: pure rules, `Isolation.handle(failed) -> units to run next`.

    unit fails ──parts──► … ──► a unit of a single split fails: the split has failed
                                        │
    units that hold other splits as well ◄── run again without it; their first results do not count

The division of a unit depends on how the unit ended. If an error names the split that was read, that split runs alone
and the others run in halves; without a name, all run in halves. A process that died has left no name, and each further
death costs the start of a process, so its unit is divided into more parts. If a unit took too long, its sender was
asked for the split: that split has failed.

A unit's output mixes its splits, and a source that several branches read has units on each of them. So a split that
fails on any branch is taken out of all branches: either all of its rows of this batch are staged, or none.

Invariants
- At the end, the units that count hold each split that has not failed once for each branch, and no failed split.
- Numbers of units are never used twice within a batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

SplitName = tuple[str, str]
"""A source, and the name of a split of it."""

HALVES = 2
DEATH_PARTS = 16
"""Number of parts into which the unit of a process that died is divided. More parts find the split after fewer deaths,
and make more and smaller units."""
ENDS_MAX = 256
"""Bound on the processes lost in the search for the failing splits of a batch; one more loss fails the batch. A higher
value finds more failing splits, and costs more starts of processes."""
ENDS_WITHOUT_SUCCESS_MAX = 16
"""Bound on the processes lost before a unit succeeds; each success allows `ENDS_PER_SUCCESS` more. Higher values find
more splits that kill their process, and take longer to notice that all splits do."""
ENDS_PER_SUCCESS = 4


class UnitEnd(Enum):
    """The way in which a unit failed. `RAISED`: by an error. `DIED`: its process ended. `HUNG`: it took too long."""

    RAISED = "raised"
    DIED = "died"
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class UnitFailure:
    """The reason why a unit failed, and the split that it was reading then; None: the split is not known."""

    reason: str
    end: UnitEnd = UnitEnd.RAISED
    split: SplitName | None = None


@dataclass(frozen=True, slots=True)
class SplitUnit:
    """A unit of a branch, described by its splits. `first`: the original unit from which its reads come."""

    unit: int
    leg: int
    splits: tuple[SplitName, ...]
    first: int


class Isolation:
    """The rules for a batch. `units` are the units that ran first."""

    def __init__(self, units: Iterable[SplitUnit]) -> None:
        self._running = {each.unit: each for each in units}
        self._good: dict[int, SplitUnit] = {}
        self._next = max(self._running, default=-1) + 1
        self._died_alone: set[tuple[int, SplitName]] = set()
        """Splits, by leg, whose process died while they were read alone. A second death in a row counts as their
        failure."""
        self.ends = self._successes = 0
        self.failed: dict[SplitName, str] = {}
        """Splits that failed when they were read alone, with the reason."""

    @property
    def counted(self) -> frozenset[int]:
        """Units whose results count, once no unit is left to run."""
        return frozenset(self._good)

    @property
    def is_storm(self) -> bool:
        """True if so many processes were lost with their units that no split is to blame."""
        return self.ends > min(ENDS_MAX, ENDS_WITHOUT_SUCCESS_MAX + ENDS_PER_SUCCESS * self._successes)

    def handle(self, failed: Mapping[int, UnitFailure]) -> list[SplitUnit]:
        """Handle the failures of the units that ran last; all others succeeded. Returns the units to run next; if there
        are none, all failed splits are isolated.
        """
        ran, self._running = self._running, {}
        succeeded = {number: each for number, each in ran.items() if number not in failed}
        self._good |= succeeded
        self._successes += len(succeeded)
        self.ends += sum(failure.end is not UnitEnd.RAISED for failure in failed.values())
        for number, failure in failed.items():
            self._blame(ran[number], failure)
        for number, failure in failed.items():
            self._divide(ran[number], failure)
        for each in [each for each in self._good.values() if not self.failed.keys().isdisjoint(each.splits)]:
            del self._good[each.unit]
            self._run(each, self._healthy(each))
        return list(self._running.values())

    def _blame(self, unit: SplitUnit, failure: UnitFailure) -> None:
        """Note the split that has certainly failed, if the failure shows one."""
        if failure.end is UnitEnd.HUNG and failure.split in unit.splits:
            assert failure.split is not None
            self.failed.setdefault(failure.split, failure.reason)
        if len(unit.splits) > 1:
            return
        alone = (unit.leg, unit.splits[0])
        if failure.end is UnitEnd.DIED and alone not in self._died_alone:
            self._died_alone.add(alone)
        else:
            self.failed.setdefault(unit.splits[0], failure.reason)

    def _divide(self, unit: SplitUnit, failure: UnitFailure) -> None:
        splits = self._healthy(unit)
        if failure.split in splits and failure.end is UnitEnd.RAISED and len(splits) > 1:
            self._run(unit, (failure.split,))
            splits = tuple(split for split in splits if split != failure.split)
        parts = DEATH_PARTS if failure.end is UnitEnd.DIED else HALVES
        size = -(-len(splits) // parts) or 1
        for first in range(0, len(splits), size):
            self._run(unit, splits[first : first + size])

    def _healthy(self, unit: SplitUnit) -> tuple[SplitName, ...]:
        return tuple(split for split in unit.splits if split not in self.failed)

    def _run(self, unit: SplitUnit, splits: tuple[SplitName, ...]) -> None:
        if splits:
            self._running[self._next] = SplitUnit(self._next, unit.leg, splits, unit.first)
            self._next += 1
