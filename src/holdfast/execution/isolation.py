"""Isolation of the splits that fail a level: pure rules, `Isolation.handle(failed) -> units to run next`.

    unit fails ──halves──► … ──► a unit of one split fails: the split has failed
                                        │
    units that hold other splits as well ◄── run again without it; their first results count no more

A unit's output mixes its splits, and a source that several branches read has units on each of them. So a split that
fails on one branch is taken out of all of them: either all of its rows of this batch are staged, or none.

Invariants
- At the end, the units that count hold each split that has not failed once for each branch, and no failed split.
- Numbers of units are never used twice within a batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SplitName = tuple[str, str]
"""A source, and one of its splits."""


@dataclass(frozen=True, slots=True)
class SplitUnit:
    """A unit by the splits that it reads, for one branch. `first`: the first unit from which its reads come."""

    unit: int
    leg: int
    splits: tuple[SplitName, ...]
    first: int


class Isolation:
    """The rules for one batch. `units` are the units that ran first."""

    def __init__(self, units: Iterable[SplitUnit]) -> None:
        self._running = {each.unit: each for each in units}
        self._good: dict[int, SplitUnit] = {}
        self._next = max(self._running, default=-1) + 1
        self.failed: dict[SplitName, str] = {}
        """Splits that failed alone, with the reason."""

    @property
    def counted(self) -> frozenset[int]:
        """Units whose results count, once nothing is left to run."""
        return frozenset(self._good)

    def handle(self, failed: Mapping[int, str]) -> list[SplitUnit]:
        """Take in the reasons of the units that failed, of those that ran last; the others succeeded.

        Returns the units to run next; none: the failed splits stand alone.
        """
        ran, self._running = self._running, {}
        self._good |= {number: each for number, each in ran.items() if number not in failed}
        broken = [ran[number] for number in failed]
        for each in broken:
            if len(each.splits) == 1:
                self.failed.setdefault(each.splits[0], failed[each.unit])
        for each in broken:
            self._halve(each)
        for each in [each for each in self._good.values() if not self.failed.keys().isdisjoint(each.splits)]:
            del self._good[each.unit]
            self._run(each, self._healthy(each))
        return list(self._running.values())

    def _halve(self, unit: SplitUnit) -> None:
        splits = self._healthy(unit)
        middle = -(-len(splits) // 2) if len(splits) == len(unit.splits) else len(splits)
        self._run(unit, splits[:middle])
        self._run(unit, splits[middle:])

    def _healthy(self, unit: SplitUnit) -> tuple[SplitName, ...]:
        return tuple(split for split in unit.splits if split not in self.failed)

    def _run(self, unit: SplitUnit, splits: tuple[SplitName, ...]) -> None:
        if splits:
            self._running[self._next] = SplitUnit(self._next, unit.leg, splits, unit.first)
            self._next += 1
