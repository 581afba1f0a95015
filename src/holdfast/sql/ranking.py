"""`ROW_NUMBER() OVER (PARTITION BY … ORDER BY …)` in a subquery, with `<= n` outside, as `key_by(…).top(n, by=…)`."""

from typing import Any

from sqlglot import exp

from holdfast.functions.windows.declared import WINDOW_START
from holdfast.sql.scopes import Table, Tree, call_name, conditions, expression, refused


def ranked(tree: Tree, source: Any) -> Table:
    """Return the rows of a SELECT with a ROW_NUMBER: they wait for the condition on it. Raises `JobRefused`."""
    windows = list(tree.find_all(exp.Window))
    items = [each for each in tree.expressions if not isinstance(each, exp.Star)]
    if len(windows) != 1 or call_name(windows[0].this) != "row_number":
        raise refused(windows[0], "of functions OVER a window, a single ROW_NUMBER is supported")
    window = windows[0]
    item = next((each for each in items if each.this is window), None)
    if item is None or len(items) != 1 or len(tree.expressions) != 2:
        raise refused(window, "expected SELECT *, ROW_NUMBER() OVER (…) AS name in a subquery")
    keys = [each.name if isinstance(each, exp.Column) else "" for each in window.args.get("partition_by") or []]
    order = window.args.get("order")
    if not keys or not all(keys):
        raise refused(window, "expected PARTITION BY columns")
    if order is None or len(order.expressions) != 1:
        raise refused(window, "expected ORDER BY a single column or expression")
    ordered = order.expressions[0]
    if bool(ordered.args.get("nulls_first")) != (not ordered.args.get("desc")):
        raise refused(window, "NULLS FIRST and NULLS LAST are not supported: nulls come last")
    if not isinstance(ordered.this, exp.Column):
        raise refused(window, "expected ORDER BY a single column; compute it in a subquery")

    def first(count: int) -> Any:
        keyed, by = source.key_by(*keys), ordered.this.name
        is_windowed = WINDOW_START in keys
        if count == 1 and ordered.args.get("desc") and not is_windowed:
            return keyed.last(by=by).with_column(item.alias, expression(exp.Literal.number(1)))
        rows = keyed.top(count, by=by, least=not ordered.args.get("desc"))
        has_rank = not is_windowed and item.alias != "rank"
        return (
            rows.with_column(item.alias, expression(exp.Column(this=exp.to_identifier("rank")))) if has_rank else rows
        )

    return Table(source, None, str(item.alias), first)


def limited(table: Table, where: Tree | None) -> tuple[Any, list[Tree]]:
    """Return the first rows of each group, and the conditions that are left. Raises `JobRefused`."""
    assert table.ranked is not None
    rest, count = [], None
    for each in conditions(where):
        is_rank = isinstance(each.this, exp.Column) and each.this.name == table.rank_name
        number = each.expression if is_rank else None
        if isinstance(number, exp.Literal) and not number.is_string and count is None:
            found = int(number.name)
            count = (
                found
                if isinstance(each, exp.LTE)
                else found - 1
                if isinstance(each, exp.LT)
                else 1
                if isinstance(each, exp.EQ) and found == 1
                else None
            )
            if count is None:
                raise refused(each, f"expected {table.rank_name} <= a number")
        else:
            rest.append(each)
    if count is None:
        raise refused(
            where if where is not None else table.rank_name,
            f"ROW_NUMBER needs {table.rank_name} <= a number in the query around it",
        )
    return table.ranked(count), rest
