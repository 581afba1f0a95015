"""JOIN as `key_by(…).join(…)`: equalities are the keys, and bounds of event time say how long rows wait.

l.k = r.k                                          a key
r.at BETWEEN l.at - INTERVAL … AND l.at            `within`
l.at BETWEEN r.at AND r.until                      `between`
l.window_start = r.window_start                    the same window, of table functions
FOR SYSTEM_TIME AS OF l.at, ASOF JOIN              `how="asof"`; further conditions are asked of the row that is found
conditions on a side that is not kept              `where` before the join
other conditions                                   `condition` of the operator, on pairs of rows
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
from sqlglot import exp

from holdfast.expressions.declared import SqlExpression
from holdfast.functions.joins.condition import name_in_pair
from holdfast.functions.joins.declaring import JoinSettings
from holdfast.sql.grouping import duration
from holdfast.sql.relations import Names, QueryRows
from holdfast.sql.scopes import WINDOW_COLUMNS, Tree, all_of, column, conditions, expression, qualifier, refused

LEFT, RIGHT = 0, 1
_MICROSECOND = timedelta(microseconds=1)
_MET = "_met"
_TURNED = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}
_COMPARED = {exp.GTE: "ge", exp.GT: "gt", exp.LTE: "le", exp.LT: "lt"}
_SWAPPED = {"inner": "inner", "left": "right", "right": "left", "outer": "outer"}
_KEEPS = {"inner": (), "semi": (), "left": (LEFT,), "anti": (LEFT,), "asof": (LEFT,), "right": (RIGHT,)}
"""The sides whose rows are given out even if they meet no other row, by kind of join; both sides for other kinds."""
_MAY_LACK = {"left": (RIGHT,), "asof": (RIGHT,), "right": (LEFT,), "outer": (LEFT, RIGHT)}
"""The sides whose columns are null in rows that met no row of that side, by kind of join."""


@dataclass
class _Conditions:
    """The conditions of ON, sorted by their use."""

    keys: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    bounds: dict[str, timedelta] = field(default_factory=dict)
    """The bounds of the right event time minus the left event time, `low` and `high`."""
    until: dict[int, str] = field(default_factory=dict)
    """The column with the end of the time in which a row meets others, by the row's side."""
    times: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    windowed: bool = False
    rest: list[Tree] = field(default_factory=list)


_HOW = {
    ("", ""): "inner", ("", "INNER"): "inner", ("", "CROSS"): "inner", ("LEFT", ""): "left", ("LEFT", "OUTER"): "left",
    ("RIGHT", ""): "right", ("RIGHT", "OUTER"): "right", ("FULL", ""): "outer", ("FULL", "OUTER"): "outer",
    ("LEFT", "SEMI"): "semi", ("LEFT", "ANTI"): "anti", ("", "SEMI"): "semi", ("", "ANTI"): "anti",
}  # fmt: skip


def kind_of(join: Tree) -> str:
    """Return the kind of a JOIN in the query, before it is known whether it is a look-up. Raises `JobRefused`."""
    how = _HOW.get((str(join.args.get("side") or "").upper(), str(join.args.get("kind") or "").upper()))
    method = str(join.args.get("method") or "").upper()
    if how is None or method not in ("", "ASOF"):
        raise refused(join, "expected [INNER | LEFT | RIGHT | FULL | LEFT SEMI | LEFT ANTI] JOIN … ON …")
    if is_lookup(join) and how not in ("inner", "left"):
        raise refused(join, "a join as of a time is JOIN or LEFT JOIN")
    version = join.this.args.get("version")
    if version is not None and version.name != "TIMESTAMP":
        raise refused(join, "expected JOIN … FOR SYSTEM_TIME AS OF the event time of the left side")
    return how


def is_lookup(join: Tree) -> bool:
    """Return True if a JOIN looks up the right rows as of a time of the left side."""
    return join.args.get("method") is not None or join.this.args.get("version") is not None


