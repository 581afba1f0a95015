"""SELECT, UNION ALL and WITH, as the streams that a program would declare."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from holdfast.errors import JobRefused, SettingsError
from holdfast.expressions.parse import parsed
from holdfast.sql.grouping import Grouping, aggregates_in
from holdfast.sql.joining import is_lookup, join_conditions, joined, kind_of
from holdfast.sql.over import is_over_rows, over_rows
from holdfast.sql.ranking import limited, ranked
from holdfast.sql.relations import Names, QueryRows, free_names, relation_of
from holdfast.sql.scopes import (
    Table,
    Tree,
    all_of,
    column,
    conditions,
    expression,
    output_name,
    refuse_unread,
    refused,
    value_of,
    without_alias,
)
from holdfast.sql.sources import refuse_version, source_of
from holdfast.sql.subqueries import is_of_query, refuse_queries, subquery

_PARTS = {"expressions", "from_", "where", "group", "having", "joins", "distinct", "with_", "kind", "hint"}
"""The parts of a SELECT that are supported."""


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
    if made.window is not None:
        raise JobRefused("sql: the window of a table function is for GROUP BY, PARTITION BY or JOIN with window_start")
    return made.stream


class Queries:
    """The queries of a text. `emit`: the mode of their aggregates."""

    def __init__(self, emit: str | None) -> None:
        self._emit = emit

    def table(self, tree: Tree, tables: Mapping[str, Table]) -> Table:
        """Return the rows of a query. Raises `JobRefused`."""
        if isinstance(tree, exp.Subquery):
            refuse_unread(tree, "this", "alias")
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
        if tree.args.get("distinct") is not False:
            raise refused(tree, "of unions, UNION ALL is supported")
        refuse_unread(tree, "this", "expression", "with_")
        left, right = (relation_of("", self.table(each, tables)).tables[""] for each in (tree.left, tree.right))
        stream = right.stream
        names, others = left.columns, right.columns
        if names is not None and others is not None and names != others:
            if len(names) != len(others):
                raise refused(tree, f"the sides have {len(names)} and {len(others)} columns")
            stream = stream.select(**{new: expression(column(old)) for new, old in zip(names, others, strict=True)})
        return Table(left.stream.union(stream), left.names)

    def _source(self, tree: Tree, tables: Mapping[str, Table]) -> tuple[str, Table]:
        return source_of(tree, tables, lambda inner: self.table(inner, tables))

    def _select(self, tree: Tree, tables: Mapping[str, Table]) -> Table:
        if tree.args.get("from_") is None:
            raise refused(tree, "expected FROM")
        for each in (*tree.expressions, tree.args.get("group"), tree.args.get("having")):
            if each is not None:
                refuse_queries(each)
                for star in each.find_all(exp.Star):
                    refuse_unread(star)
        refuse_version(tree)
        alias, source = self._source(tree.args["from_"].this, tables)
        tree = tree.copy()
        where = tree.args.pop("where", None)
        wanted = list(conditions(None if where is None else where.this))
        if tree.args.get("joins") or any(is_of_query(each) for each in wanted):
            return self._columns(*self._related(tree, relation_of(alias, source), tables, wanted))
        if source.ranked is not None:
            stream, wanted = limited(
                source, None if where is None else without_alias(where.this, alias), tree.expressions
            )
            source = Table(stream)
        condition = all_of(wanted)
        if condition is not None:
            refuse_queries(condition)
            source = replace(source, stream=source.stream.where(expression(without_alias(condition, alias))))
        return self._columns(without_alias(tree, alias), source)

    def _related(
        self, tree: Tree, relation: QueryRows, tables: Mapping[str, Table], wanted: list[Tree]
    ) -> tuple[Tree, Table]:
        """Join the tables of FROM and those of EXISTS and IN; return the rest of the query over the joined rows."""
        joins = tree.args.pop("joins", None) or []
        sources = [self._source(each.this, tables) for each in joins]
        names = Names({**relation.tables, **dict(sources)}, free=free_names(tree))
        if len(names.tables) < 1 + len(sources):
            raise refused(tree, "two tables have the same name; give one of them another with AS")
        before = [Names(dict(list(names.tables.items())[: place + 1])) for place in range(len(joins))]
        ons = [join_conditions(each, of_left, names) for each, of_left in zip(joins, before, strict=True)]
        queries = [subquery(each, names, self._source, tables, self.table) for each in wanted if is_of_query(each)]
        rest = [names.qualified(each) for each in wanted if not is_of_query(each)]
        names.write_out(
            tree, [alias for join, (alias, _) in zip(joins, sources, strict=True) if kind_of(join) in ("semi", "anti")]
        )
        parts = [*tree.expressions, *(tree.args[key] for key in ("group", "having") if tree.args.get(key))]
        parts += [*rest, *(each for query in queries for each in query.conditions)]
        is_inner = all(kind_of(each) == "inner" and not is_lookup(each) for each in joins)
        for number, (join, source) in enumerate(zip(joins, sources, strict=True), 1):
            right = relation_of(*source)
            both = QueryRows(None, {**relation.tables, **right.tables})
            early = [each for each in rest if is_inner and both.has(each)]
            rest = [each for each in rest if each not in early]
            further = [*parts, *(each for later in ons[number:] for each in later)]
            relation = joined(join, (relation, right), names, [*ons[number - 1], *early], further, number)
        for number, query in enumerate(queries, len(joins) + 1):
            relation = query.joined(relation, parts, number)
        return _over(relation, tree), Table(_where(relation, rest))

    def _columns(self, tree: Tree, source: Table) -> Table:
        items, stream = tree.expressions, source.stream
        if tree.args.get("group") or any(aggregates_in(each) for each in items if not each.find(exp.Window)):
            if tree.args.get("distinct"):
                raise refused(tree, "DISTINCT is not supported with GROUP BY")
            return Grouping(tree, source, self._emit).table()
        if tree.args.get("having"):
            raise refused(tree.args["having"], "HAVING needs GROUP BY")
        if any(each.find(exp.Window) for each in items):
            return over_rows(tree, source) if is_over_rows(items) else ranked(tree, source)
        names = None if any(isinstance(each, exp.Star) for each in items) else tuple(map(output_name, items))
        if names is None and len(items) == 1:
            return self._distinct(tree, Table(stream, source.names, window=source.window))
        if source.window is not None:
            raise refused(
                tree, "the window of a table function is for GROUP BY, PARTITION BY or a join that names window_start"
            )
        if names is None:
            if not isinstance(items[0], exp.Star):
                raise refused(items[0], "* has to be the first item of SELECT")
            return self._distinct(tree, Table(stream.select("*", **_made(items[1:]))))
        if len(set(names)) < len(names):
            raise refused(tree, "two columns have the same name; give one of them another with AS")
        return self._distinct(tree, Table(stream.select(**_made(items)), names))

    def _distinct(self, tree: Tree, table: Table) -> Table:
        distinct = tree.args.get("distinct")
        if not distinct:
            return table
        if distinct.args.get("on") or table.columns is None or table.window is not None:
            raise refused(tree, "SELECT DISTINCT needs the names of its columns")
        return Table(table.stream.drop_duplicates(*table.columns), table.names)


def _where(relation: QueryRows, wanted: list[Tree]) -> Any:
    """Return the rows for which the conditions are true."""
    condition = all_of(wanted)
    if condition is None:
        return relation.stream
    refuse_queries(condition)
    return relation.stream.where(expression(relation.rewritten(condition)))


def _over(relation: QueryRows, tree: Tree) -> Tree:
    """Return the rest of a query over the columns of joined rows."""
    tree.set("expressions", [_renamed(relation, each) for each in tree.expressions])
    for part in ("group", "having"):
        if tree.args.get(part):
            tree.set(part, relation.rewritten(tree.args[part]))
    return tree


def _renamed(relation: QueryRows, item: Tree) -> Tree:
    name = exp.to_identifier(output_name(item), quoted=True)
    return exp.Alias(this=relation.rewritten(value_of(item)), alias=name)


def _made(items: list[Tree]) -> dict[str, Any]:
    return {output_name(each): expression(value_of(each)) for each in items}
