"""Isolation of failing splits, for many layouts of units: the splits that fail are found, and no others."""

import random
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from holdfast.execution.failing import FailingSplits
from holdfast.execution.isolation import DEATH_PARTS, Isolation, SplitName, SplitUnit, UnitEnd, UnitFailure
from holdfast.settings import FailoverConfig, RegionConfig

ROUNDS_MAX = 100


def laid_out(chance: random.Random, splits: list[SplitName], legs: int) -> list[SplitUnit]:
    units: list[SplitUnit] = []
    for leg in range(legs):
        left = list(splits)
        while left:
            size = chance.randint(1, len(left))
            units.append(SplitUnit(len(units), leg, tuple(left[:size]), len(units)))
            left = left[size:]
    return units


def how_it_failed(chance: random.Random, unit: SplitUnit, bad: list[SplitName]) -> UnitFailure:
    """An error names a split, at times a wrong split; a dead process names none; a hanging process names the first bad
    split, or nothing."""
    end = chance.choice(list(UnitEnd))
    if end is UnitEnd.HUNG:
        return UnitFailure("hangs", end, chance.choice([bad[0], None]))
    return UnitFailure("is bad", end, chance.choice([*unit.splits, None]) if end is UnitEnd.RAISED else None)


def search(seed: int) -> None:
    """Look for the bad splits of a seed, and check which splits count at the end."""
    chance = random.Random(seed)
    splits = [("numbers", str(number)) for number in range(chance.randint(1, 20))]
    legs = chance.randint(1, 3)
    bad = {(chance.randrange(legs), split) for split in splits if chance.random() < 0.2}
    units = laid_out(chance, splits, legs)
    rules = Isolation(units)
    ran = {unit.unit: unit for unit in units}
    for _ in range(ROUNDS_MAX):
        found = {each.unit: [split for split in each.splits if (each.leg, split) in bad] for each in units}
        failed = {each.unit: how_it_failed(chance, each, found[each.unit]) for each in units if found[each.unit]}
        units = rules.handle(failed)
        if not units:
            break
        assert not ran.keys() & {unit.unit for unit in units}
        ran |= {unit.unit: unit for unit in units}
    assert not units
    assert rules.failed.keys() == {split for _, split in bad}
    counted = [(ran[unit].leg, split) for unit in rules.counted for split in ran[unit].splits]
    assert sorted(counted) == [
        (leg, each) for leg in range(legs) for each in sorted(splits) if each not in rules.failed
    ]


@pytest.mark.parametrize("seed", range(200))
def test_healthy_splits_count_once_for_each_leg_and_failed_splits_never(seed: int):
    search(seed)


def numbers(count: int) -> tuple[SplitName, ...]:
    return tuple(("numbers", str(number)) for number in range(count))


def test_a_unit_that_failed_without_cause_loses_no_split():
    splits = numbers(4)
    rules = Isolation([SplitUnit(0, 0, splits, 0)])
    halves = rules.handle({0: UnitFailure("was interrupted")})
    assert [each.splits for each in halves] == [splits[:2], splits[2:]]
    assert rules.handle({}) == []
    assert not rules.failed
    assert rules.counted == {1, 2}


def test_the_split_that_an_error_names_runs_alone_and_the_others_by_halves():
    splits = numbers(5)
    rules = Isolation([SplitUnit(0, 0, splits, 0)])
    again = rules.handle({0: UnitFailure("is bad", split=splits[1])})
    assert [each.splits for each in again] == [splits[1:2], (splits[0], splits[2]), splits[3:]]
    assert rules.handle({again[0].unit: UnitFailure("is bad", split=splits[1])}) == []
    assert rules.failed == {splits[1]: "is bad"}


def test_the_split_at_which_a_process_hung_has_failed_at_once():
    splits = numbers(5)
    rules = Isolation([SplitUnit(0, 0, splits, 0)])
    again = rules.handle({0: UnitFailure("hangs", UnitEnd.HUNG, splits[3])})
    assert rules.failed == {splits[3]: "hangs"}
    assert [each.splits for each in again] == [splits[:2], (splits[2], splits[4])]


def test_a_split_that_ends_its_process_is_found_after_few_deaths_and_tried_twice_alone():
    splits = numbers(DEATH_PARTS * DEATH_PARTS)
    rules = Isolation([SplitUnit(0, 0, splits, 0)])
    units, sizes = [SplitUnit(0, 0, splits, 0)], []
    while units:
        killing = [each for each in units if splits[77] in each.splits]
        sizes.append(len(killing[0].splits))
        units = rules.handle({each.unit: UnitFailure("exited", UnitEnd.DIED) for each in killing})
    assert sizes == [len(splits), DEATH_PARTS, 1, 1]
    assert rules.failed == {splits[77]: "exited"}
    assert rules.ends == len(sizes)


