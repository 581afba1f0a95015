"""GROUP BY, with windows, HAVING, FILTER and DISTINCT within aggregates, as `key_by(…).aggregate(…)`."""

from datetime import timedelta
from typing import Any

from sqlglot import exp

from holdfast.expressions.literals import interval_value
from holdfast.expressions.types import SPAN
from holdfast.functions.aggregates.declared import APPROXIMATE_RSD, Aggregate
from holdfast.functions.windows.declared import session_window, window
from holdfast.sql.scopes import (
    AGGREGATES,
    WINDOW_COLUMNS,
    WINDOWS,
    Table,
    Tree,
    call_name,
    column,
    expression,
    output_name,
    refuse_unread,
    refused,
    replaced,
    value_of,
)

_ALL = "_all"
"""The key of a query that aggregates all rows; it is the same for all of them."""


def aggregates_in(tree: Tree) -> list[Tree]:
    """Return the aggregate calls within a tree, each with its FILTER."""
    found = []
    for each in tree.find_all(exp.Anonymous):
        if call_name(each) in AGGREGATES and not each.find_ancestor(exp.Lambda):
            found.append(each.parent if isinstance(each.parent, exp.Filter) else each)
    return found


def duration(tree: Tree) -> timedelta:
    """Return the length of an interval: `'10 minutes'`, or `INTERVAL 10 MINUTES`. Raises `JobRefused`."""
    if isinstance(tree, exp.Interval) and isinstance(tree.this, exp.Literal):
        unit = tree.args.get("unit")
        text = tree.this.name if unit is None else f"{tree.this.name} {unit.name}"
    elif isinstance(tree, exp.Literal) and tree.is_string:
        text = tree.name
    else:
        raise refused(tree, "expected a length of time such as '10 minutes' or INTERVAL 10 MINUTES")
    found = interval_value(text, text)
    if found.type != SPAN:
        raise refused(tree, "months and years have no fixed length")
    return timedelta(microseconds=found.value)


