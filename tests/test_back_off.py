"""Pauses between attempts, and numbers of units: rules that many rooms share."""

import math

import pytest

from holdfast.back_off import doubled_s
from holdfast.ids import OPERATORS, PARTITIONS_MAX, UNITS_MAX, UnitNumber, of_partition


@pytest.mark.parametrize(
    ("failures", "pause_s"), [(1, 0.1), (2, 0.2), (6, 3.2), (7, 5.0), (10**6, 5.0)], ids=lambda value: f"{value}"
)
def test_a_pause_doubles_up_to_its_bound(failures: int, pause_s: float) -> None:
    assert doubled_s(0.1, failures, 5.0) == pytest.approx(pause_s)


def test_a_pause_without_a_bound_stays_finite() -> None:
    assert math.isfinite(doubled_s(0.1, 10**6))


def test_numbers_of_the_units_of_a_batch_do_not_meet() -> None:
    last = of_partition(UNITS_MAX // PARTITIONS_MAX - 1, PARTITIONS_MAX - 1)
    assert last == UNITS_MAX - 1
    numbers = [UnitNumber(level, unit).in_batch for level in range(9) for unit in (0, 1, last)]
    of_operators = [UnitNumber(level, OPERATORS).in_batch for level in range(1, 9)]
    assert len({*numbers, *of_operators}) == len(numbers) + len(of_operators)
