"""Lives of jobs that go on without lost TaskManagers: every row is counted, or said to be lost, at each checkpoint."""

import os

import pytest
from simulation_run import simulate_dropping

SEEDS = range(6) if "HOLDFAST_SEED" not in os.environ else [int(os.environ["HOLDFAST_SEED"])]


@pytest.mark.timeout(300)
def test_rows_in_are_rows_counted_and_rows_said_to_be_lost() -> None:
    losses = restored = 0
    for seed in SEEDS:
        print(f"HOLDFAST_SEED={seed}")
        world = simulate_dropping(seed)
        query = world.starts[-1].query
        losses += 0 if query is None else len(query.losses)
        restored += world.restored
    if len(SEEDS) > 1:
        assert losses and restored, "nothing was lost, so that nothing was shown"


def test_broadcast_state_is_the_same_everywhere_in_a_job_that_drops() -> None:
    """All batches change it, so that nobody joins: everybody goes back, and nothing is lost."""
    kills = 0
    for seed in range(2):
        query = simulate_dropping(seed, ruled=True).starts[-1].query
        assert query is not None and not query.losses
        kills += len(query.restarts)
    assert kills, "nobody was lost, so that nothing was shown"


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(100, 500, 50))
def test_rows_in_are_rows_counted_and_rows_said_to_be_lost_in_many_lives(first: int) -> None:
    for seed in range(first, first + 50):
        print(f"HOLDFAST_SEED={seed}")
        simulate_dropping(seed)
