"""Groups of rows in which a condition is true for no row, found with the bounds of their columns. Pure.

    a > 5 AND (b = 'x' OR c IS NULL)      a group is skipped if its greatest a is at most 5, or if b and c exclude it

To exclude a group, a comparison of a column with a constant is evaluated with the group's least or greatest value
instead of the column, so it follows the same rules as for rows. All other conditions may be true in any group. NaN is
above all numbers and in no bounds, so bounds of floating-point numbers can exclude only comparisons with less than.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from holdfast.expressions.binding import Binder
from holdfast.expressions.group_bounds import GroupFlags, KnownGroups
from holdfast.expressions.nodes import ExpressionRefused, Scope, SqlSettings, Term, array_of
from holdfast.expressions.types import is_number

ConditionTree = Any
"""A node of sqlglot's trees, or the class of a node."""
Question = Callable[[KnownGroups], GroupFlags]
"""A function that returns for each group whether a condition may be true for one of its rows."""

_TURNED: dict[ConditionTree, ConditionTree] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
}
_DENIED: dict[ConditionTree, ConditionTree] = {
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
}


class Pruning:
    """A condition over rows of a schema, used to exclude groups by their bounds."""

    def __init__(self, condition: ConditionTree, schema: pa.Schema, settings: SqlSettings) -> None:
        self._binder = Binder(schema, settings)
        self.columns: set[str] = set()
        """The columns whose bounds are useful."""
        parts = list(_joined_by_and(condition))
        failing = [place for place, part in enumerate(parts) if self._binder.bound(part).fails]
        self._fails = bool(failing)
        self._questions = [each for part in parts[: min(failing, default=len(parts))] if (each := self._asked(part))]

    def may_hold(self, known: KnownGroups) -> GroupFlags:
        """Return which groups may have a row for which the condition is true, or for which it fails.

        Only parts before the first part that may fail can exclude a group, and only if they are null for none of its
        rows: for null, AND goes on to the next part.
        """
        found = np.ones(len(known.rows), np.bool_)
        for question in self._questions:
            found &= question(known)
        if self._fails:
            for name in self.columns & known.bounds.keys():
                found |= known.bounds[name].nulls != 0
        return found

    def _asked(self, tree: ConditionTree) -> Question | None:
        """Return the question for a condition; None if it may be true in any group."""
        if isinstance(tree, exp.Paren):
            return self._asked(tree.this)
        if isinstance(tree, exp.Not):
            return self._denied(tree.this)
        if isinstance(tree, exp.And):
            return _all([self._asked(tree.left), self._asked(tree.right)])
        if isinstance(tree, exp.Or):
            return _any([self._asked(tree.left), self._asked(tree.right)])
        if isinstance(tree, exp.Between):
            return _all([self._asked(each) for each in _ends(tree)])
        if isinstance(tree, exp.In) and not tree.args.get("query"):
            return _any([self._compared(exp.EQ, tree.this, each) for each in tree.expressions])
        if isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null):
            return self._null(tree.this, True)
        if isinstance(tree, exp.Column):
            return self._compared(exp.EQ, tree, exp.Boolean(this=True))
        if type(tree) in _TURNED:
            return self._comparison(type(tree), tree.left, tree.right)
        return None

    def _denied(self, tree: ConditionTree) -> Question | None:
        """Return the question for the negation of a condition."""
        if isinstance(tree, exp.Paren):
            return self._denied(tree.this)
        if isinstance(tree, exp.Not):
            return self._asked(tree.this)
        if isinstance(tree, exp.And):
            return _any([self._denied(tree.left), self._denied(tree.right)])
        if isinstance(tree, exp.Or):
            return _all([self._denied(tree.left), self._denied(tree.right)])
        if isinstance(tree, exp.Between):
            return _any([self._denied(each) for each in _ends(tree)])
        if isinstance(tree, exp.In) and not tree.args.get("query"):
            return _all([self._compared(exp.NEQ, tree.this, each) for each in tree.expressions])
        if isinstance(tree, exp.Is) and isinstance(tree.expression, exp.Null):
            return self._null(tree.this, False)
        if isinstance(tree, exp.Column):
            return self._compared(exp.EQ, tree, exp.Boolean(this=False))
        if type(tree) in _DENIED:
            return self._comparison(_DENIED[type(tree)], tree.left, tree.right)
        return None

    def _comparison(self, how: ConditionTree, left: ConditionTree, right: ConditionTree) -> Question | None:
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            return self._compared(_TURNED[how], right, left)
        return self._compared(how, left, right)

    def _compared(self, how: ConditionTree, left: ConditionTree, right: ConditionTree) -> Question | None:
        """Return the question for a comparison of a column with a constant."""
        name = self._column(left)
        if name is None:
            return None
        value, other = self._binder.bound(left), self._binder.bound(right)
        if other.constant is None or not _keeps_order(value, other, self._binder):
            return None
        constant = other.constant.as_py()
        if constant is None and self._fails:
            return None  # the comparison is null for all rows, so AND goes on to the part that may fail
        if constant is None:
            return lambda known: np.zeros(len(known.rows), np.bool_)
        is_floating = pa.types.is_floating(value.type)
        if constant != constant or (is_floating and how in (exp.GT, exp.GTE, exp.NEQ)):
            return None
        ends = [(each, self._binder.bound(ask(this=left.copy(), expression=right.copy()))) for each, ask in _ASKED[how]]
        self.columns.add(name)

        def ask(known: KnownGroups) -> GroupFlags:
            bounds = known.bounds.get(name)
            if bounds is None:
                return np.ones(len(known.rows), np.bool_)
            found = [_true_for(term, name, getattr(bounds, end), len(known.rows)) for end, term in ends]
            both = np.logical_or.reduce(found) if how is exp.NEQ else np.logical_and.reduce(found)
            is_known = np.asarray(pc.and_(bounds.least.is_valid(), bounds.greatest.is_valid()))
            all_null = bounds.nulls == known.rows
            made: GroupFlags = np.where(is_known, both, ~all_null)
            return made

        return ask

    def _null(self, tree: ConditionTree, wanted: bool) -> Question | None:
        name = self._column(tree)
        if name is None:
            return None
        self.columns.add(name)

        def ask(known: KnownGroups) -> GroupFlags:
            bounds = known.bounds.get(name)
            if bounds is None:
                return np.ones(len(known.rows), np.bool_)
            found: GroupFlags = bounds.nulls != (0 if wanted else known.rows)
            return found

        return ask

    def _column(self, tree: ConditionTree) -> str | None:
        """Return the column of the schema if a tree is only that; None for other trees and for fields."""
        is_column = isinstance(tree, exp.Column) and len(tree.parts) == 1
        return self._binder.bound(tree).name if is_column else None


