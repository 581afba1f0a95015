"""The marker `sampled` keeps each value of each parameter in `make test`, and as few combinations as that takes."""

from itertools import product

from sampling import sample


def test_each_value_comes_and_no_more_combinations_than_the_longest_parameter_has_values() -> None:
    combinations = [{("backend", a), ("way", b), ("seed", c)} for a, b, c in product(range(3), range(2), range(6))]
    chosen = [combinations[number] for number in sample(combinations)]
    assert len(chosen) == 6
    assert set().union(*chosen) == set().union(*combinations)


def test_values_that_come_in_some_combinations_only_are_chosen_too() -> None:
    combinations = [{("backend", 0), ("kind", 0)}, {("backend", 1), ("kind", 0)}, {("backend", 1), ("kind", 1)}]
    assert sample(combinations) == [0, 2]
