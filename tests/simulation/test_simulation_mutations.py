"""The simulation finds what it is for: with a rule broken on purpose, some seed fails."""

import contextlib
import io

import pytest
from simulation_mutations import MUTATIONS
from simulation_run import simulate

SEEDS = 500
QUICK = {
    "a false refusal is believed",
    "a group is published under a later number",
    "a TaskManager deletes what it acknowledged",
    "an aborted checkpoint deletes its objects",
    "objects go although others hold them",
    "records drop what is not published yet",
}
"""Those that show within a few seeds."""


def found_by(name: str) -> int | None:
    """The first seed that fails."""
    for seed in range(SEEDS):
        try:
            with MUTATIONS[name](), contextlib.redirect_stdout(io.StringIO()):
                simulate(seed)
        except AssertionError as error:
            print(f"{name}: seed {seed}: {type(error).__name__}: {error}")
            return seed
    return None


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_broken_rule_is_found(name: str) -> None:
    assert found_by(name) is not None


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(MUTATIONS.keys() - QUICK))
def test_a_broken_rule_that_seldom_matters_is_found(name: str) -> None:
    assert found_by(name) is not None
