"""EXISTS and IN with a query, as semi and anti joins."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from holdfast.sql.joining import Join
from holdfast.sql.relations import Names, QueryRows, relation_of
from holdfast.sql.scopes import Table, Tree, all_of, column, conditions, refused, value_of
from holdfast.sql.sources import refuse_version

_PLAIN = {"expressions", "from_", "where", "distinct", "kind"}
"""The parts of a query whose conditions may name columns of the query around it."""


def is_of_query(tree: Tree) -> bool:
    """Return True if a condition is EXISTS or IN with a query, or its negation."""
    inner = tree.this if isinstance(tree, exp.Not) else tree
    return isinstance(inner, exp.Exists) or (isinstance(inner, exp.In) and inner.args.get("query") is not None)


def refuse_queries(condition: Tree) -> None:
    """Raise `JobRefused` for a query inside a condition."""
    inner = condition.find(exp.Subquery, exp.Exists) or next(
        (each for each in condition.find_all(exp.In) if each.args.get("query")), None
    )
    if inner is not None:
        raise refused(
            inner, "of queries in a condition or a column, EXISTS and IN are supported, in WHERE, joined by AND"
        )


@dataclass(frozen=True)
class Subquery:
    """A query in WHERE: the condition in which it is used, its rows, and how they join the rows around it."""

    tree: Tree
    relation: QueryRows
    conditions: list[Tree]
    how: str

    def joined(self, relation: QueryRows, parts: list[Tree], number: int) -> QueryRows:
        """Return the rows around it that meet the condition. Raises `JobRefused`."""
        join = Join(self.tree, (relation, self.relation), self.how, parts, number=number)
        return join.relation(all_of(self.conditions))


def subquery(
    tree: Tree,
    names: Names,
    source: Callable[[Tree, Mapping[str, Table]], tuple[str, Table]],
    tables: Mapping[str, Table],
    table: Callable[[Tree, Mapping[str, Table]], Table],
) -> Subquery:
    """Return a query in WHERE. `source` makes a table of FROM, `table` the rows of a query. Raises `JobRefused`."""
    negated, inner = isinstance(tree, exp.Not), tree.this if isinstance(tree, exp.Not) else tree
    is_in = isinstance(inner, exp.In)
    query = inner.args["query"].this if is_in else inner.this
    if negated and is_in:
        raise refused(tree, "NOT IN has no rows if there is a null among the values; write NOT EXISTS")
    if not isinstance(query, exp.Select) or query.args.get("from_") is None:
        raise refused(tree, "expected SELECT … FROM … in the query")
    is_plain = not any(value and part not in _PLAIN for part, value in query.args.items())
    if is_plain:
        refuse_version(query)
        alias, found = source(query.args["from_"].this, tables)
        where = query.args.get("where")
        values = [value_of(each) for each in query.expressions]
    elif is_in:
        alias, found, where = "_in", table(query, tables), None
        values = [column(each) for each in found.columns or ()]
    else:
        raise refused(query, "EXISTS takes SELECT … FROM a table WHERE …; put the rest into a subquery in FROM")
    if alias in names.tables:
        raise refused(query, f"the query around it has a table {alias!r}, too; give one of them another name with AS")
    within = Names({alias: found}, names.tables)
    wanted = [within.qualified(each) for each in conditions(None if where is None else where.this)]
    if is_in:
        wanted += _equalities(inner, values, names, within)
    return Subquery(tree, relation_of(alias, found), wanted, "anti" if negated else "semi")


def _equalities(tree: Tree, values: list[Tree], names: Names, within: Names) -> list[Tree]:
    given: list[Any] = tree.this.expressions if isinstance(tree.this, exp.Tuple) else [tree.this]
    if len(given) != len(values):
        raise refused(tree, f"IN compares {len(given)} values with {len(values)} columns")
    return [
        exp.EQ(this=names.qualified(left), expression=within.qualified(right))
        for left, right in zip(given, values, strict=True)
    ]
