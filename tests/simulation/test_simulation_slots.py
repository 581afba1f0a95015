"""Simulated jobs whose executors go, so that fewer slots than senders are left: no unit and no TaskManager waits."""

from unittest import mock

import pytest
from simulation_invariants import Broken
from simulation_run import simulate
from simulation_slots import shrinking

from holdfast.jobmaster.processes.senders import Senders

STOOD_STILL = 23
"""A seed in which all senders leave while units go as a short job, and come again in all slots that are left."""


@pytest.mark.parametrize("seed", [STOOD_STILL, 37])
def test_jobs_balance_and_no_unit_waits_for_a_slot_whatever_executors_go(seed):
    simulate(seed, shrinking)


def test_a_job_whose_senders_keep_their_slots_stands_still():
    with mock.patch.object(Senders, "_units_may_wait", lambda self: False), pytest.raises(Broken, match="was awaited"):
        simulate(STOOD_STILL, shrinking)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_jobs_balance_and_no_unit_waits_for_a_slot_whatever_executors_go(seed):
    simulate(seed, shrinking)
