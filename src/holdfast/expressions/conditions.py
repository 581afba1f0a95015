"""Conditions as trees: they are joined by AND and OR, and rewritten for the columns from which others are computed."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from sqlglot import exp


def all_true(conditions: Sequence[Any]) -> Any:
    """Join conditions by AND."""
    return reduce(lambda one, other: exp.And(this=one, expression=other), map(_alone, conditions))


def any_true(conditions: Sequence[Any]) -> Any:
    """Join conditions by OR."""
    return reduce(lambda one, other: exp.Or(this=one, expression=other), map(_alone, conditions))


def over_columns(condition: Any, column_of: Callable[[str], str | None]) -> Any:
    """Return the parts of a condition that can be rewritten for other columns; None if there are no such parts.

    `column_of` returns the other column for a name, or None if there is none.
    """
    if isinstance(condition, exp.Paren):
        return over_columns(condition.this, column_of)
    if isinstance(condition, exp.And):
        sides = [over_columns(side, column_of) for side in (condition.left, condition.right)]
        known = [each for each in sides if each is not None]
        return all_true(known) if known else None
    columns = list(condition.find_all(exp.Column))
    names = [column_of(each.parts[0].name) for each in columns]
    if condition.find(exp.Lambda) is not None or None in names:
        return None
    if any(len(each.parts) > 1 and each.parts[0].name != name for each, name in zip(columns, names, strict=True)):
        return None

    def change(node: Any) -> Any:
        if not isinstance(node, exp.Column) or len(node.parts) > 1:
            return node
        return exp.Column(this=exp.to_identifier(column_of(node.name), quoted=True))

    return condition.copy().transform(change)


def column_alone(tree: Any) -> str | None:
    """Return the name of the column if a tree is only a column, perhaps with an alias; None for other trees."""
    tree = tree.this if isinstance(tree, exp.Alias) else tree
    return str(tree.name) if isinstance(tree, exp.Column) and len(tree.parts) == 1 else None


def _alone(condition: Any) -> Any:
    return exp.Paren(this=condition.copy())
