"""The choice of parameters with which tests run in `make test`: `quick` and `some` name them; others are in test-long.

Among combinations of parameters `make test` takes a part, but of tests with the marker `whole`.

Each value of each parameter, also of a fixture's, comes at least once: a test over 3 backends, 2 ways to read and 6
seeds runs 6 times, not 36. Parameters that a list gives together are a single one. The choice depends on nothing but
the parameters and their order.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet

Value = tuple[str, str]
"""A parameter's name, and one of its values as text."""


def quick(*names: str, of: Mapping[str, Any]) -> list[Any]:
    """Return parameters by their names: all but the named ones are long."""
    assert of.keys() >= set(names), f"{names} are not all among {list(of)}"
    return [pytest.param(each, id=name, marks=() if name in names else pytest.mark.long) for name, each in of.items()]


def some(values: Sequence[Any], *places: int) -> list[Any]:
    """Return parameters, of which those at these places are in `make test`: all but these are long."""
    marks = [() if place in places else pytest.mark.long for place in range(len(values))]
    return [
        pytest.param(*each.values, id=each.id, marks=mark)
        if isinstance(each, ParameterSet)
        else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=mark)
        for each, mark in zip(values, marks, strict=True)
    ]


def leave_to_test_long(items: Iterable[pytest.Item]) -> None:
    """Mark combinations of parameters as long, except those that are chosen."""
    combinations: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and not item.get_closest_marker("whole"):
            combinations[f"{item.path}::{item.originalname}"].append(item)
    for of_one_test in combinations.values():
        short = [item for item in of_one_test if item.get_closest_marker("long") is None]
        values = [_values(item) for item in short]
        chosen = set(sample(values)) if any(len(each) > 1 for each in values) else range(len(short))
        for number, item in enumerate(short):
            if number not in chosen:
                item.add_marker(pytest.mark.long)


def _values(item: pytest.Function) -> set[Value]:
    """The values of an item's parameters; those of names that were given together are one."""
    together: dict[str, str] = {}
    for mark in item.iter_markers("parametrize"):
        names = [each.strip() for each in mark.args[0].split(",")] if isinstance(mark.args[0], str) else mark.args[0]
        together |= dict.fromkeys(names, str(names))
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in item.callspec.params.items():
        found[together.get(name, name)].append(repr(value))
    return {(name, str(values)) for name, values in found.items()}


def sample(combinations: Sequence[set[Value]]) -> list[int]:
    """Choose combinations until each value has come, each time the combination with the most values still missing."""
    missing = set().union(*combinations)
    chosen = []
    while missing:
        best = max(range(len(combinations)), key=lambda number: len(combinations[number] & missing))
        missing -= combinations[best]
        chosen.append(best)
    return chosen