def test_a_split_whose_process_died_once_has_not_failed():
    rules = Isolation([SplitUnit(0, 0, numbers(1), 0)])
    [again] = rules.handle({0: UnitFailure("was killed", UnitEnd.DIED)})
    assert rules.handle({}) == []
    assert not rules.failed
    assert rules.counted == {again.unit}


def test_processes_that_end_with_every_unit_are_a_storm_and_no_split_is_blamed():
    units = [SplitUnit(number, 0, (split,), number) for number, split in enumerate(numbers(40))]
    rules, rounds = Isolation(units), 0
    while not rules.is_storm:
        units = rules.handle({each.unit: UnitFailure("exited", UnitEnd.DIED) for each in units})
        rounds += 1
    assert (rounds, rules.failed) == (1, {})


def test_a_few_processes_that_end_among_many_units_are_no_storm():
    units = [SplitUnit(number, 0, (split,), number) for number, split in enumerate(numbers(40))]
    rules = Isolation(units)
    for _ in range(2):
        units = rules.handle({each.unit: UnitFailure("exited", UnitEnd.DIED) for each in units[:20]})
    assert not units and not rules.is_storm
    assert len(rules.failed) == 20


def _keeps_results_with_a_failed_split() -> Any:
    def handle(self: Isolation, failed: Any) -> Any:
        ran, self._running = self._running, {}
        self._good |= {number: each for number, each in ran.items() if number not in failed}
        for number, failure in failed.items():
            self._blame(ran[number], failure)
            self._divide(ran[number], failure)
        return list(self._running.values())

    return mock.patch.object(Isolation, "handle", handle)


def _forgets_the_second_half() -> Any:
    before = Isolation._divide

    def divide(self: Isolation, unit: SplitUnit, failure: UnitFailure) -> None:
        before(self, replace(unit, splits=unit.splits[: -(-len(unit.splits) // 2)]), failure)

    return mock.patch.object(Isolation, "_divide", divide)


def _believes_the_split_that_an_error_names() -> Any:
    before = Isolation._blame

    def blame(self: Isolation, unit: SplitUnit, failure: UnitFailure) -> None:
        before(self, unit, replace(failure, end=UnitEnd.HUNG) if failure.split else failure)

    return mock.patch.object(Isolation, "_blame", blame)


def _uses_a_number_again() -> Any:
    def run(self: Isolation, unit: SplitUnit, splits: tuple[SplitName, ...]) -> None:
        if splits:
            self._running[unit.unit] = replace(unit, splits=splits)

    return mock.patch.object(Isolation, "_run", run)


@pytest.mark.parametrize(
    "mutation",
    [
        _keeps_results_with_a_failed_split,
        _forgets_the_second_half,
        _believes_the_split_that_an_error_names,
        _uses_a_number_again,
    ],
    ids=lambda mutation: mutation.__name__.strip("_"),
)
def test_a_rule_of_isolation_that_is_broken_is_found_out(mutation: Any):
    with mutation(), pytest.raises((AssertionError, KeyError)):
        for seed in range(200):
            search(seed)


SPLIT = ("numbers", "3")
FAILOVER = FailoverConfig(backoff_first="1s", backoff_max="4s")


def test_a_failing_split_waits_longer_each_time_and_is_forgotten_once_it_advances():
    splits = FailingSplits(RegionConfig(), FAILOVER, by_attempt=False)
    for attempt, wait_s in enumerate((1.0, 2.0, 4.0, 4.0)):
        splits.committed([SPLIT], {SPLIT: "is offline"}, 10.0 * attempt)
        assert splits.held(10.0 * attempt + wait_s - 0.1) == [SPLIT]
        assert splits.held(10.0 * attempt + wait_s) == []
    splits.committed([SPLIT], {}, 100.0)
    assert not splits.is_waiting


def test_checkpoints_count_only_after_a_new_failure():
    splits = FailingSplits(RegionConfig(max_consecutive_failures=2, on_poison="park"), FAILOVER, by_attempt=False)
    for _ in range(2):
        splits.committed([SPLIT], {SPLIT: "is offline"}, 0.0)
        splits.committed([SPLIT], {SPLIT: "is offline"}, 0.0)
        splits.checkpoint_completed()
        splits.checkpoint_completed()
        assert splits.parked() == []
    assert splits.committed([SPLIT], {SPLIT: "is offline"}, 0.0) == [SPLIT]
    assert splits.held(1e9) == splits.parked() == [SPLIT]
    assert not splits.is_waiting
