"""JOIN and EXISTS, as `key_by(…).join(…)`: equalities are the keys, a bound of event time says how long rows wait."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlglot import exp

from holdfast.graph.nodes import reads_of
from holdfast.sql.grouping import duration
from holdfast.sql.scopes import Table, Tree, all_of, column, conditions, expression, qualifier, refused, without_alias

_MICROSECOND = timedelta(microseconds=1)
_SUFFIX = "_2"


class Join:
    """A join of two tables by their names in the query. `parts`: all other parts of the query, which name columns."""

    def __init__(
        self, tree: Tree, left: tuple[str, Table], right: tuple[str, Table], how: str, parts: Sequence[Tree]
    ) -> None:
        self._tree = tree
        self._names = (left[0], right[0])
        self._streams: list[Any] = [left[1].stream, right[1].stream]
        self._how = how
        self._parts = parts
        self._keys: tuple[list[str], list[str]] = ([], [])
        self._bounds: dict[str, timedelta] = {}
        self._times: tuple[set[str], set[str]] = (set(), set())
        self._rest: list[Tree] = []
        self._known: dict[tuple[int, str], str] = {}

    def stream(self, condition: Tree | None) -> Any:
        """Return the joined rows. Raises `JobRefused`."""
        for each in conditions(condition):
            self._add(each)
        if not self._keys[0]:
            raise refused(self._tree, "a join needs an equality of a column of each side")
        forever = not self._bounds and self._how == "inner"
        if set(self._bounds) != {"low", "high"} and not forever:
            raise refused(
                self._tree,
                f"a join needs a bound of event time from both sides, such as {self._names[1]}.at BETWEEN "
                f"{self._names[0]}.at - INTERVAL 5 MINUTES AND {self._names[0]}.at",
            )
        used = [self._used(side) for side in (0, 1)]
        sides = [self._streams[side].select(*used[side]).key_by(*self._keys[side]) for side in (0, 1)]
        within = None if forever else (self._bounds["low"], self._bounds["high"])
        joined = sides[0].join(sides[1], within=within, how=self._how, suffix=_SUFFIX)
        self._name_columns(used)
        for each in self._rest:
            joined = joined.where(expression(self.rewritten(each)))
        return joined

    def rewritten(self, tree: Tree) -> Tree:
        """Return a tree over the columns of the joined rows."""

        def change(node: Tree) -> Tree:
            if not isinstance(node, exp.Column):
                return node
            return column(self._known[(self._side(node), node.name)])

        return tree.copy().transform(change)

    def _side(self, node: Tree) -> int:
        if qualifier(node) not in self._names:
            raise refused(node, f"name the table of each column in a join: {' or '.join(self._names)}")
        return self._names.index(qualifier(node))

    def _sides(self, tree: Tree) -> set[int]:
        return {self._side(each) for each in tree.find_all(exp.Column)}

    def _add(self, tree: Tree) -> None:
        """Take a condition of ON: an equality, a bound of time, a condition on one side, or one for joined rows."""
        sides = self._sides(tree)
        if len(sides) == 1:
            (side,) = sides
            if self._how not in ("inner", "semi") and side != {"left": 1, "right": 0, "anti": 1}.get(self._how):
                raise refused(tree, f"a condition on this side alone is not supported in ON of a {self._how} join")
            self._streams[side] = self._streams[side].where(expression(without_alias(tree, self._names[side])))
        elif isinstance(tree, exp.EQ) and all(isinstance(each, exp.Column) for each in (tree.left, tree.right)):
            for each in (tree.left, tree.right):
                self._keys[self._side(each)].append(each.name)
        elif not self._is_bound(tree):
            if self._how != "inner":
                raise refused(tree, f"this condition is not supported in ON of a {self._how} join")
            self._rest.append(tree)

    def _is_bound(self, tree: Tree) -> bool:
        if isinstance(tree, exp.Between):
            return self._bound(tree.this, tree.args["low"], "ge") and self._bound(tree.this, tree.args["high"], "le")
        how = {exp.GTE: "ge", exp.GT: "gt", exp.LTE: "le", exp.LT: "lt"}.get(type(tree))
        return how is not None and self._bound(tree.this, tree.expression, how)

    def _bound(self, one: Tree, other: Tree, how: str) -> bool:
        """Take `one how other`, each a time plus or minus an interval, as a bound of the right time minus the left."""
        found = [_time(one), _time(other)]
        if None in found:
            return False
        (first, by), (second, more) = found  # type: ignore[misc]
        if {self._side(first), self._side(second)} != {0, 1}:
            return False
        of_event_time = self._is_event_time(first) and self._is_event_time(second)
        if not of_event_time and not tree_has_interval(one, other):
            return False
        if not of_event_time:
            raise refused(
                one, "a bound of time is of event time: expected the columns of with_watermark(…) on both sides"
            )
        for each in (first, second):
            self._times[self._side(each)].add(each.name)
        ahead = more - by
        if self._side(first) == 0:
            ahead, how = -ahead, {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}[how]
        end = "low" if how in ("ge", "gt") else "high"
        ahead += {"gt": _MICROSECOND, "lt": -_MICROSECOND}.get(how, timedelta())
        before = self._bounds.get(end, ahead)
        self._bounds[end] = max(before, ahead) if end == "low" else min(before, ahead)
        return True

    def _is_event_time(self, node: Tree) -> bool:
        reads = reads_of(self._streams[self._side(node)]._node)
        return {read.watermark.column if read.watermark else None for read in reads} == {node.name}

    def _used(self, side: int) -> list[str]:
        """Return the columns that the query takes from a side."""
        parts = [*self._parts, *self._rest]
        named = [each.name for part in parts for each in part.find_all(exp.Column) if self._side(each) == side]
        return list(dict.fromkeys([*self._keys[side], *sorted(self._times[side]), *named]))

    def _name_columns(self, used: Sequence[Sequence[str]]) -> None:
        """Note the name of each column behind the join: columns of both sides differ by a suffix, keys are one."""
        same = {a for a, b in zip(*self._keys, strict=True) if a == b}
        for name in used[0]:
            self._known[(0, name)] = name
        for name in used[1]:
            self._known[(1, name)] = f"{name}{_SUFFIX}" if name in used[0] and name not in same else name


def tree_has_interval(*trees: Tree) -> bool:
    return any(each.find(exp.Interval) is not None for each in trees)


def _time(tree: Tree) -> tuple[Tree, timedelta] | None:
    """Return a column, and the interval that is added to it."""
    if isinstance(tree, exp.Column):
        return tree, timedelta()
    if (
        isinstance(tree, exp.Add | exp.Sub)
        and isinstance(tree.this, exp.Column)
        and isinstance(tree.expression, exp.Interval)
    ):
        length = duration(tree.expression)
        return tree.this, length if isinstance(tree, exp.Add) else -length
    return None


def of_exists(tree: Tree) -> Tree | None:
    """Return the condition of the subquery of `EXISTS`."""
    return all_of(list(conditions(tree.this.args["where"].this))) if tree.this.args.get("where") else None
