"""Whole jobs, simulated, that retain checkpoints, take savepoints, go back to both, and change their settings."""

import contextlib
import io

import pytest
from simulation_invariants import Broken
from simulation_mutations_kept import KEEPING
from simulation_run import simulate
from simulation_runtime import Stalled
from simulation_settings import SAVEPOINTS, keeping
from simulation_settings_calm import calm

from pinned_seeds import PinnedSeeds

SEEDS = range(3, 4)
SEEDS_MORE = 60
SEEDS_LONG = 1_000
SEEDS_CALM = 30
PINNED = PinnedSeeds("broken rules about kept checkpoints")


def test_savepoints_are_whole_and_jobs_that_go_back_balance() -> None:
    """Few jobs that keep checkpoints come to a savepoint, or go back: more seeds are drawn until both were seen."""
    savepoints = jobs_that_went_back = 0
    for seed in range(SEEDS.start, SEEDS_MORE):
        if seed >= SEEDS.stop and savepoints and jobs_that_went_back:
            break
        for world in (simulate(seed, keeping), simulate(seed, calm)):
            savepoints += world.carrying.checked
            jobs_that_went_back += world.carrying.went_back
    assert savepoints > 0, "no savepoint was written"
    assert jobs_that_went_back > 0, "no start went back"


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_thousand_jobs_keep_checkpoints_and_processes_crash_while_they_write_savepoints() -> None:
    struck: set[str] = set()
    for seed in range(SEEDS_LONG):
        struck |= simulate(seed, keeping).struck
    assert struck.issuperset(SAVEPOINTS)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_thousand_small_jobs_keep_checkpoints_in_calm_weather() -> None:
    for seed in range(SEEDS_LONG):
        simulate(seed, calm)


def found_by(name: str, holds_otherwise: bool = True) -> int | None:
    """Return a seed in which an invariant does not hold; None if there is none.

    `holds_otherwise`: the invariants hold there with the rule as it is.
    """
    shown = None
    for seed in [PINNED.first(name), *range(SEEDS_CALM)]:
        try:
            with KEEPING[name](), contextlib.redirect_stdout(io.StringIO()):
                simulate(seed, calm)
        except Broken as broken:
            print(f"{name}: seed {seed}: {broken}")
            if not holds_otherwise:
                return seed
            world, shown = simulate(seed, calm), seed
            if PINNED.found(name, seed, len(world.runtime.trace)):
                break
        except Stalled:
            continue
    return shown


@pytest.mark.parametrize("name", sorted(KEEPING))
def test_a_broken_rule_about_kept_checkpoints_is_found(name: str) -> None:
    assert found_by(name, holds_otherwise=PINNED.writes()) is not None


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(KEEPING))
def test_nothing_is_found_with_the_rule_about_kept_checkpoints_as_it_is(name: str) -> None:
    assert found_by(name) is not None
