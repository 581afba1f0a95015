"""Jobs whose standbys follow: each follower holds the owner's state at each checkpoint, and may take over."""

import os
from collections import Counter
from typing import Any
from unittest import mock

import pytest
from simulation_invariants import Broken
from simulation_run import simulate
from simulation_settings import following

from holdfast.followers.follower import Follower
from holdfast.recovery import restore
from holdfast.recovery.continuation import continuation

SEEDS_MAX = 30
SEEDS = range(1) if "HOLDFAST_SEED" not in os.environ else [int(os.environ["HOLDFAST_SEED"])]

_take = Follower.take


def _run(seed: int, seen: Counter[str]) -> None:
    def take(self: Follower) -> Any:
        seen["took over"] += self.followed.number is not None
        seen["applied pieces"] += self.followed.made_anew == len(self._subtasks) and self.followed.bytes_read > 0
        return _take(self)

    print(f"HOLDFAST_SEED={seed}")
    with mock.patch.object(Follower, "take", take):
        simulate(seed, following)


@pytest.mark.timeout(300)
def test_a_follower_holds_the_state_of_each_checkpoint_and_takes_over() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS if len(SEEDS) == 1 else range(SEEDS_MAX):
        if seen["took over"] and seed not in SEEDS:
            break
        _run(seed, seen)
    assert len(SEEDS) == 1 or seen["took over"], "no follower took over, so that nothing was shown"


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(100, 500, 50))
def test_followers_hold_the_state_of_each_checkpoint_in_many_lives(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 50):
        _run(seed, seen)
    assert seen["took over"] > 5


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_follower_that_leaves_a_new_piece_out_is_found() -> None:
    def leaves_out(held: Any, new: Any) -> Any:
        found = continuation(held, new)
        return found and found[1:]

    with mock.patch.object(restore, "continuation", leaves_out), pytest.raises(Broken, match="as of record"):
        for seed in range(SEEDS_MAX):
            _run(seed, Counter())
