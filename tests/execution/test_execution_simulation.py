"""The real execution machine in a random world.

A failing seed is printed; HOLDFAST_SEED=n replays it, HOLDFAST_SEEDS=n runs the first n.
"""

import os
from collections import Counter

import pytest
from execution_world import World

SEEDS = (
    [int(os.environ["HOLDFAST_SEED"])]
    if "HOLDFAST_SEED" in os.environ
    else list(range(int(os.environ.get("HOLDFAST_SEEDS", "160"))))
)
SEEDS_A_TEST = 40
QUICK = 40
"""Seeds that run in `make test`; the others run in `make test-long`."""


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SEEDS[i : i + SEEDS_A_TEST], marks=() if i < QUICK else pytest.mark.long, id=f"from {SEEDS[i]}")
        for i in range(0, len(SEEDS), SEEDS_A_TEST)
    ],
)
def test_one_work_at_a_time_goes_on_from_where_the_last_one_ended_and_every_storm_ends(seeds: list[int]) -> None:
    ends: Counter[str] = Counter()
    commits = restarts = 0
    for seed in seeds:
        print(f"HOLDFAST_SEED={seed}")
        world = World(seed)
        world.run()
        assert world.ended is not None
        ends[type(world.ended.error).__name__] += 1
        commits += world.commits
        restarts += world.restarts
    print(ends, commits, restarts)
    if len(seeds) == SEEDS_A_TEST:
        assert commits > 100 * len(seeds), "the worlds were too hostile to show anything"
        assert restarts > len(seeds), "the worlds were too calm to show anything"
        assert {"NoneType", "RestartsExhausted", "Fenced"} <= ends.keys(), "some ends never came"
