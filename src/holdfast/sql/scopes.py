"""Parts of queries: tables and the names under which they are known, changes of trees, refusals with their place."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from holdfast.errors import JobRefused
from holdfast.expressions.declared import SqlExpression
from holdfast.expressions.parse import place_of
from holdfast.graph.nodes import reads_of
from holdfast.graph.program import OperatorOrigin

Tree = Any
"""A node of sqlglot's trees."""
AGGREGATES = {
    "count": "count", "sum": "sum", "min": "min", "max": "max", "avg": "mean", "mean": "mean", "stddev": "stddev",
    "stddev_samp": "stddev", "variance": "variance", "var_samp": "variance", "max_by": "max_by", "min_by": "min_by",
    "collect_list": "collect_list", "array_agg": "collect_list", "collect_set": "collect_set", "first": "first",
    "last": "last", "approx_count_distinct": "approx_count_distinct", "count_if": "count",
}  # fmt: skip
"""The aggregates of SQL, and Holdfast's names for them."""
WINDOW_COLUMNS = ("window_start", "window_end")
WINDOWS = {"window", "session_window", "tumble", "hop", "session"}


@dataclass(frozen=True)
class Table:
    """The rows of a part of a query. `names`: its columns in order, if they are known.

    `ranked`: for `ROW_NUMBER() … AS rank_name`, which needs a condition on the rank: a function that returns the first
    rows of each group, given their number and the columns that the query around it names.
    `window`: the window of a table function such as TUMBLE, for a GROUP BY, PARTITION BY or JOIN with `window_start`.
    """

    stream: Any
    names: tuple[str, ...] | None = None
    rank_name: str = ""
    ranked: Callable[[int, Collection[str] | None], Any] | None = None
    window: Any = None
    partition: tuple[str, ...] | None = None
    """The columns by which the sessions of the window are separate."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names of the columns, if they are known, followed by those of the window."""
        names = self.names
        if names is None:
            schema = self.stream._job.known_schemas.schema(self.stream._node)
            names = None if schema is None else tuple(schema.names)
        return names if names is None or self.window is None else (*names, *WINDOW_COLUMNS)


def refused(tree: Tree, reason: str) -> JobRefused:
    """Return the refusal of a part, with its place in the text."""
    shown = tree.sql("spark") if isinstance(tree, exp.Expression) else str(tree)
    return JobRefused(f"sql: {shown[:120]}{place_of(tree)}: {reason}")


def refuse_unread(tree: Tree, *known: str) -> None:
    """Raise `JobRefused` for a part of a tree that is not one of these, such as PIVOT or TABLESAMPLE of a table."""
    for part, value in tree.args.items():
        if value and part not in known:
            raise refused(tree, f"{part.strip('_').upper()} is not supported")


def expression(tree: Tree) -> SqlExpression:
    """Return a tree as an expression."""
    return SqlExpression(tree.sql("spark"), given=tree)


def conditions(tree: Tree | None) -> Iterator[Tree]:
    """Yield the conditions that AND joins."""
    if tree is None:
        return
    if isinstance(tree, exp.And):
        yield from conditions(tree.left)
        yield from conditions(tree.right)
    elif isinstance(tree, exp.Paren):
        yield from conditions(tree.this)
    else:
        yield tree


def all_of(trees: list[Tree]) -> Tree | None:
    """Join conditions by AND."""
    made: Tree | None = None
    for each in trees:
        made = each.copy() if made is None else exp.And(this=made, expression=each.copy())
    return made


def qualifier(column: Tree) -> str:
    return str(column.table).lower()


def event_times(node: Any, operators: Mapping[str, Any]) -> set[str | None]:
    """Return the event-time columns of the sources of some rows; None is among them if a source has no watermark."""
    found, waiting, seen = set[str | None](), list(reads_of(node)), set[Any]()
    while waiting:
        read = waiting.pop()
        if read in seen:
            continue
        seen.add(read)
        if isinstance(read.origin, OperatorOrigin):
            waiting += operators[read.origin.operator].keyed_reads
        else:
            found.add(read.watermark.column if read.watermark else None)
    return found


def without_alias(tree: Tree, alias: str) -> Tree:
    """Return a tree whose columns do not name the only table: `b.price` becomes `price`."""

    def change(node: Tree) -> Tree:
        if not isinstance(node, exp.Column) or len(node.parts) < 2 or node.parts[0].name.lower() != alias:
            return node
        first, *fields = [each.copy() for each in node.parts[1:]]
        if isinstance(first, exp.Star):
            return first
        made: Tree = exp.Column(this=first)
        for each in fields:
            made = exp.Dot(this=made, expression=each)
        return made

    return tree.copy().transform(change)


def replaced(tree: Tree, known: list[tuple[Tree, Tree]]) -> Tree:
    """Return a tree in which each of the known parts is replaced by another."""

    def change(node: Tree) -> Tree:
        for before, after in known:
            if node == before:
                return after.copy()
        return node

    return tree.copy().transform(change)


def column(name: str) -> Tree:
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def call_name(tree: Tree) -> str:
    """Return the name of a call in lower case; empty for other trees."""
    return str(tree.this).lower() if isinstance(tree, exp.Anonymous) else ""


def output_name(item: Tree) -> str:
    """Return the name of a column of SELECT: its alias, the column's own, or its text."""
    if call_name(item) == "count" and any(isinstance(each, exp.Star) for each in item.expressions):
        return "count(1)"
    named = item.alias or (item.name if isinstance(item, exp.Column) else "")
    return str(named or item.sql("spark", normalize_functions=False))


def value_of(item: Tree) -> Tree:
    return item.this if isinstance(item, exp.Alias) else item
