"""SELECT, UNION ALL and WITH, as the streams that a program would declare."""

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from holdfast.errors import JobRefused, SettingsError
from holdfast.expressions.parse import parsed
from holdfast.sql.grouping import Grouping, aggregates_in
from holdfast.sql.joining import Join, of_exists
from holdfast.sql.ranking import limited, ranked
from holdfast.sql.scopes import (
    Table,
    Tree,
    all_of,
    conditions,
    expression,
    output_name,
    refused,
    value_of,
    without_alias,
)

_PARTS = {"expressions", "from_", "where", "group", "having", "joins", "distinct", "with_", "kind", "hint"}
"""The parts of a SELECT that are supported."""
_HOW = {
    ("", ""): "inner", ("", "INNER"): "inner", ("LEFT", ""): "left", ("LEFT", "OUTER"): "left", ("RIGHT", ""): "right",
    ("RIGHT", "OUTER"): "right", ("FULL", ""): "outer", ("FULL", "OUTER"): "outer", ("LEFT", "SEMI"): "semi",
    ("LEFT", "ANTI"): "anti", ("", "SEMI"): "semi", ("", "ANTI"): "anti",
}  # fmt: skip


def query(text: str, streams: Mapping[str, Any], emit: str | None) -> Any:
    """Return the stream of a query. Raises `JobRefused` with the place of a part that is not supported."""
    if not isinstance(text, str) or not text.strip():
        raise SettingsError(f"sql({text!r}): expected a query such as 'SELECT auction FROM bids'")
    if emit not in (None, "final", "changes", "every"):
        raise SettingsError(f"sql(emit={emit!r}): 'final', 'changes' or 'every'")
    tables = {name.lower(): Table(stream) for name, stream in streams.items()}
    made = Queries(emit).table(parsed(text), tables)
    if made.ranked is not None:
        raise JobRefused(f"sql: ROW_NUMBER needs a query around it, with {made.rank_name} <= a number")
    return made.stream


