"""Lives of jobs that go on without lost TaskManagers: every row is counted, or said to be lost, at each checkpoint."""

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from simulation_invariants import Broken
from simulation_run import simulate_dropping
from simulation_runtime import Stalled

from holdfast.checkpoint.missing import RecordedParts
from holdfast.jobmaster.batches.losses import CommittedRows, LossLedger
from pinned_seeds import PinnedSeeds

SEEDS_MAX = 40
"""Seeds among which some job loses a TaskManager, as most do, and completes a checkpoint before it is replaced."""
PINNED = PinnedSeeds("broken rules of dropping")
ALL_OF_IT = "rows are lost, and a checkpoint declares it"
"""The name of the seed in which all shows that the first test looks for."""
RULED = "broadcast rows come while somebody is lost"


@pytest.mark.timeout(300)
def test_rows_in_are_rows_counted_and_rows_said_to_be_lost() -> None:
    one = os.environ.get("HOLDFAST_SEED")
    shown = [0, 0, 0]
    for seed in [PINNED.first(ALL_OF_IT), *range(SEEDS_MAX)] if one is None else [int(one)]:
        print(f"HOLDFAST_SEED={seed}")
        world = simulate_dropping(seed)
        query = world.starts[-1].query
        here = [0 if query is None else len(query.losses), world.restored, world.declared.incomplete]
        shown = [before + more for before, more in zip(shown, here, strict=True)]
        enough = here if PINNED.writes() else shown
        if all(enough) and PINNED.found(ALL_OF_IT, seed, len(world.runtime.trace)):
            break
    assert one or all(shown), "nothing was lost, so that nothing was shown"


def test_broadcast_state_is_the_same_everywhere_in_a_job_that_drops() -> None:
    """All batches change it, so that nobody joins: everybody goes back, and nothing is lost."""
    kills = 0
    for seed in [PINNED.first(RULED), *range(SEEDS_MAX)]:
        world = simulate_dropping(seed, ruled=True)
        query = world.starts[-1].query
        assert query is not None and not query.losses
        kills += len(query.restarts)
        if query.restarts and PINNED.found(RULED, seed, len(world.runtime.trace)):
            break
    assert kills, "nobody was lost, so that nothing was shown"


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(100, 500, 50))
def test_rows_in_are_rows_counted_and_rows_said_to_be_lost_in_many_lives(first: int) -> None:
    for seed in range(first, first + 50):
        print(f"HOLDFAST_SEED={seed}")
        simulate_dropping(seed)


def _tells_without(**left_out: Any) -> AbstractContextManager[Any]:
    """Rows of a kind are not noted for the case of a loss."""
    before = LossLedger.committed

    def committed(self: LossLedger, rows: CommittedRows, position: Any) -> None:
        before(self, replace(rows, **left_out), position)

    return mock.patch.object(LossLedger, "committed", committed)


def _tells_no_dropped_rows() -> AbstractContextManager[Any]:
    return _tells_without(dropped=Counter())


def _tells_no_forgotten_rows() -> AbstractContextManager[Any]:
    return _tells_without(taken=Counter())


def _tells_repaired_losses() -> AbstractContextManager[Any]:
    """Rows that are processed again after a return to the checkpoint stay among the lost ones."""
    return mock.patch.object(LossLedger, "went_back", lambda self: [])


def _declares_no_rows() -> AbstractContextManager[Any]:
    """Checkpoints with older parts of the missing say that nothing was lost by them."""
    before = LossLedger.declared

    def declared(self: LossLedger, *arguments: Any) -> Any:
        return [replace(each, rows_dropped={}, rows_forgotten={}) for each in before(self, *arguments)]

    return mock.patch.object(LossLedger, "declared", declared)


def _cuts_without_a_part() -> AbstractContextManager[Any]:
    """Checkpoints are taken though no record has a part of the missing."""
    return mock.patch.object(RecordedParts, "stand_in", lambda self, live: True)


MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "rows that are dropped are not told": _tells_no_dropped_rows,
    "rows that a lost TaskManager had taken are not told": _tells_no_forgotten_rows,
    "checkpoints of an outage declare no rows": _declares_no_rows,
    "checkpoints are taken though no record has a part of the missing": _cuts_without_a_part,
    "rows that are processed again stay among the lost": _tells_repaired_losses,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_a_broken_rule_of_dropping_is_found(name: str) -> None:
    first, shown = PINNED.first(name), None
    for seed in range(first, first + 30):
        try:
            with MUTATIONS[name](), contextlib.redirect_stdout(io.StringIO()):
                simulate_dropping(seed)
        except Broken as broken:
            print(f"{name}: seed {seed}: {broken}")
            world, shown = simulate_dropping(seed), seed
            if PINNED.found(name, seed, len(world.runtime.trace)):
                break
        except Stalled:
            continue
    assert shown is not None, f"{name}: nothing was found"
