"""Simulated jobs whose machines go after a notice: each row counts once, and each job comes to its end."""

import pytest
from simulation_leaving import leaving
from simulation_run import simulate

QUICK = [4, 5]
"""Seeds that take little time, and in which machines go."""


@pytest.mark.parametrize("seed", QUICK)
def test_jobs_balance_whenever_machines_go(seed):
    assert simulate(seed, leaving).notices > 0, "no machine was to go, so that nothing was shown"


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(3), *range(100, 200)])
def test_many_jobs_balance_whenever_machines_go(seed):
    simulate(seed, leaving)
