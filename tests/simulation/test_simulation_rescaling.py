"""Jobs that get other layouts while they run, through deaths of each party in each step."""

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import msgspec
import pytest
from simulation_invariants import Broken
from simulation_rescaling import PLACES, rescaling, rescaling_drops
from simulation_run import simulate, simulate_dropping
from simulation_runtime import Stalled

from holdfast.followers.subtask import SubtaskFollower
from holdfast.jobmaster.batches.following import Following
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.taskmanager import moving

SEEDS_MAX = 40
QUICK = [20]
"""A seed that takes little time, and in which a layout changes and a process dies meanwhile."""
SEEDS = QUICK if "HOLDFAST_SEED" not in os.environ else [int(os.environ["HOLDFAST_SEED"])]


def _run(seed: int, seen: Counter[str]) -> None:
    print(f"HOLDFAST_SEED={seed}")
    world = simulate(seed, rescaling)
    seen["asked"] += len(world.rescales)
    seen["done"] += sum(each.is_done and each.error is None for each in world.rescales)
    seen.update(world.struck.intersection(PLACES))


@pytest.mark.timeout(300)
def test_each_row_counts_once_however_often_the_layout_changes() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        _run(seed, seen)
    assert SEEDS is not QUICK or seen["done"], "no layout changed, so that nothing was shown"


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(1000, 1200, 40))
def test_each_row_counts_once_in_many_lives_with_rescales(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 40):
        _run(seed, seen)
    assert seen["done"] > 15
    assert seen.keys() & set(PLACES), "no process died in the middle of a rescale"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 140))])
def test_rows_are_counted_or_said_to_be_lost_by_jobs_that_drop_and_are_rescaled(seed: int) -> None:
    print(f"HOLDFAST_SEED={seed}")
    simulate_dropping(seed, drawn=rescaling_drops)


@contextmanager
def _takes_followers_as_they_are() -> Iterator[None]:
    """Hand over before those who gain subtasks have reached the record, and let them apply nothing more."""
    follow = SubtaskFollower.follow

    def as_it_is(self: SubtaskFollower, handles: Any, fetch: Any, whole: Any = None, base: Any = None) -> None:
        if whole is None or self._operator is None:
            follow(self, handles, fetch, whole, base)

    with (
        mock.patch.object(SubtaskFollower, "follow", as_it_is),
        mock.patch.object(Following, "moves_have", lambda self, number: True),
    ):
        yield


@contextmanager
def _looks_for_objects_of_the_dead_at_deployments_alone() -> Iterator[None]:
    tick = Control._tick

    def quiet(self: Control, now_s: float) -> None:
        with mock.patch.object(self, "_look_at_dead", lambda: None):
            tick(self, now_s)

    with mock.patch.object(Control, "_tick", quiet):
        yield


@contextmanager
def _keeps_subtasks_at_another_parallelism() -> Iterator[None]:
    """Subtasks go on under their numbers, whatever their key groups are now."""
    stands = moving._stands_at

    def at_any(hosted: Any, deployment: Any, committed: Any) -> bool:
        return stands(hosted, msgspec.structs.replace(deployment, parallelism=hosted.deployment.parallelism), committed)

    with mock.patch.object(moving, "_stands_at", at_any):
        yield


BROKEN: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "those who gain subtasks reach the record": (_takes_followers_as_they_are, list(range(SEEDS_MAX))),
    "key groups differ with the parallelism": (_keeps_subtasks_at_another_parallelism, list(range(SEEDS_MAX))),
    "objects of those who left are looked for": (_looks_for_objects_of_the_dead_at_deployments_alone, [120]),
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_of_rescales_that_is_broken_is_found(rule: str) -> None:
    broken, seeds = BROKEN[rule]
    for seed in seeds:
        try:
            with broken(), contextlib.redirect_stdout(io.StringIO()):
                simulate(seed, rescaling)
        except Broken as found:
            print(f"{rule}: seed {seed}: {found}")
            return
        except Stalled:
            continue
    pytest.fail("no invariant was broken")
