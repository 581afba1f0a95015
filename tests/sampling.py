"""The choice of parameters with which tests run in `make test`: `quick` names some, the others are in test-long.

The marker `sampled` chooses among combinations of parameters.

Each value of each parameter, also of a fixture's, comes at least once: a test over 3 backends, 2 ways to read and 6
seeds runs 6 times, not 36. The choice depends on nothing but the parameters and their order.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

Value = tuple[str, str]
"""A parameter's name, and one of its values as text."""


def quick(*names: str, of: Mapping[str, Any]) -> list[Any]:
    """Return parameters by their names: all but the named ones are long."""
    assert of.keys() >= set(names), f"{names} are not all among {list(of)}"
    return [pytest.param(each, id=name, marks=() if name in names else pytest.mark.long) for name, each in of.items()]


def leave_to_test_long(items: Iterable[pytest.Item]) -> None:
    """Mark combinations of `sampled` tests as long, except those that are chosen."""
    combinations: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled") and hasattr(item, "callspec"):
            combinations[f"{item.path}::{item.originalname}"].append(item)
    for of_one_test in combinations.values():
        short = [item for item in of_one_test if item.get_closest_marker("long") is None]
        chosen = set(sample([{(name, repr(value)) for name, value in each.callspec.params.items()} for each in short]))
        for number, item in enumerate(short):
            if number not in chosen:
                item.add_marker(pytest.mark.long)


def sample(combinations: Sequence[set[Value]]) -> list[int]:
    """Choose combinations until each value has come, each time the combination with the most values still missing."""
    missing = set().union(*combinations)
    chosen = []
    while missing:
        best = max(range(len(combinations)), key=lambda number: len(combinations[number] & missing))
        missing -= combinations[best]
        chosen.append(best)
    return chosen
