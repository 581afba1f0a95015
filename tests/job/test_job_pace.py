"""When a batch begins."""

import pytest

from holdfast.jobmaster.master import batch_due_in_s


def under_way(within_s: float) -> bool:
    return True


def far(within_s: float) -> bool:
    return False


def due_in(seconds: float):
    return lambda within_s: seconds < within_s


@pytest.mark.parametrize(
    ("interval_s", "checkpoint", "after_s"),
    [(0.0, far, 0.0), (0.0, under_way, 0.0), (0.1, far, 0.1), (0.1, under_way, 0.12), (10.0, under_way, 10.05)],
)
def test_a_batch_waits_for_its_interval_and_a_little_longer_for_a_checkpoint(interval_s, checkpoint, after_s):
    assert batch_due_in_s(0.0, interval_s, checkpoint) == pytest.approx(after_s)
    assert batch_due_in_s(after_s + 1.0, interval_s, checkpoint) == pytest.approx(-1.0)


@pytest.mark.parametrize(("checkpoint_in_s", "begins_in_s"), [(0.0, 0.03), (0.02, 0.03), (0.04, 0.01)])
def test_it_also_waits_for_one_that_would_begin_while_it_may_still_wait(checkpoint_in_s, begins_in_s):
    assert batch_due_in_s(0.09, 0.1, due_in(checkpoint_in_s)) == pytest.approx(begins_in_s)


def test_the_first_batch_is_due_at_once():
    assert batch_due_in_s(float("inf"), 10.0, under_way) <= 0
