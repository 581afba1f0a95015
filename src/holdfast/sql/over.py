"""Aggregates `OVER (PARTITION BY … ORDER BY time ROWS n PRECEDING)`: each row gets an aggregate of the rows before it.

A row waits until the watermark has passed its time, so that rows are given out in the order of ORDER BY, and not in the
order of arrival. Rows with the same time are given out in the order of arrival.
"""

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from holdfast.functions.aggregates.declared import Aggregate
from holdfast.functions.over.declared import ROWS_MAX, OverSettings
from holdfast.functions.over.frames import FUNCTIONS
from holdfast.functions.rows.columns import RESERVED_PREFIX
from holdfast.sql.scopes import (
    AGGREGATES,
    Table,
    Tree,
    call_name,
    column,
    expression,
    output_name,
    refuse_unread,
    refused,
    value_of,
)


def is_over_rows(items: Sequence[Tree]) -> bool:
    """Return True if a SELECT has an aggregate over a window of rows."""
    windows = [window for item in items for window in item.find_all(exp.Window)]
    return any(call_name(_call_of(window)) in AGGREGATES for window in windows)


def over_rows(tree: Tree, source: Table) -> Table:
    """Return the rows of a SELECT with an aggregate over rows. Raises `JobRefused`."""
    windows = [window for item in tree.expressions for window in item.find_all(exp.Window)]
    window = windows[0]
    item = next((each for each in tree.expressions if value_of(each) is window), None)
    others = [each for each in tree.expressions if each is not item]
    if tree.args.get("distinct"):
        raise refused(tree, "DISTINCT is not supported with aggregates over rows")
    if len(windows) != 1 or item is None or source.window is not None or any(each.find(exp.Star) for each in others):
        raise refused(window, "expected SELECT with the names of columns and a single aggregate OVER (…) AS name")
    names = tuple(map(output_name, tree.expressions))
    if len(set(names)) < len(names):
        raise refused(tree, "two columns have the same name; give one of them another with AS")
    keys = window.args.get("partition_by") or []
    if not keys or not all(isinstance(each, exp.Column) for each in keys):
        raise refused(window, "expected PARTITION BY columns")
    refuse_unread(window, "this", "partition_by", "order", "spec", "over")
    function, value = _aggregate(window)
    columns = {output_name(each): value_of(each) for each in others}
    for name in (each.name for each in keys):
        if not isinstance(columns.get(name), exp.Column) or columns[name].name != name:
            raise refused(window, f"SELECT has to have the column {name} of PARTITION BY")
    made = dict(columns)
    by = tuple(_added(made, each) for each in _order(window))
    read = None if value is None else _added(made, value)
    keyed = source.stream.select(**{name: expression(each) for name, each in made.items()})
    keyed = keyed.key_by(*(each.name for each in keys))
    name = output_name(item)
    own = name.replace(".", "_").lstrip("_") or function
    while own in made:
        own += "_"
    hidden = tuple(each for each in made if each not in columns)
    aggregates = {own: Aggregate(function, read)}
    settings = OverSettings(by, 1 + _rows_before(window), aggregates, keyed._rows.bad_records, hidden)
    given = keyed._over(settings, {}, None)
    return Table(given.select(**{each: expression(column(own if each == name else each)) for each in names}), names)


def _call_of(window: Tree) -> Tree:
    """Return the call of a window's aggregate."""
    call = window.this
    while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return call


def _aggregate(window: Tree) -> tuple[Any, Tree | None]:
    """Return the function of an aggregate, and the value that it reads: null in the rows that do not count."""
    call, outer = _call_of(window), window.this
    wheres = [outer.expression.this] if isinstance(outer, exp.Filter) else []
    if call is not (outer.this if wheres else outer):
        raise refused(outer, "IGNORE NULLS and RESPECT NULLS are not supported with aggregates over rows")
    function = AGGREGATES[call_name(call)]
    if function not in FUNCTIONS or len(call.expressions) != 1:
        raise refused(call, f"of aggregates over rows, {', '.join(FUNCTIONS)} of a value are supported")
    value = call.expressions[0]
    if isinstance(value, exp.Distinct | exp.Order):
        raise refused(call, "DISTINCT and ORDER BY are not supported in aggregates over rows")
    if call_name(call) == "count_if":
        wheres.append(value)
    if call_name(call) == "count_if" or (function == "count" and isinstance(value, exp.Star | exp.Literal)):
        value = exp.Boolean(this=True) if wheres else None
    for where in wheres:
        value = exp.Case(ifs=[exp.If(this=where.copy(), true=value.copy())])
    return function, value


def _order(window: Tree) -> list[Tree]:
    """Return the values of ORDER BY."""
    order = window.args["order"].expressions if window.args.get("order") else []
    if not order or any(each.args.get("desc") or not each.args.get("nulls_first") for each in order):
        raise refused(window, "expected ORDER BY a time, and perhaps further columns, nulls and the least first")
    for each in order:
        refuse_unread(each, "this", "nulls_first", "desc")
    return [each.this for each in order]


def _added(made: dict[str, Tree], value: Tree) -> str:
    """Return the name of a value's column in the operator's input, and add the column if it is not there.

    The name is the text of the value, because stored state belongs to names: another value has state of its own.
    """
    name = _text(value)
    if name in made and _text(made[name]) != name:
        name = f"{RESERVED_PREFIX}{name}"
    made.setdefault(name, value)
    return name


def _text(value: Tree) -> str:
    value = value.unnest()
    is_name = isinstance(value, exp.Column) and not value.table
    return str(value.name if is_name else value.sql("spark", normalize_functions=False, comments=False))


def _rows_before(window: Tree) -> int:
    """Return the number of rows before a row that are in its window."""
    spec = window.args.get("spec")
    start = None if spec is None else spec.args.get("start")
    is_to_here = spec is not None and str(spec.args.get("end") or "CURRENT ROW").upper() == "CURRENT ROW"
    if not is_to_here or spec.args.get("kind") != "ROWS" or spec.args.get("start_side") != "PRECEDING":
        raise refused(window, "expected ROWS n PRECEDING, or ROWS BETWEEN n PRECEDING AND CURRENT ROW")
    refuse_unread(spec, "kind", "start", "start_side", "end")
    if not isinstance(start, exp.Literal) or not start.name.isdigit() or int(start.name) >= ROWS_MAX:
        raise refused(window, f"expected a whole number of rows, up to {ROWS_MAX - 1:,}")
    return int(start.name)