def join_conditions(join: Tree, before: Names, names: Names) -> list[Tree]:
    """Return the conditions of a JOIN, with the table of each column. `before`: the tables in front of the JOIN."""
    made = [names.qualified(each) for each in conditions(join.args.get("on"))]
    right = (join.this.alias or join.this.name).lower()
    for each in join.args.get("using") or []:
        name = exp.Column(this=each.copy())
        other = exp.Column(this=each.copy(), table=exp.to_identifier(right, quoted=True))
        first = before.qualified(name)
        made.append(exp.EQ(this=first, expression=names.qualified(other)))
        names.merged[each.name] = first.table
    return made


def joined(
    join: Tree, sides: tuple[QueryRows, QueryRows], names: Names, wanted: list[Tree], parts: Sequence[Tree], number: int
) -> QueryRows:
    """Return the rows of a JOIN with these conditions. Raises `JobRefused`."""
    how, lookup = kind_of(join), is_lookup(join)
    version = join.this.args.get("version")
    made = Join(
        join,
        sides,
        "asof" if lookup else how,
        parts,
        None if version is None else names.qualified(version.expression),
        lookup and how == "inner",
        number,
    )
    return made.relation(all_of(wanted))


class Join:
    """A join of two relations. `as_of`: the left side's time, as of which right rows are looked up.

    `matched`: for an as-of join, True if left rows that met no other row are left out.
    `options`: further options of `KeyedStream.join`.
    `parts`: all other parts of the query, which name columns of both sides; None: all columns are kept.
    """

    def __init__(
        self,
        tree: Tree,
        sides: tuple[QueryRows, QueryRows],
        how: str,
        parts: Sequence[Tree] | None,
        as_of: Tree | None = None,
        matched: bool = False,
        number: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tree = tree
        self._sides = sides
        self._streams = [side.stream for side in sides]
        self._how = how
        self._needs_match = matched
        self._parts = parts
        self._number = number
        self._options = options or {}
        self._is_versioned = as_of is not None
        self._copies = dict[tuple[str, str], str]()
        """Copies of key columns of which the joined rows have one for both sides, by tables and names."""
        self._found = _Conditions()
        if as_of is not None:
            self._look_up(as_of)

    def relation(self, condition: Tree | None) -> QueryRows:
        """Return the joined rows. Raises `JobRefused`."""
        for each in conditions(condition):
            self._add(each)
        found = self._found
        if not found.keys[LEFT]:
            raise refused(self._tree, "a join needs an equality of a value of each side")
        given = self._bound_arguments()
        for side in (LEFT, RIGHT):
            if side not in _KEEPS.get(self._how, (LEFT, RIGHT)) or self._needs_match:
                self._drop_nulls(side)
        self._copy_keys()
        used = [self._used(side) for side in (LEFT, RIGHT)]
        sides = [self._keyed(side, used[side]) for side in (LEFT, RIGHT)]
        options = {"suffix": f"_{self._number + 1}", **given, **self._options}
        first = RIGHT if LEFT in found.until else LEFT
        how = self._how if first == LEFT else _SWAPPED[self._how]
        name, condition = options.pop("name", None), None if how == "asof" else self._condition(first)
        rows = sides[first]._joined(sides[1 - first], JoinSettings(how=how, condition=condition, **options), name)  # type: ignore[arg-type]
        return self._joined(rows, used, options["suffix"] or "", first)

    # Conditions.

    def _add(self, tree: Tree) -> None:
        """Sort a condition: an equality, a bound of time, a condition on a side, or a condition on joined rows."""
        sides = self._sides_of(tree)
        if len(sides) == 1:
            self._add_of_side(tree, *sides)
        elif not (isinstance(tree, exp.EQ) and self._is_key(tree)) and not self._is_bound(tree):
            self._add_to_rest(tree)

    def _add_of_side(self, tree: Tree, side: int) -> None:
        if side in _KEEPS.get(self._how, (LEFT, RIGHT)) or self._is_versioned:
            self._add_to_rest(tree)
            return
        self._streams[side] = self._streams[side].where(expression(self._sides[side].rewritten(tree)))

    def _add_to_rest(self, tree: Tree) -> None:
        if self._how == "asof" and not self._is_versioned and (self._parts is None or len(self._sides_of(tree)) > 1):
            raise refused(
                tree,
                "an as-of join takes equalities, its bound of time and conditions on a single side, since which row is "
                "the newest would depend on this one; compare in WHERE, or use JOIN … FOR SYSTEM_TIME AS OF, which "
                "asks it of the row that it finds",
            )
        self._found.rest.append(tree)

    def _condition(self, first: int) -> SqlExpression | None:
        """Return the condition on pairs of rows. `first`: the query's side that is the operator's left side."""
        tree = all_of(self._found.rest)
        if tree is None:
            return None

        def change(node: Tree) -> Tree:
            if not isinstance(node, exp.Column):
                return node
            side = self._side(node)
            return column(name_in_pair(LEFT if side == first else RIGHT, self._sides[side].name(node)))

        job = self._streams[LEFT]._job
        return replace(expression(tree.transform(change)), settings=job.expression_settings)

    def _is_key(self, tree: Tree) -> bool:
        sides = [self._sides_of(each) for each in (tree.left, tree.right)]
        if not all(len(each) == 1 for each in sides):
            return False
        values = {next(iter(side)): value for side, value in zip(sides, (tree.left, tree.right), strict=True)}
        windowed = [side for side, value in values.items() if self._is_of_window(value, side)]
        if windowed:
            if len(windowed) < 2 or values[LEFT].name != values[RIGHT].name:
                raise refused(tree, "the window of a table function is compared with the same column of another")
            self._found.windowed |= values[LEFT].name == WINDOW_COLUMNS[0]
            return True
        for side, value in values.items():
            self._found.keys[side].append(self._column(side, value))
        return True

    def _is_of_window(self, value: Tree, side: int) -> bool:
        return self._sides[side].window is not None and isinstance(value, exp.Column) and value.name in WINDOW_COLUMNS

    def _column(self, side: int, value: Tree) -> str:
        """Return the column of a value. If the value is no column, it is computed before the join."""
        if isinstance(value, exp.Column):
            return self._sides[side].name(value)
        name = f"_key{self._number}_{len(self._found.keys[side])}"
        self._streams[side] = self._streams[side].with_column(name, expression(self._sides[side].rewritten(value)))
        return name

    def _is_bound(self, tree: Tree) -> bool:
        if isinstance(tree, exp.Between):
            return self._bound(tree.this, tree.args["low"], "ge") and self._bound(tree.this, tree.args["high"], "le")
        how = _COMPARED.get(type(tree))
        return how is not None and self._bound(tree.this, tree.expression, how)

    def _bound(self, one: Tree, other: Tree, how: str) -> bool:
        """Interpret `one how other`, each a time plus or minus an interval, as a bound of right minus left time."""
        found = [_time(one), _time(other)]
        if None in found:
            return False
        (first, by), (second, more) = found  # type: ignore[misc]
        if {self._side(first), self._side(second)} != {LEFT, RIGHT}:
            return False
        timed = [each for each in (first, second) if self._is_event_time(each)]
        if len(timed) < 2:
            return self._is_end(first, second, how, timed) or self._refuse_bound(one, other)
        for each in timed:
            self._found.times[self._side(each)].add(self._sides[self._side(each)].name(each))
        ahead = more - by
        if self._side(first) == LEFT:
            ahead, how = -ahead, _TURNED[how]
        end = "low" if how in ("ge", "gt") else "high"
        ahead += {"gt": _MICROSECOND, "lt": -_MICROSECOND}.get(how, timedelta())
        before = self._found.bounds.get(end, ahead)
        self._found.bounds[end] = max(before, ahead) if end == "low" else min(before, ahead)
        return True

    def _is_end(self, first: Tree, second: Tree, how: str, timed: Sequence[Tree]) -> bool:
        """Interpret `event time <= column` as the end of the time in which rows of the column's side meet others."""
        if len(timed) != 1 or how != ("le" if timed[0] is first else "ge"):
            return False
        end = second if timed[0] is first else first
        if not self._is_time(end):
            return False
        side = self._side(end)
        self._found.until[side] = self._sides[side].name(end)
        self._found.times[1 - side].add(self._sides[1 - side].name(timed[0]))
        return True

    def _is_time(self, node: Tree) -> bool:
        """Return True if a column may be a time, as far as its type is known."""
        stream = self._sides[self._side(node)].stream
        schema = stream._job.known_schemas.schema(stream._node)
        name = self._sides[self._side(node)].name(node)
        return schema is None or name not in schema.names or pa.types.is_timestamp(schema.field(name).type)

    def _refuse_bound(self, one: Tree, other: Tree) -> bool:
        if any(each.find(exp.Interval) is not None for each in (one, other)):
            raise refused(
                one, "a bound of time is of event time: expected the columns of with_watermark(…) on both sides"
            )
        return False

    def _look_up(self, time: Tree) -> None:
        if not isinstance(time, exp.Column) or self._side(time) != LEFT or not self._is_event_time(time):
            raise refused(time, "AS OF takes the event time of the left side: the column of its with_watermark(…)")
        self._found.bounds["high"] = timedelta()

    def _bound_arguments(self) -> dict[str, Any]:
        """Return the bounds of time as arguments of `join`. Raises `JobRefused`."""
        bounds, until = self._found.bounds, self._found.until
        if self._found.windowed:
            if bounds or until or self._how == "asof":
                raise refused(self._tree, "a join on the window has no other bound of time")
            return {}
        if self._how == "asof":
            if bounds.get("high") != timedelta() or until:
                raise refused(self._tree, "an as-of join has left.time >= right.time, and perhaps a bound from below")
            return {"tolerance": -bounds["low"]} if "low" in bounds else {}
        if until:
            return self._between(bounds, until)
        if set(bounds) == {"low", "high"}:
            return {"within": (bounds["low"], bounds["high"])}
        if bounds or self._how not in ("inner", "semi"):
            left, right = self._sides
            names = list(left.tables)[-1], next(iter(right.tables))
            raise refused(
                self._tree,
                f"a join needs a bound of event time from both sides, such as {names[1]}.at BETWEEN "
                f"{names[0]}.at - INTERVAL 5 MINUTES AND {names[0]}.at",
            )
        return {}

    def _between(self, bounds: dict[str, timedelta], until: dict[int, str]) -> dict[str, Any]:
        ((side, end),) = until.items() if len(until) == 1 else ((None, ""),)
        if side is None or bounds != {"high" if side == RIGHT else "low": timedelta()}:
            raise refused(
                self._tree,
                "a column ends the time in which rows meet only with their event time as its beginning: "
                "b.at BETWEEN a.at AND a.until",
            )
        if side == LEFT and self._how not in _SWAPPED:
            raise refused(self._tree, f"the end of the time is a column of the right side in a {self._how} join")
        start = next(iter(self._found.times[side]))
        return {"between": (start, end)}

    # Sides.

    def _side(self, node: Tree) -> int:
        for side, relation in enumerate(self._sides):
            if qualifier(node) in relation.tables:
                return side
        names = [name for relation in self._sides for name in relation.tables]
        raise refused(node, f"name the table of each column in a join: {' or '.join(names)}")

    def _sides_of(self, tree: Tree) -> set[int]:
        return {self._side(each) for each in tree.find_all(exp.Column)}

    def _is_event_time(self, node: Tree) -> bool:
        side = self._sides[self._side(node)]
        return side.event_times == {side.name(node)}

    def _drop_nulls(self, side: int) -> None:
        """Leave out rows with a null among their keys, since they meet no other row."""
        for name in self._found.keys[side]:
            self._streams[side] = self._streams[side].where(expression(exp.Not(this=_is_null(name))))

    def _copy_keys(self) -> None:
        """Copy key columns that the query names of a side which rows may lack, since joined rows have one for both."""
        same = {a for a, b in zip(*self._found.keys, strict=True) if a == b}
        for side in () if self._parts is None or self._needs_match else _MAY_LACK.get(self._how, ()):
            for (alias, named), name in self._named(side).items():
                if name in same:
                    copy = self._copies[alias, named] = (
                        f"_key{self._number}_of_{'left' if side == LEFT else 'right'}_{name}"
                    )
                    self._streams[side] = self._streams[side].with_column(copy, expression(column(name)))

    def _named(self, side: int) -> dict[tuple[str, str], str]:
        """Return the columns of a side to which the query refers, by their tables and names."""
        relation = self._sides[side]
        return {
            (qualifier(node), node.name): relation.name(node)
            for part in (*(self._parts or ()), *self._found.rest)
            for node in part.find_all(exp.Column)
            if qualifier(node) in relation.tables and not self._is_of_window(node, side)
        }

    def _used(self, side: int) -> list[str] | None:
        """Return the columns that are needed of a side; None: all of them."""
        if self._parts is None:
            return None
        found, relation = self._found, self._sides[side]
        used = [*found.keys[side], *sorted(found.times[side]), *([found.until[side]] if side in found.until else [])]
        if found.windowed:
            used.append(relation.window.column)
        elif self._how == "asof":
            used += sorted(each for each in relation.event_times if each is not None)
        copies = [copy for (alias, _), copy in self._copies.items() if alias in relation.tables]
        return list(dict.fromkeys([*used, *self._named(side).values(), *copies]))

    def _keyed(self, side: int, used: Sequence[str] | None) -> Any:
        rows = self._streams[side] if used is None else self._streams[side].select(*used)
        if side == RIGHT and self._needs_match:
            rows = rows.with_column(_MET, expression(exp.Boolean(this=True)))
        window = [self._sides[side].window] if self._found.windowed else []
        return rows.key_by(*self._found.keys[side], *window)

    def _joined(self, rows: Any, used: Sequence[Sequence[str] | None], suffix: str, first: int) -> QueryRows:
        """Return the joined rows, and the columns that hold the columns of each table."""
        left, right = self._sides
        tables = {**left.tables, **right.tables} if self._how not in ("semi", "anti") else dict(left.tables)
        of_first = used[first] or self._sides[first].columns
        same = {a for a, b in zip(*self._found.keys, strict=True) if a == b}
        known = dict[tuple[str, str], str]()
        for side in (LEFT, RIGHT):
            for named, name in self._named(side).items():
                clashes = side != first and name in of_first and name not in same
                known[named] = self._copies.get(named) or (f"{name}{suffix}" if clashes else name)
        if self._found.windowed:
            known |= {(alias, name): name for alias in tables for name in WINDOW_COLUMNS}
        if self._needs_match:
            rows = rows.where(expression(column(_MET)))
        made = QueryRows(rows, tables, known)
        return self._where_found(made) if self._how == "asof" else made

    def _where_found(self, relation: QueryRows) -> QueryRows:
        """Evaluate the conditions for the rows that were found: if they are not true, no row counts as found."""
        tree = all_of(self._found.rest)
        if tree is None:
            return relation
        condition = expression(relation.rewritten(tree))
        if self._needs_match:
            return replace(relation, stream=relation.stream.where(condition))
        met = f"{_MET}_{self._number}"
        rows = relation.stream.with_column(met, condition)
        for name in {relation.known[named]: None for named in self._named(RIGHT)}:
            rows = rows.with_column(name, expression(exp.If(this=column(met), true=column(name))))
        return replace(relation, stream=rows)


def _is_null(name: str) -> Tree:
    return exp.Is(this=column(name), expression=exp.Null())


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
