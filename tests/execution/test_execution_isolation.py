"""Isolation of failing splits, for many layouts of units: the splits that fail are found, and no others."""

import random

import pytest

from holdfast.execution.failing import FailingSplits
from holdfast.execution.isolation import Isolation, SplitName, SplitUnit
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


@pytest.mark.parametrize("seed", range(200))
def test_healthy_splits_count_once_for_each_leg_and_failed_splits_never(seed: int):
    chance = random.Random(seed)
    splits = [("numbers", str(number)) for number in range(chance.randint(1, 20))]
    legs = chance.randint(1, 3)
    bad = {(chance.randrange(legs), split) for split in splits if chance.random() < 0.2}
    units = laid_out(chance, splits, legs)
    rules = Isolation(units)
    ran = {unit.unit: unit for unit in units}
    for _ in range(ROUNDS_MAX):
        failed = {each.unit: "is bad" for each in units if any((each.leg, split) in bad for split in each.splits)}
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


def test_a_unit_that_failed_without_cause_loses_no_split():
    splits = tuple(("numbers", str(number)) for number in range(4))
    rules = Isolation([SplitUnit(0, 0, splits, 0)])
    halves = rules.handle({0: "was interrupted"})
    assert [each.splits for each in halves] == [splits[:2], splits[2:]]
    assert rules.handle({}) == []
    assert not rules.failed
    assert rules.counted == {1, 2}


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
        assert splits.checkpoint_completed() == splits.checkpoint_completed() == []
    splits.committed([SPLIT], {SPLIT: "is offline"}, 0.0)
    assert splits.checkpoint_completed() == [SPLIT]
    assert splits.held(1e9) == splits.parked() == [SPLIT]
    assert not splits.is_waiting