class Grouping:
    """The groups of a query. `source`: the rows that are grouped."""

    def __init__(self, tree: Tree, source: Table, emit: str | None) -> None:
        self._tree = tree
        self._source = source
        self._stream = source.stream
        self._emit = emit
        self._keys: list[Any] = []
        self._known: list[tuple[Tree, Tree]] = []
        """Parts of the query, and the columns that hold their values after the grouping."""
        self._windowed = False
        self._made: dict[str, Aggregate] = {}

    def table(self) -> Table:
        """Return the rows of the query. Raises `JobRefused`."""
        group = self._tree.args.get("group")
        if group is not None:
            refuse_unread(group, "expressions")
        for each in [] if group is None else group.expressions:
            if isinstance(each, exp.Rollup | exp.Cube | exp.GroupingSets):
                raise refused(each, "ROLLUP, CUBE and GROUPING SETS are not supported; name the columns")
            self._add_key(self._meant(each))
        self._check_window(group)
        if not self._keys:
            self._stream, self._keys = self._stream.with_column(_ALL, expression(exp.Boolean(this=True))), [_ALL]
        having = self._tree.args.get("having")
        for each in [*self._tree.expressions, *([] if having is None else [having])]:
            for call in aggregates_in(each):
                self._add_aggregate(call, each)
        if not self._made:
            return self._projected(
                self._stream.key_by(*self._keys).aggregate({"_n": Aggregate("count", None)}, emit=self._emit)
            )
        rows = self._stream.key_by(*self._keys).aggregate(self._made, emit=self._emit)
        if having is not None:
            if not self._windowed and self._emit is None:
                raise refused(
                    having,
                    "without a window a group that no longer meets HAVING can't be taken back; emit='changes' keeps it",
                )
            rows = rows.where(expression(self._rewritten(having.this)))
        return self._projected(rows)

    def _projected(self, rows: Any) -> Table:
        columns = {}
        for item in self._tree.expressions:
            if isinstance(item, exp.Star):
                raise refused(item, "* is not supported with GROUP BY; name the columns")
            columns[output_name(item)] = expression(self._rewritten(value_of(item)))
        return Table(rows.select(**columns), tuple(columns))

    def _meant(self, key: Tree) -> Tree:
        """Return the part of SELECT to which a number or an alias refers."""
        items = self._tree.expressions
        if isinstance(key, exp.Literal) and not key.is_string:
            place = int(key.name)
            if not 1 <= place <= len(items):
                raise refused(key, f"there are {len(items)} columns in SELECT")
            return value_of(items[place - 1])
        for item in items:
            if isinstance(item, exp.Alias) and isinstance(key, exp.Column) and item.alias == key.name and not key.table:
                return item.this
        return key

    def _check_window(self, group: Tree | None) -> None:
        """Refuse a grouping that lacks the window of its table function, or the window's partitions."""
        source = self._source
        if source.window is None:
            return
        if not self._windowed:
            raise refused(self._tree if group is None else group, "GROUP BY has to name window_start")
        others = {each for each in self._keys if each is not source.window}
        if source.partition is not None and others != set(source.partition):
            shown = ", ".join(source.partition) or "nothing"
            raise refused(
                group, f"SESSION makes its windows within PARTITION BY {shown}: GROUP BY has to name the same columns"
            )

    def _add_key(self, key: Tree) -> None:
        name = call_name(key)
        if self._source.window is not None and isinstance(key, exp.Column) and key.name in WINDOW_COLUMNS:
            self._keys += [] if self._windowed else [self._source.window]
            self._windowed = True
        elif name in WINDOWS:
            self._add_window(name, key)
        elif isinstance(key, exp.Column) and not key.table:
            self._keys.append(key.name)
        else:
            made = self._computed(key, f"_key{len(self._keys)}")
            self._keys.append(made)
            self._known.append((key, column(made)))

    def _add_window(self, name: str, tree: Tree) -> None:
        given = tree.expressions
        if self._windowed or self._source.window is not None:
            raise refused(tree, "a query groups by a single window")
        least, most = {"window": (2, 4), "tumble": (2, 2), "hop": (3, 3)}.get(name, (2, 2))
        if not least <= len(given) <= most:
            raise refused(tree, f"{name} takes from {least} to {most} arguments")
        if not isinstance(given[0], exp.Column):
            raise refused(tree, "the time of a window has to be a column")
        time, lengths = given[0].name, [duration(each) for each in given[1:]]
        if name in ("session_window", "session"):
            made: Any = session_window(time, lengths[0])
        elif name == "hop":
            made = window(time, lengths[1], lengths[0])
        else:
            made = window(
                time, lengths[0], lengths[1] if len(lengths) > 1 else None, start=lengths[2] if len(lengths) > 2 else 0
            )
        self._keys.append(made)
        self._windowed = True
        struct = "session_window" if name in ("session_window", "session") else "window"
        bounds = [exp.Alias(this=column(f"window_{end}"), alias=exp.to_identifier(end)) for end in ("start", "end")]
        both = exp.Anonymous(this="struct", expressions=bounds)
        for end in ("start", "end"):
            held = column(f"window_{end}")
            self._known.append((exp.Dot(this=tree.copy(), expression=exp.to_identifier(end)), held))
            self._known.append((exp.Column(this=exp.to_identifier(end), table=exp.to_identifier(struct)), held))
            for kind in (name, name.upper()):
                self._known.append(
                    (
                        exp.Anonymous(
                            this=f"{kind}_{end}" if kind == name else f"{kind}_{end.upper()}",
                            expressions=[each.copy() for each in given],
                        ),
                        held,
                    )
                )
        self._known += [(tree, both), (exp.Column(this=exp.to_identifier(struct)), both)]

    def _computed(self, tree: Tree, name: str) -> str:
        """Return the column of a value. If the value is no column, it is computed before the grouping."""
        if isinstance(tree, exp.Column) and not tree.table:
            return str(tree.name)
        self._stream = self._stream.with_column(name, expression(tree))
        return name

    def _add_aggregate(self, call: Tree, item: Tree) -> None:
        if any(call == known for known, _ in self._known):
            return
        filtered = call if isinstance(call, exp.Filter) else None
        inner = call.this if filtered is not None else call
        name = f"_aggregate{len(self._made)}"
        if isinstance(item, exp.Alias) and item.this == call and item.alias not in [*self._made, *map(str, self._keys)]:
            name = item.alias
        self._made[name] = self._aggregate(inner, filtered)
        self._known.append((call, column(name)))

    def _aggregate(self, call: Tree, filtered: Tree | None) -> Aggregate:
        function, given = AGGREGATES[call_name(call)], list(call.expressions)
        where = None if filtered is None else filtered.expression.this
        if call_name(call) == "count_if":
            where, given = (
                (given[0] if where is None else exp.And(this=where.copy(), expression=given[0].copy())),
                [exp.Star()],
            )
        if len(given) == 1 and isinstance(given[0], exp.Distinct):
            if function != "count" or len(given[0].expressions) != 1:
                raise refused(call, "DISTINCT is supported in count(DISTINCT column) alone")
            function, given = "count_distinct", given[0].expressions
        rsd = APPROXIMATE_RSD if function == "approx_count_distinct" else None
        if rsd is not None and len(given) == 2 and isinstance(given[1], exp.Literal) and not given[1].is_string:
            rsd = float(given.pop().name)
        if function == "count" and len(given) == 1 and isinstance(given[0], exp.Star | exp.Literal):
            given = []
        if len(given) != (2 if function in ("max_by", "min_by") else len(given[:1])) or (
            not given and function != "count"
        ):
            raise refused(call, "this number of arguments is not supported")
        if where is not None and function in ("first", "last"):
            raise refused(call, f"{function} with FILTER is not supported")
        number = len(self._made)
        names = [self._computed(each, f"_value{number}_{place}") for place, each in enumerate(given)]
        condition = None if where is None else expression(where)
        first, second = [*names, None, None][:2]
        return Aggregate(function, first, second, condition, rsd)  # type: ignore[arg-type]

    def _rewritten(self, tree: Tree) -> Tree:
        return replaced(tree, self._known)


__all__ = ["Grouping", "aggregates_in", "duration"]
