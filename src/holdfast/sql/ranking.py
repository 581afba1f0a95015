"""`ROW_NUMBER()` and `RANK()` of partitions in a subquery, with `<= n` outside it, as `key_by(…).top(n, by=…)`."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlglot import exp

from holdfast.expressions.declared import SqlExpression
from holdfast.functions.windows.declared import WINDOW_END, WINDOW_START
from holdfast.graph.projecting import Omission
from holdfast.sql.scopes import (
    WINDOW_COLUMNS,
    Table,
    Tree,
    call_name,
    column,
    conditions,
    event_times,
    expression,
    output_name,
    refused,
    value_of,
)

_RANKS = {"row_number": False, "rank": True}
"""The functions of ranks, and whether rows that are equal to the last row are included."""


def ranked(tree: Tree, source: Table) -> Table:
    """Return the rows of a SELECT with a rank, which need a condition on the rank. Raises `JobRefused`."""
    windows = [window for item in tree.expressions for window in item.find_all(exp.Window)]
    if len(windows) != 1 or call_name(windows[0].this) not in _RANKS:
        raise refused(windows[0], "of functions OVER a window, a single ROW_NUMBER or RANK is supported")
    window = windows[0]
    item = next((each for each in tree.expressions if value_of(each) is window), None)
    if item is None or tree.args.get("distinct"):
        raise refused(window, "expected SELECT columns, ROW_NUMBER() OVER (…) AS name in a subquery")
    if window.args.get("spec") is not None:
        raise refused(window, "a rank has no ROWS or RANGE")
    rank = _Rank(window, source, output_name(item), [each for each in tree.expressions if each is not item])
    return Table(source.stream, None, rank.name, rank.first)


class _Rank:
    """The first rows of each partition. `name`: the column with the rank. `items`: the other columns of SELECT."""

    def __init__(self, window: Tree, source: Table, name: str, items: Sequence[Tree]) -> None:
        self.name = name
        self._window = window
        self._items = items
        self._source = source
        self._ties = _RANKS[call_name(window.this)]
        keys = window.args.get("partition_by") or []
        if not keys or not all(isinstance(each, exp.Column) for each in keys):
            raise refused(window, "expected PARTITION BY columns")
        self._keys = [each.name for each in keys]
        self._without_nulls = list[str]()
        """Columns of ORDER BY whose nulls would come first: such rows are bad records."""
        self._order = (
            [self._ordered(each) for each in window.args["order"].expressions] if window.args.get("order") else []
        )
        if not self._order:
            raise refused(window, "expected ORDER BY a column")
        if source.window is not None and WINDOW_START not in self._keys:
            raise refused(window, "PARTITION BY has to name window_start, which the table function gives")
        if source.partition is not None and {*self._keys} - {*WINDOW_COLUMNS} != set(source.partition):
            raise refused(window, "SESSION makes its windows within PARTITION BY: name the same columns here")

    def _ordered(self, item: Tree) -> tuple[str, bool]:
        """Return a column of ORDER BY, and whether its lowest values come first."""
        least, nulls_first = not item.args.get("desc"), bool(item.args.get("nulls_first"))
        if nulls_first and not least:
            raise refused(self._window, "NULLS FIRST is not supported: nulls come last")
        if not isinstance(item.this, exp.Column):
            raise refused(self._window, "expected ORDER BY columns; compute them in a subquery")
        if nulls_first:
            self._without_nulls.append(item.this.name)
        return item.this.name, least

    @property
    def _is_windowed(self) -> bool:
        return WINDOW_START in self._keys

    def first(self, count: int, names: Collection[str] | None) -> Any:
        """Return the first rows of each partition. `names`: the columns that are needed; None: all of them."""
        named = names is None or self.name in names
        if self._ties and not self._is_windowed:
            raise refused(
                self._window, "RANK gives ties, which need a window: PARTITION BY window_start; or ROW_NUMBER"
            )
        if len(self._order) > 1 and (not self._is_windowed or count > 1 or self._ties):
            raise refused(self._window, "ORDER BY several columns is supported for the first row of a window alone")
        if self._is_windowed and named and count > 1:
            raise refused(self._window, f"behind a window the rows have no {self.name}; name the other columns alone")
        rows, has_rank = self._ranked(count, self._needed(names))
        if named and not has_rank:
            rows = rows.with_column(self.name, expression(exp.Literal.number(1)))
        elif has_rank and self.name != "rank":
            rows = rows.with_column(self.name, expression(column("rank")))._then(Omission(("rank",)))
        return self._projected(rows, named)

    def _needed(self, names: Collection[str] | None) -> list[str] | None:
        """Return the columns of the source that are needed; None: all of them."""
        if not any(isinstance(each, exp.Star) for each in self._items):
            names = [node.name for item in self._items for node in item.find_all(exp.Column)]
        if names is None:
            return None
        given = [] if self._source.window is None else [self._source.window.column]
        hidden = WINDOW_COLUMNS if given else ()
        wanted = [*self._keys, *given, *(by for by, _ in self._order), *(name for name in names if name != self.name)]
        return [name for name in dict.fromkeys(wanted) if name not in hidden]

    def _ranked(self, count: int, needed: list[str] | None) -> tuple[Any, bool]:
        """Return the rows, and whether they have a column with their rank."""
        by, least = self._order[0]
        rows = self._source.stream if needed is None else self._source.stream.select(*map(_quoted, needed))
        known = event_times(rows._node, rows._job.declared.operators)
        for name in [each for each in self._without_nulls if each not in known]:
            rows = rows.with_column(name, _or_fail(name))
        keyed = rows.key_by(*self._given_keys())
        if not self._is_windowed and count == 1 and not least:
            return keyed.last(by=by), False
        rows = keyed.top(count, by=by, least=least, ties=self._ties or len(self._order) > 1)
        for place, (by, least) in enumerate(self._order[1:], 2):
            rows = rows.key_by(*self._later_keys()).top(1, by=by, least=least, ties=place < len(self._order))
        return rows, not self._is_windowed

    def _given_keys(self) -> list[Any]:
        window = self._source.window
        if window is None:
            return list(self._keys)
        keys: list[Any] = [each for each in self._keys if each != WINDOW_END]
        return [window if each == WINDOW_START else each for each in keys]

    def _later_keys(self) -> list[str]:
        """Return the columns of the partition after a window, whose bounds are columns there."""
        return list(dict.fromkeys([*self._keys, WINDOW_START]))

    def _projected(self, rows: Any, named: bool) -> Any:
        """Return the columns of SELECT."""
        if any(isinstance(each, exp.Star) for each in self._items):
            if len(self._items) > 1:
                raise refused(self._window, "expected SELECT *, or the names of the columns, beside the rank")
            return rows
        made = {output_name(each): expression(value_of(each)) for each in self._items}
        return rows.select(**made, **({self.name: expression(column(self.name))} if named else {}))


def limited(table: Table, where: Tree | None, items: Sequence[Tree]) -> tuple[Any, list[Tree]]:
    """Return the first rows of each group, and the remaining conditions. Raises `JobRefused`."""
    assert table.ranked is not None
    rest, count = list[Tree](), None
    for each in conditions(where):
        is_rank = isinstance(each.this, exp.Column) and each.this.name == table.rank_name
        number = each.expression if is_rank else None
        if isinstance(number, exp.Literal) and not number.is_string and count is None:
            found = int(number.name)
            count = {exp.LTE: found, exp.LT: found - 1, exp.EQ: found if found == 1 else None}.get(type(each))
            if count is None or count < 1:
                raise refused(each, f"expected {table.rank_name} <= a number from 1")
        else:
            rest.append(each)
    if count is None:
        raise refused(
            where if where is not None else table.rank_name,
            f"ROW_NUMBER needs {table.rank_name} <= a number in the query around it",
        )
    trees = [*items, *rest]
    if any(_is_star(each) for each in trees):
        return table.ranked(count, None), rest
    return table.ranked(count, [node.name for each in trees for node in each.find_all(exp.Column)]), rest


def _is_star(item: Tree) -> bool:
    return isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star))


def _or_fail(name: str) -> SqlExpression:
    """Return a column as an expression that fails for null."""
    message = f"ORDER BY {name}: nulls would come first, which is not supported; write {name} NULLS LAST"
    failing = exp.Anonymous(this="raise_error", expressions=[exp.Literal.string(message)])
    return expression(exp.Anonymous(this="coalesce", expressions=[column(name), failing]))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
