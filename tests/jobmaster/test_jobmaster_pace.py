"""When a batch begins."""

import pytest

from holdfast.jobmaster.batches.pace import batch_due_in_s, idle_wait_s
from holdfast.jobmaster.loops.rule_loop import RESTING_AFTER_S, RESTING_TICK_S, tick_s


@pytest.mark.parametrize(
    ("interval_s", "under_way", "after_s"),
    [(0.0, False, 0.0), (0.0, True, 0.0), (0.1, False, 0.1), (0.1, True, 0.12), (10.0, True, 10.05)],
)
def test_a_batch_waits_for_its_interval_and_a_little_longer_for_a_checkpoint(interval_s, under_way, after_s):
    assert batch_due_in_s(0.0, interval_s, under_way) == pytest.approx(after_s)
    assert batch_due_in_s(after_s + 1.0, interval_s, under_way) == pytest.approx(-1.0)


def test_the_first_batch_is_due_at_once():
    assert batch_due_in_s(float("inf"), 10.0, True) <= 0


@pytest.mark.parametrize(
    ("since_s", "wait_s"), [(0.0, 0.01), (0.4, 0.01), (1.0, 0.02), (5.0, 0.1), (60.0, 0.25), (1e9, 0.25)]
)
def test_sources_that_rest_are_looked_at_less_often(since_s, wait_s):
    assert idle_wait_s(since_s) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("usual_s", "since_s", "wait_s"),
    [(0.1, 0.0, 0.1), (0.1, RESTING_AFTER_S, RESTING_TICK_S), (0.1, 1e9, RESTING_TICK_S), (1.0, 1e9, 1.0)],
)
def test_a_loop_without_news_looks_at_its_timers_less_often(usual_s, since_s, wait_s):
    assert tick_s(usual_s, since_s) == wait_s
