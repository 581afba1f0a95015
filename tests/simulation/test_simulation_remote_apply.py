"""Jobs whose standbys materialize the tables: every life ends exactly, and no object is lost or left behind."""

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import pytest
from simulation_invariants import Broken
from simulation_run import simulate
from simulation_runtime import Stalled
from simulation_settings import remote_apply

from holdfast.changelog.writer import ChangelogWriter
from holdfast.checkpoint.registry import ObjectRegistry
from holdfast.materialize.logged_table import LoggedTable

SEEDS_MAX = 60
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


def _starts_the_log_at_its_end() -> AbstractContextManager[Any]:
    return mock.patch.object(ChangelogWriter, "sqn_after", lambda self, batch: self.next_sqn())


def _takes_any_base() -> AbstractContextManager[Any]:
    def take(self: LoggedTable, made: Any) -> bool:
        self._boundaries.setdefault(made.batch, self._log.next_sqn())
        return _take(self, made)

    return mock.patch.object(LoggedTable, "take_base", take)


BROKEN: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "objects of a base are held until its owner tells of them": _holds_nothing_on_its_way,
    "the log goes on where the base ends": _starts_the_log_at_its_end,
    "an owner takes bases of its own cuts alone": _takes_any_base,
}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_of_remote_apply_that_is_broken_is_found(rule: str) -> None:
    for seed in range(SEEDS_MAX):
        try:
            with BROKEN[rule](), contextlib.redirect_stdout(io.StringIO()):
                simulate(seed, remote_apply)
        except Broken as found:
            print(f"{rule}: seed {seed}: {found}")
            return
        except Stalled:
            continue
    pytest.fail("no invariant was broken")
