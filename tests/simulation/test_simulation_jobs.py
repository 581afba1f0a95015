"""Whole jobs, simulated to the last step: whatever happens to processes, network and store, counts balance, output is
there exactly once, nothing that is needed goes, and nothing else stays.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import pytest
from simulation_run import failing, simulate
from simulation_settings import STRUCK, keeping
from simulation_sizes import small_first

from pinned_seeds import PinnedSeeds

SEEDS_MORE = 2_000
SEEDS_LONG = 20_000
GROUP = 50
PINNED = PinnedSeeds("turns of failpoints")
"""Turns of failpoints (see `draw`) in which each was struck in a short job."""


def others(strike: int) -> Iterator[int]:
    """Yield the seeds that have a failpoint's turn."""
    yield from small_first(range(strike, SEEDS_MORE, len(STRUCK)))


@pytest.mark.parametrize("strike", range(len(STRUCK)), ids=STRUCK)
def test_jobs_balance_whatever_happens_to_them(strike: int) -> None:
    """Each failpoint has a seed in which a process crashes there: where few come there, more are drawn."""
    name, came = STRUCK[strike], False
    for seed in chain([strike + PINNED.first(name) * len(STRUCK)], others(strike)):
        world = simulate(seed)
        came = came or name in world.struck
        if name in world.struck and PINNED.found(name, seed // len(STRUCK), len(world.runtime.trace)):
            break
    assert came, "no seed came to crash there"


@pytest.mark.long
def test_a_start_that_was_suspended_may_end_for_an_outage_that_began_with_a_later_start() -> None:
    simulate(8000949)


@pytest.mark.long
def test_entries_of_a_list_that_came_in_several_batches_outlast_two_deaths() -> None:
    simulate(369)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_twenty_thousand_jobs_balance_whatever_happens_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Half an hour or more on two cores: each group that is done is a dot, each that failed is printed at once."""
    groups = [range(first, first + GROUP) for first in range(0, SEEDS_LONG, GROUP)]
    # Not a ProcessPoolExecutor, which with `max_tasks_per_child` waits for ever now and then (CPython 3.11).
    failed = 0
    with get_context("spawn").Pool(maxtasksperchild=20) as pool, capsys.disabled():
        for found in pool.imap_unordered(failing, groups):
            failed += len(found)
            print("".join(f"\n{text}\n" for text in found) or ".", end="", flush=True)
    assert not failed, f"{failed} seeds failed"


def test_seeds_are_replayed_to_the_last_step() -> None:
    """Replay also in another process, where sets have another order. In a seed a TaskManager dies amid copies."""
    drawn = {"keeping:3": simulate(3, keeping), "keeping:10": simulate(10, keeping)}
    traces = "\n".join(line for world in drawn.values() for line in world.runtime.trace)
    script = str(Path(__file__).with_name("simulation_run.py"))
    again = subprocess.run(
        [sys.executable, script, *drawn],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert hashlib.sha256(again.stdout.strip().encode()).digest() == hashlib.sha256(traces.strip().encode()).digest()
