"""Cyclic garbage goes by time, however few objects it consists of; Python's own search is as before afterwards."""

import gc
import itertools
import weakref
from collections.abc import Iterator

import pytest

from holdfast.clock import ManualClock
from holdfast.taskmanager.process_memory import (
    COLLECT_AFTER,
    PAUSE_S_MIN,
    SETTLE_GROWTH,
    WORK_S_MIN,
    GarbageCollection,
    kept_and_mapped,
)


@pytest.fixture(scope="module", autouse=True)
def collected_tests_are_out_of_sight_again() -> Iterator[None]:
    """Hide them anew from Python's search: each test here has shown them to it."""
    yield
    gc.freeze()


class Knot:
    def __init__(self) -> None:
        self.me = self


def test_a_cycle_is_let_go_when_it_is_time_and_the_threshold_is_back_in_the_end():
    usual, clock = gc.get_threshold(), ManualClock()
    with GarbageCollection(clock, itertools.count().__next__) as garbage:
        assert gc.get_threshold() == COLLECT_AFTER
        knot = weakref.ref(Knot())
        garbage.tick()
        assert knot() is not None
        clock.advance(PAUSE_S_MIN)
        garbage.tick()
        assert knot() is None
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() == 0


def test_what_is_there_at_the_first_look_is_not_gone_through_again_until_the_tenth_lets_go_of_it():
    clock = ManualClock()
    with GarbageCollection(clock, itertools.count().__next__) as garbage:
        old = Knot()
        look(garbage, clock)
        knot = weakref.ref(old)
        del old
        for _ in range(SETTLE_GROWTH - 2):
            look(garbage, clock)
            assert knot() is not None
        look(garbage, clock)
        assert knot() is None
    assert gc.get_freeze_count() == 0


def test_a_process_without_work_is_not_searched_however_much_time_passes():
    clock, worked_s = ManualClock(), [0.0]
    with GarbageCollection(clock, lambda: worked_s[0]) as garbage:
        knot = weakref.ref(Knot())
        for _ in range(100):
            look(garbage, clock)
        assert knot() is not None
        worked_s[0] += WORK_S_MIN
        garbage.tick()
        assert knot() is None


def look(garbage: GarbageCollection, clock: ManualClock) -> None:
    clock.advance(PAUSE_S_MIN)
    garbage.tick()


def test_a_process_of_little_memory_keeps_little_of_what_was_freed():
    mebibyte = 1 << 20
    assert kept_and_mapped(64 * mebibyte) == (16 * mebibyte, 4 * mebibyte)
    assert kept_and_mapped(1024 * mebibyte) == kept_and_mapped(64 * 1024 * mebibyte) == (256 * mebibyte, 32 * mebibyte)
