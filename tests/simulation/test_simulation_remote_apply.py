"""Jobs whose standbys materialize the tables: every life ends exactly, and no object is lost or left behind."""

import contextlib
import io
import os
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
from simulation_invariants import Broken
from simulation_run import simulate
from simulation_settings import remote_apply

from holdfast.checkpoint.registry import ObjectRegistry
from holdfast.materialize.logged_table import LoggedTable

SEEDS = [3] if "HOLDFAST_SEED" not in os.environ else [int(os.environ["HOLDFAST_SEED"])]

_take = LoggedTable.take_base


def _run(seed: int, seen: Counter[bool]) -> None:
    def take(self: LoggedTable, made: Any) -> bool:
        taken = _take(self, made)
        seen[taken] += 1
        return taken

    print(f"HOLDFAST_SEED={seed}")
    with mock.patch.object(LoggedTable, "take_base", take):
        simulate(seed, remote_apply)


@pytest.mark.timeout(300)
def test_owners_continue_from_the_tables_that_followers_store() -> None:
    seen: Counter[bool] = Counter()
    for seed in SEEDS:
        _run(seed, seen)
    assert len(SEEDS) > 1 or "HOLDFAST_SEED" in os.environ or seen[True], "no owner took a table"


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(100, 300, 50))
def test_owners_continue_from_the_tables_of_followers_in_many_lives(first: int) -> None:
    seen: Counter[bool] = Counter()
    for seed in range(first, first + 50):
        _run(seed, seen)
    assert seen[True] > 100 and seen[False], "some tables are taken, and some come too late"


def _holds_nothing_on_its_way() -> AbstractContextManager[Any]:
    return mock.patch.object(ObjectRegistry, "hold_part", lambda *_: None)


def test_objects_on_their_way_to_an_owner_that_nobody_holds_are_missed() -> None:
    with _holds_nothing_on_its_way(), contextlib.redirect_stdout(io.StringIO()), pytest.raises(Broken):
        simulate(0, remote_apply)
