"""The rows of FROM: tables by their names in the query, joined one after the other, and the table of each column."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from holdfast.sql.scopes import (
    WINDOW_COLUMNS,
    Table,
    Tree,
    column,
    event_times,
    output_name,
    qualifier,
    refused,
    value_of,
)


@dataclass(frozen=True)
class QueryRows:
    """Rows of tables by their names in the query. `known`: the column of the rows that holds each table's column; the
    columns of a single table keep their names."""

    stream: Any
    tables: Mapping[str, Table]
    known: Mapping[tuple[str, str], str] = field(default_factory=dict)
    window: Any = None
    """The window of a table function, if the rows are those of a single table."""

    @property
    def event_times(self) -> set[str | None]:
        """The columns that hold event time."""
        return event_times(self.stream._node, self.stream._job.declared.operators)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a single table. Raises `JobRefused` if they are not known."""
        (alias, table), *_ = self.tables.items()
        if table.columns is None:
            raise refused(alias, "the columns of this side are not known before the start; use key_by(…).join(…)")
        return table.columns

    def name(self, node: Tree) -> str:
        """Return the column of the rows for a column that names its table."""
        return self.known.get((qualifier(node), node.name), node.name)

    def has(self, tree: Tree) -> bool:
        """Return True if all columns of a tree belong to these tables."""
        return all(qualifier(each) in self.tables for each in tree.find_all(exp.Column))

    def rewritten(self, tree: Tree) -> Tree:
        """Return a tree over the columns of the rows."""

        def change(node: Tree) -> Tree:
            if isinstance(node, exp.Column) and qualifier(node) in self.tables:
                return column(self.name(node))
            return node

        return tree.copy().transform(change)


def relation_of(alias: str, table: Table) -> QueryRows:
    """Return a single table as a relation. Raises `JobRefused` if its rows depend on a condition on their rank."""
    if table.ranked is not None:
        raise refused(
            table.rank_name,
            f"ROW_NUMBER needs {table.rank_name} <= a number; put that query into a subquery of its own",
        )
    return QueryRows(table.stream, {alias: table}, window=table.window)


def free_names(tree: Tree) -> set[str]:
    """Return the names in a SELECT that may not be columns: aliases, and windows of GROUP BY."""
    aliases = {each.alias for each in tree.expressions if isinstance(each, exp.Alias)}
    return {*aliases, "window", "session_window", *WINDOW_COLUMNS}


class Names:
    """The tables that a part of a query sees. `outer`: the tables of the query around it, which are searched last.
    `free`: names that may mean something else: aliases of SELECT, and windows of GROUP BY."""

    def __init__(
        self, tables: Mapping[str, Table], outer: Mapping[str, Table] | None = None, free: Collection[str] = ()
    ) -> None:
        self._free = free
        self.merged = dict[str, str]()
        """The table of each column of USING, which both sides have."""
        self._tables = {**(outer or {}), **tables}
        self._scopes = [dict(tables), *([dict(outer)] if outer else [])]
        self._columns = {alias: table.columns for alias, table in self._tables.items()}

    def qualified(self, tree: Tree) -> Tree:
        """Return a tree in which each column names its table; fields of structs are read from columns."""

        def change(node: Tree) -> Tree:
            return self._qualified(node) if isinstance(node, exp.Column) else node

        return tree.copy().transform(change)

    def _starred(self, items: list[Tree], hidden: Collection[str]) -> list[Tree]:
        made: list[Tree] = []
        for item in items:
            is_of_table = isinstance(item, exp.Column) and isinstance(item.this, exp.Star)
            if not isinstance(item, exp.Star) and not is_of_table:
                made.append(item)
                continue
            for alias in [qualifier(item)] if is_of_table else [each for each in self._scopes[0] if each not in hidden]:
                columns = self._columns.get(alias)
                if columns is None:
                    raise refused(item, f"the columns of {alias} are not known before the start; name them")
                made += [_column(each, alias) for each in columns]
        return made

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by their names in the query."""
        return dict(self._scopes[0])

    def write_out(self, tree: Tree, hidden: Collection[str] = ()) -> None:
        """Add the table to each column in SELECT, GROUP BY and HAVING, and expand `*`, without hidden tables."""
        items = [
            exp.Alias(this=self.qualified(value_of(each)), alias=exp.to_identifier(output_name(each), quoted=True))
            for each in self._starred(tree.expressions, hidden)
        ]
        tree.set("expressions", items)
        for part in ("group", "having"):
            if tree.args.get(part):
                tree.set(part, self.qualified(tree.args[part]))

    def _qualified(self, node: Tree) -> Tree:
        parts = [node.args[each].name for each in ("catalog", "db", "table") if node.args.get(each)] + [node.name]
        if len(parts) > 1 and parts[0].lower() in self._tables:
            alias, parts = parts[0].lower(), parts[1:]
        else:
            found = self._table_of(parts[0], node)
            if found is None:
                return node
            alias = found
        made = _column(self._cased(alias, parts[0]), alias)
        made.this.meta.update(node.this.meta)
        for each in parts[1:]:
            made = exp.Dot(this=made, expression=exp.to_identifier(each))
        return made

    def _table_of(self, name: str, node: Tree) -> str | None:
        """Return the only table with a column of that name; None if the name means something else."""
        if name in self.merged:
            return self.merged[name]
        for scope in self._scopes:
            if any(self._columns[alias] is None for alias in scope):
                break
            found = [alias for alias in scope if _has(self._columns[alias], name)]
            if len(found) > 1:
                raise refused(node, f"{name} is a column of {' and of '.join(found)}; name its table")
            if found:
                return found[0]
        if name in self._free:
            return None
        if all(columns is not None for columns in self._columns.values()):
            shown = "; ".join(f"{alias} has {', '.join(self._columns[alias] or ())}" for alias in self._tables)
            raise refused(node, f"there is no column {name!r}; {shown}")
        raise refused(node, f"name the table of each column: {' or '.join(self._tables)}")

    def _cased(self, alias: str, name: str) -> str:
        columns = self._columns[alias]
        same = [] if columns is None else [each for each in columns if each.lower() == name.lower()]
        return name if columns is None or name in columns or len(same) != 1 else same[0]


def _has(columns: tuple[str, ...] | None, name: str) -> bool:
    return name.lower() in {each.lower() for each in columns or ()}


def _column(name: str, alias: str) -> Tree:
    return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True))