class Queries:
    """The queries of a text. `emit`: of its aggregates."""

    def __init__(self, emit: str | None) -> None:
        self._emit = emit

    def table(self, tree: Tree, tables: Mapping[str, Table]) -> Table:
        """Return the rows of a query. Raises `JobRefused`."""
        if isinstance(tree, exp.Subquery):
            return self.table(tree.this, tables)
        known = dict(tables)
        for each in tree.args["with_"].expressions if tree.args.get("with_") else []:
            if each.args["alias"].args.get("columns") or tree.args["with_"].args.get("recursive"):
                raise refused(each, "WITH RECURSIVE and names of columns behind WITH are not supported")
            known[each.alias.lower()] = self.table(each.this, known)
        if isinstance(tree, exp.Union) and not isinstance(tree, exp.Except | exp.Intersect):
            return self._union(tree, known)
        if not isinstance(tree, exp.Select):
            raise refused(tree, "expected SELECT")
        for part, value in tree.args.items():
            if value and part not in _PARTS:
                raise refused(
                    value[0] if isinstance(value, list) else value, f"{part.rstrip('_').upper()} is not supported"
                )
        return self._select(tree, known)

    def _union(self, tree: Tree, tables: Mapping[str, Table]) -> Table:
        if tree.args.get("distinct") is not False or any(tree.args.get(part) for part in ("order", "limit", "by_name")):
            raise refused(tree, "of unions, UNION ALL is supported")
        left, right = (self.table(each, tables) for each in (tree.left, tree.right))
        stream = right.stream
        if left.names is not None and right.names is not None and left.names != right.names:
            if len(left.names) != len(right.names):
                raise refused(tree, f"the sides have {len(left.names)} and {len(right.names)} columns")
            stream = stream.select(
                **{new: expression(_column(old)) for new, old in zip(left.names, right.names, strict=True)}
            )
        return Table(left.stream.union(stream), left.names)

    def _source(self, tree: Tree, tables: Mapping[str, Table]) -> tuple[str, Table]:
        """Return a table of FROM or JOIN, with its name."""
        if isinstance(tree, exp.Subquery):
            return tree.alias.lower(), self.table(tree.this, tables)
        if not isinstance(tree, exp.Table) or not isinstance(tree.this, exp.Identifier) or tree.args.get("joins"):
            raise refused(tree, "expected the name of a stream, or a subquery")
        found = tables.get(tree.name.lower())
        if found is None:
            raise refused(
                tree,
                f"there is no stream {tree.name!r}; there are {', '.join(tables)}; pass {tree.name}=…",
            )
        return (tree.alias or tree.name).lower(), found

    def _select(self, tree: Tree, tables: Mapping[str, Table]) -> Table:
        if tree.args.get("from_") is None:
            raise refused(tree, "expected FROM")
        alias, source = self._source(tree.args["from_"].this, tables)
        tree = tree.copy()
        where = tree.args.pop("where", None)
        wanted = list(conditions(None if where is None else where.this))
        if tree.args.get("joins"):
            stream = self._joined(tree, (alias, source), tables, wanted)
            wanted, alias = [], ""
        elif source.ranked is not None:
            stream, wanted = limited(source, None if where is None else without_alias(where.this, alias))
        else:
            stream = source.stream
            stream, wanted = self._exists(stream, alias, wanted, tree, tables)
        condition = all_of(wanted)
        if condition is not None:
            _refuse_queries(condition)
            stream = stream.where(expression(without_alias(condition, alias)))
        return self._columns(without_alias(tree, alias), stream, source)

    def _columns(self, tree: Tree, stream: Any, source: Table) -> Table:
        items = tree.expressions
        if tree.args.get("group") or any(aggregates_in(each) for each in items if not each.find(exp.Window)):
            return Grouping(tree, stream, self._emit).table()
        if tree.args.get("having"):
            raise refused(tree.args["having"], "HAVING needs GROUP BY")
        if any(each.find(exp.Window) for each in items):
            return ranked(tree, stream)
        names = None if any(isinstance(each, exp.Star) for each in items) else tuple(map(output_name, items))
        if names is None and len(items) == 1:
            return self._distinct(tree, Table(stream, source.names))
        if names is None:
            if not isinstance(items[0], exp.Star):
                raise refused(items[0], "* stands in the first place")
            return self._distinct(tree, Table(stream.select("*", **_made(items[1:]))))
        if len(set(names)) < len(names):
            raise refused(tree, "two columns have the same name; give one of them another with AS")
        return self._distinct(tree, Table(stream.select(**_made(items)), names))

    def _distinct(self, tree: Tree, table: Table) -> Table:
        distinct = tree.args.get("distinct")
        if not distinct:
            return table
        if distinct.args.get("on") or table.names is None:
            raise refused(tree, "SELECT DISTINCT needs the names of its columns")
        return Table(table.stream.drop_duplicates(*table.names), table.names)

    def _joined(self, tree: Tree, left: tuple[str, Table], tables: Mapping[str, Table], wanted: list[Tree]) -> Any:
        """Join two tables, and put the names of the joined rows' columns into the rest of the query."""
        joins = tree.args.pop("joins")
        if len(joins) > 1:
            raise refused(joins[1], "a query joins two tables; join the others in a subquery")
        join = joins[0]
        how = _HOW.get((str(join.args.get("side") or "").upper(), str(join.args.get("kind") or "").upper()))
        if how is None or join.args.get("method") or join.args.get("using"):
            raise refused(join, "expected [INNER | LEFT | RIGHT | FULL | LEFT SEMI | LEFT ANTI] JOIN … ON …")
        right = self._source(join.this, tables)
        if any(isinstance(each, exp.Star) for each in tree.expressions):
            raise refused(tree, "* is not supported in a join; name the columns")
        parts = [*tree.expressions, *(tree.args[each] for each in ("group", "having") if tree.args.get(each)), *wanted]
        made = Join(join, left, right, how, parts)
        stream = made.stream(join.args.get("on"))
        condition = all_of(wanted)
        if condition is not None:
            stream = stream.where(expression(made.rewritten(condition)))
        tree.set("expressions", [_renamed(made, each) for each in tree.expressions])
        for part in ("group", "having"):
            if tree.args.get(part):
                tree.set(part, made.rewritten(tree.args[part]))
        return stream

    def _exists(
        self, stream: Any, alias: str, wanted: list[Tree], tree: Tree, tables: Mapping[str, Table]
    ) -> tuple[Any, list[Tree]]:
        """Make semi and anti joins of EXISTS and NOT EXISTS; return the conditions that are left."""
        rest = []
        for each in wanted:
            inner = each.this if isinstance(each, exp.Not) else each
            if not isinstance(inner, exp.Exists):
                rest.append(each)
                continue
            if any(isinstance(item, exp.Star) for item in tree.expressions):
                raise refused(each, "EXISTS needs the names of the columns in SELECT, each with its table")
            right = self._source(inner.this.args["from_"].this, tables)
            others = [part for part in wanted if part is not each]
            parts = [*tree.expressions, *(tree.args[key] for key in ("group", "having") if tree.args.get(key)), *others]
            how = "anti" if isinstance(each, exp.Not) else "semi"
            stream = Join(each, (alias, Table(stream)), right, how, parts).stream(of_exists(inner))
        return stream, rest


def _refuse_queries(condition: Tree) -> None:
    inner = condition.find(exp.Subquery, exp.Exists) or next(
        (each for each in condition.find_all(exp.In) if each.args.get("query")), None
    )
    if inner is not None:
        raise refused(inner, "of queries in WHERE, EXISTS and NOT EXISTS are supported, joined to the rest by AND")


def _renamed(join: Join, item: Tree) -> Tree:
    name = exp.to_identifier(output_name(item), quoted=True)
    return exp.Alias(this=join.rewritten(value_of(item)), alias=name)


def _column(name: str) -> Tree:
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def _made(items: list[Tree]) -> dict[str, Any]:
    return {output_name(each): expression(value_of(each)) for each in items}
