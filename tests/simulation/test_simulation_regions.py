"""Jobs of which single splits fail, simulated to the last step; and that a broken rule of regions is found."""

import contextlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
from simulation_invariants import Broken
from simulation_regions import simulate_regions
from simulation_runtime import Stalled

from holdfast.behind import Behind, recorded
from holdfast.execution.isolation import Isolation
from holdfast.graph.plan import Plan
from pinned_seeds import PinnedSeeds

SEEDS = 6
SEEDS_LONG = 2_000
PINNED = PinnedSeeds("broken rules of regions")
FIRST_FAULTY, MORE = 2, 60
"""The first seeds have few faults; where none of the usual seeds shows a broken rule, more are drawn."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_come_once_and_records_tell_where_splits_stand(seed: int) -> None:
    simulate_regions(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_thousand_jobs_with_failing_splits_balance() -> None:
    struck = sum(simulate_regions(seed).faults.struck for seed in range(SEEDS, SEEDS_LONG))
    assert struck > SEEDS_LONG


def _moves_a_failed_split() -> AbstractContextManager[Any]:
    return mock.patch.object(Plan, "without", lambda self, failed: self)


def _keeps_results_with_a_failed_split() -> AbstractContextManager[Any]:
    def healthy(self: Isolation, unit: Any) -> Any:
        return (
            unit.splits if unit.unit in self._good else tuple(each for each in unit.splits if each not in self.failed)
        )

    def handle(self: Isolation, failed: Any) -> Any:
        ran, self._running = self._running, {}
        self._good |= {number: each for number, each in ran.items() if number not in failed}
        for number, failure in failed.items():
            self._blame(ran[number], failure)
        for number, failure in failed.items():
            self._divide(ran[number], failure)
        return list(self._running.values())

    return mock.patch.multiple(Isolation, handle=handle, _healthy=healthy)


def _lets_every_record_begin_anew() -> AbstractContextManager[Any]:
    def anew(behind: Behind, offsets: Any, number: int, *others: Any) -> Behind:
        return recorded(behind, offsets, number, number, {}, {})

    return mock.patch("holdfast.jobmaster.checkpoints.job_facts.recorded", anew)


def _names_the_record_before_at_any_position() -> AbstractContextManager[Any]:
    def at_any(behind: Behind, offsets: Any, number: int, before: int, older: Behind, older_offsets: Any) -> Behind:
        return recorded(behind, offsets, number, before, older, offsets)

    return mock.patch("holdfast.jobmaster.checkpoints.job_facts.recorded", at_any)


MUTATIONS: list[Callable[[], AbstractContextManager[Any]]] = [
    _moves_a_failed_split,
    _keeps_results_with_a_failed_split,
    _lets_every_record_begin_anew,
    _names_the_record_before_at_any_position,
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.strip("_"))
def test_a_broken_rule_of_regions_is_found(mutation: Callable[[], AbstractContextManager[Any]]) -> None:
    name, found = mutation.__name__.strip("_"), False
    for seed in [PINNED.first(name), *range(FIRST_FAULTY, MORE)]:
        try:
            with mutation(), contextlib.redirect_stdout(io.StringIO()):
                simulate_regions(seed)
        except Broken:
            found = True
            if PINNED.found(name, seed, seed):
                break
        except Stalled:
            continue  # the harness may wait in vain for many reasons: that alone shows nothing
    assert found, "no seed complained"