_ASKED: dict[ConditionTree, list[tuple[str, ConditionTree]]] = {
    exp.GT: [("greatest", exp.GT)],
    exp.GTE: [("greatest", exp.GTE)],
    exp.LT: [("least", exp.LT)],
    exp.LTE: [("least", exp.LTE)],
    exp.EQ: [("least", exp.LTE), ("greatest", exp.GTE)],
    exp.NEQ: [("least", exp.NEQ), ("greatest", exp.NEQ)],
}
"""The comparisons that a group's bounds must meet if one of its rows is to meet a comparison."""


def _joined_by_and(tree: ConditionTree) -> Iterator[ConditionTree]:
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, exp.And):
            waiting += [each.right, each.left]
        elif isinstance(each, exp.Paren):
            waiting.append(each.this)
        else:
            yield each


def _ends(tree: ConditionTree) -> list[ConditionTree]:
    ends = ((exp.GTE, tree.args["low"]), (exp.LTE, tree.args["high"]))
    return [how(this=tree.this.copy(), expression=end.copy()) for how, end in ends]


def _all(given: list[Question | None]) -> Question | None:
    asked = [each for each in given if each is not None]
    return (lambda known: np.logical_and.reduce([each(known) for each in asked])) if asked else None


def _any(given: list[Question | None]) -> Question | None:
    asked = [each for each in given if each is not None]
    if len(asked) < len(given) or not asked:
        return None
    return lambda known: np.logical_or.reduce([each(known) for each in asked])


def _keeps_order(value: Term, other: Term, binder: Binder) -> bool:
    """Return True if values of the column are compared in the order that their bounds have."""
    try:
        common = binder.together([value, other], "a comparison")[0]
    except ExpressionRefused:
        return False
    if common.fails or pa.types.is_nested(value.type):
        return False
    return bool(common.type == value.type or (is_number(common.type) and is_number(value.type)))


def _true_for(term: Term, name: str, values: pa.Array, count: int) -> GroupFlags:
    def column(wanted: str) -> pa.Array:
        assert wanted == name, "a comparison reads its own column"
        return values

    found = array_of(term.run(Scope(column, count)), count)
    made: GroupFlags = np.asarray(pc.fill_null(found, False))
    return made
