"""The real coordinator in a random world.

A failing seed is printed; HOLDFAST_SEED=n replays it, HOLDFAST_SEEDS=n runs the first n.
"""

import os
from unittest import mock

import pytest
from checkpoint_world import World

SEEDS = (
    [int(os.environ["HOLDFAST_SEED"])]
    if "HOLDFAST_SEED" in os.environ
    else list(range(int(os.environ.get("HOLDFAST_SEEDS", "200"))))
)
SEEDS_A_TEST = 25
QUICK = 25
"""Seeds that run in `make test`; the others run in `make test-long`."""


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SEEDS[i : i + SEEDS_A_TEST], marks=() if i < QUICK else pytest.mark.long, id=f"from {SEEDS[i]}")
        for i in range(0, len(SEEDS), SEEDS_A_TEST)
    ],
)
def test_nothing_needed_is_lost_nothing_needless_is_left_and_output_is_published_once(seeds: list[int]) -> None:
    completed = 0
    for seed in seeds:
        print(f"HOLDFAST_SEED={seed}")
        with mock.patch("holdfast.checkpoint.ledger.GATHER_BYTES_MAX", [300, 1_000, 1 << 20][seed % 3]):
            world = World(seed)
            world.run()
        completed += world.completed
    assert completed > 3 * len(seeds), "the worlds were too hostile to show anything"
