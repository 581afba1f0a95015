"""Each value of each parameter is in `make test`, and as few combinations as that takes."""

from itertools import product

import pytest

from sampling import sample


def test_each_value_comes_and_no_more_combinations_than_the_longest_parameter_has_values() -> None:
    values = product(["heap", "disk", "cache"], ["rows", "arrays"], "123456")
    combinations = [{("backend", backend), ("way", way), ("seed", seed)} for backend, way, seed in values]
    chosen = [combinations[number] for number in sample(combinations)]
    assert len(chosen) == 6
    assert set().union(*chosen) == set().union(*combinations)


def test_values_that_come_in_some_combinations_only_are_chosen_too() -> None:
    both = [("heap", "sum"), ("disk", "sum"), ("disk", "list")]
    combinations = [{("backend", backend), ("kind", kind)} for backend, kind in both]
    assert sample(combinations) == [0, 2]


@pytest.mark.parametrize("one", range(3))
@pytest.mark.parametrize(("other", "beside"), [("a", 1), ("b", 1), ("b", 2)])
def test_a_test_runs_as_often_as_its_longest_parameter_has_values(
    one: int, other: str, beside: int, request: pytest.FixtureRequest
) -> None:
    short = [item for item in items_of(request) if item.get_closest_marker("long") is None]
    assert len(short) == min(3, len(items_of(request)))
    assert len(short) < 3 or {(each.callspec.params["other"], each.callspec.params["beside"]) for each in short} == {
        ("a", 1), ("b", 1), ("b", 2),
    }  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize("one", range(2))
@pytest.mark.parametrize("other", ["a", "b"])
def test_a_test_with_the_marker_runs_with_all_combinations(
    one: int, other: str, request: pytest.FixtureRequest
) -> None:
    assert not any(item.get_closest_marker("long") for item in items_of(request))


def items_of(request: pytest.FixtureRequest) -> list[pytest.Function]:
    found = [item for item in request.session.items if item.name.partition("[")[0] == request.node.originalname]
    return [item for item in found if isinstance(item, pytest.Function)]
