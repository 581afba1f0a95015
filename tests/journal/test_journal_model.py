"""The rules of journal, ownership and publication hold in every interleaving within bounds; and each is needed:
left out, the model finds a hole. See `journal_model.py` for the modelled parts."""

import re

import pytest
from journal_exploration import Explored, explore
from journal_model import Bounds, Model, Weakness

STATES_MAX = 1_000_000


def explored(bounds: Bounds, weakness: Weakness | None = None) -> Explored:
    result = explore(Model(bounds, weakness), STATES_MAX)
    print(f"{bounds}: {result.states} states")
    if result.violation:
        print(f"{result.violation}\n  " + "\n  ".join(result.trace))
    return result


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(turns=(3, 1), attempts=1, faults=0), id="records are deleted under a paused candidate"),
        pytest.param(Bounds(turns=(1, 1), attempts=1, faults=2), id="two JobMasters, two unclear answers"),
        pytest.param(Bounds(turns=(1, 1, 1), attempts=1, faults=0), id="three JobMasters"),
        pytest.param(Bounds(turns=(2, 1), attempts=2, faults=0, losses=1), id="the newest record is lost"),
        pytest.param(Bounds(turns=(1, 1, 0), attempts=1, faults=0, losses=1), id="it is lost below a takeover"),
    ],
)
def test_no_interleaving_breaks_an_invariant(bounds: Bounds) -> None:
    result = explored(bounds)
    assert result.violation is None
    assert result.states > 5_000


@pytest.mark.long
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(turns=(3, 1), attempts=2, faults=0),
        Bounds(turns=(3, 1), attempts=1, faults=1),
        Bounds(turns=(2, 1), attempts=2, faults=1),
        Bounds(turns=(2, 1, 1), attempts=1, faults=0),
        Bounds(turns=(2, 1), attempts=1, faults=2),
        Bounds(turns=(2, 2), attempts=2, faults=1),
    ],
    ids=str,
)
def test_no_interleaving_within_wider_bounds_breaks_an_invariant(bounds: Bounds) -> None:
    assert explored(bounds).violation is None


HOLES = {
    Weakness.NO_SECOND_LISTING: (Bounds((3, 1), 1, 0), "names .* which is deleted"),
    Weakness.UNANSWERED_MEANS_NOT_WRITTEN: (Bounds((1,), 1, 1), "names .* which is deleted"),
    Weakness.UNANSWERED_MEANS_WRITTEN: (Bounds((1,), 1, 1), "believes 2 written, which it is not"),
    Weakness.DELETES_BEFORE_RESOLVING: (Bounds((3,), 1, 1), "names .* which is deleted"),
    Weakness.TAKEOVERS_EXPIRE: (Bounds((2, 2), 1, 0), "completes . although epoch . has taken over"),
    Weakness.NEWEST_EXPIRES: (Bounds((1,), 1, 0), "no record of one is left"),
    Weakness.CARRIED_GROUPS_ARE_RENUMBERED: (Bounds((2,), 1, 0), "lost|twice"),
    Weakness.PUBLISHES_BEFORE_THE_RECORD: (Bounds((1,), 1, 0), "published although no record held it"),
    Weakness.PUBLISHES_OUT_OF_ORDER: (Bounds((2,), 1, 0), "can no longer be published"),
    Weakness.FORGETS_THE_GROUPS_OF_ITS_BASE: (Bounds((1, 1), 1, 0), "groups are lost"),
    Weakness.CLEANS_UP_ALL_EPOCHS: (Bounds((1,), 1, 0), "names .* which is deleted"),
    Weakness.NO_MARK: (Bounds((1, 0), 1, 0, 1), "starts from 0 although record 2 is lost"),
    Weakness.GAPS_ARE_PASSED_OVER: (Bounds((1, 0, 0), 1, 0, 1), "starts from 0 although record 2 is lost"),
}


@pytest.mark.parametrize("weakness", list(Weakness), ids=lambda weakness: weakness.name.lower())
def test_without_this_rule_the_model_finds_a_hole(weakness: Weakness) -> None:
    bounds, expected = HOLES[weakness]
    result = explored(bounds, weakness)
    assert result.violation is not None, f"{weakness} is not noticed"

    assert re.search(expected, result.violation), result


def test_the_way_to_a_hole_is_told_in_the_fewest_steps() -> None:
    bounds, _ = HOLES[Weakness.NO_SECOND_LISTING]
    trace = explored(bounds, Weakness.NO_SECOND_LISTING).trace
    paused = next(place for place, step in enumerate(trace) if step.startswith("1: lists"))
    put_again = next(place for place, step in enumerate(trace) if step.startswith("1: puts 2"))
    assert any("expires" in step for step in trace[paused:put_again])
    assert trace[-1] == "1: cleans up"


def test_bounds_that_are_too_wide_are_an_error_not_a_pass() -> None:
    with pytest.raises(AssertionError, match="more than 100 states"):
        explore(Model(Bounds((3, 1), 1, 0)), 100)
