"""Isolation of failing splits: units run again in smaller parts. The rules are in `execution.isolation`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.errors import SenderHung, SenderLost, StorageError
from holdfast.exchange.task import UnitResult
from holdfast.execution import reactions
from holdfast.execution.isolation import Isolation, SplitName, SplitUnit, UnitEnd, UnitFailure
from holdfast.execution.reactions import Reaction
from holdfast.failure import failure_of
from holdfast.graph.plan import Plan, Unit
from holdfast.graph.program import Program, SourceOrigin
from holdfast.graph.regions import regions_of
from holdfast.ids import UNITS_MAX
from holdfast.printable import logger
from holdfast.settings import RegionConfig

log = logger(__name__)

ENDS: dict[type[Exception], UnitEnd] = {SenderLost: UnitEnd.DIED, SenderHung: UnitEnd.HUNG}
"""The way in which a unit failed, by its error; any other error was raised by the unit itself."""

ISOLATED = (Reaction.LEAVE, Reaction.RETRY)
"""Reactions to errors that may come from a split. After any other error, the batch is undone or the query ends."""


Run = Callable[[list[Unit]], list[UnitResult]]


@dataclass
class Isolated:
    """Results of a level. `failed`: the splits that are left out of `counted`; none if the complete level fails."""

    counted: list[UnitResult]
    superseded: list[UnitResult] = field(default_factory=list)
    """Results of units that ran again without a failed split."""
    failed: dict[SplitName, str] = field(default_factory=dict)


class Isolator:
    """Isolates the failing splits of a job's batches, within the limits of its settings."""

    def __init__(self, program: Program, config: RegionConfig) -> None:
        self._program = program
        self._regions = regions_of(program).by_split
        self._max_failed_ratio = config.max_failed_ratio

    def run(self, plan: Plan, units: list[Unit], run: Run) -> Isolated:
        """Run units, and run units with failed splits again in parts. Without failures, or beyond the limits, nothing
        is isolated."""
        results = self._each(units, run)
        if not self._may_be_a_split(results):
            return Isolated(results)
        first = {unit.unit: unit for unit in units}
        rules = Isolation([self._named(unit) for unit in units])
        found = list(results)
        while self._may_isolate(results):
            again = rules.handle({each.unit: self._failure_of(each) for each in results if each.failure is not None})
            is_too_much = self._are_too_many(len(rules.failed), plan) or rules.is_storm
            if is_too_much or any(each.unit >= UNITS_MAX for each in again):
                break
            if not again:
                good = rules.counted
                counted = [each for each in found if each.unit in good]
                return Isolated(counted, [each for each in found if each.unit not in good], rules.failed)
            results = self._each([_again(first[each.first], each) for each in again], run)
            found += results
        return Isolated(found)

    def _each(self, units: list[Unit], run: Run) -> list[UnitResult]:
        """Run units. If they fail together, as tasks of a Spark job do, run each of them singly."""
        try:
            return run(units)
        except Exception as error:
            if reactions.to_batch(error) not in ISOLATED:
                raise
            if len(units) == 1:
                [unit] = units
                return [UnitResult(unit.unit, unit.leg, "", failure=failure_of(error))]
        return [result for unit in units for result in self._each([unit], run)]

    @staticmethod
    def _may_be_a_split(results: list[UnitResult]) -> bool:
        """True if units failed, and not all of them because the store was unreachable."""
        failures = [result.failure for result in results if result.failure is not None]
        is_outage = len(failures) == len(results) and all(isinstance(each.error(), StorageError) for each in failures)
        return bool(failures) and not is_outage

    def _may_isolate(self, results: list[UnitResult]) -> bool:
        """True if a split may have caused each failure, in a source whose splits are regions."""
        for result in results:
            origin = self._program.legs[result.leg].origin
            if result.failure is not None and (
                not isinstance(origin, SourceOrigin)
                or origin.source not in self._regions
                or reactions.to_batch(result.failure.error()) not in ISOLATED
            ):
                return False
        return True

    def _failure_of(self, result: UnitResult) -> UnitFailure:
        failure, origin = result.failure, self._program.legs[result.leg].origin
        assert failure is not None and isinstance(origin, SourceOrigin)
        split = (origin.source, failure.split) if failure.split else None
        return UnitFailure(failure.message, ENDS.get(type(failure.error()), UnitEnd.RAISED), split)

    def _are_too_many(self, failed: int, plan: Plan) -> bool:
        """True if more of the job's regions fail or are stopped than the limits allow."""
        regions = sum(len(self._program.sources[name].positions_of_splits(plan.to[name])) for name in self._regions)
        if failed + plan.standing <= math.floor(self._max_failed_ratio * regions):
            return False
        log.warning(
            "batch %d fails for all splits: %d failed in it and %d have failed since earlier batches, of %d; "
            "max_failed_ratio=%s allows no more",
            plan.batch,
            failed,
            plan.standing,
            regions,
            self._max_failed_ratio,
        )
        return True

    def _named(self, unit: Unit) -> SplitUnit:
        origin = self._program.legs[unit.leg].origin
        assert isinstance(origin, SourceOrigin)
        splits = dict.fromkeys((origin.source, read.split) for read in unit.reads)
        return SplitUnit(unit.unit, unit.leg, tuple(splits), unit.unit)


def _again(first: Unit, named: SplitUnit) -> Unit:
    """Make a unit of the reads in `first` that belong to the splits in `named`."""
    splits = {split for _, split in named.splits}
    return Unit(named.unit, named.leg, reads=[read for read in first.reads if read.split in splits])
