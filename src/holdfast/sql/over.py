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
from holdfast.sql.scopes import AGGREGATES, Table, Tree, call_name, column, expression, output_name, refused, value_of

TIME, VALUE = "__row_time", "__row_value"
"""Columns of the operator's input: the time of a row, further values that order rows of the same time, and the value
that is aggregated."""


def is_over_rows(items: Sequence[Tree]) -> bool:
    """Return True if a SELECT has an aggregate over a window of rows."""
    windows = [window for item in items for window in item.find_all(exp.Window)]
    return any(call_name(window.this) in AGGREGATES for window in windows)


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
    keys = window.args.get("partition_by") or []
    if not keys or not all(isinstance(each, exp.Column) for each in keys):
        raise refused(window, "expected PARTITION BY columns")
    order = window.args["order"].expressions if window.args.get("order") else []
    if not order or any(each.args.get("desc") or not each.args.get("nulls_first") for each in order):
        raise refused(window, "expected ORDER BY a time, and perhaps further columns, nulls and the least first")
    call = window.this
    function: Any = AGGREGATES[call_name(call)]
    if function not in FUNCTIONS or len(call.expressions) != 1 or isinstance(call.expressions[0], exp.Distinct):
        raise refused(call, f"of aggregates over rows, {', '.join(FUNCTIONS)} of a value are supported")
    value = exp.Boolean(this=True) if isinstance(call.expressions[0], exp.Star) else call.expressions[0]
    columns = {output_name(each): value_of(each) for each in others}
    names = [each.name for each in keys]
    for name in names:
        if not isinstance(columns.get(name), exp.Column) or columns[name].name != name:
            raise refused(window, f"SELECT has to have the column {name} of PARTITION BY")
    further = {f"{TIME}_{place}": each.this for place, each in enumerate(order[1:])}
    made = {**columns, TIME: order[0].this, **further, VALUE: value}
    keyed = source.stream.select(**{name: expression(each) for name, each in made.items()}).key_by(*names)
    aggregates = {output_name(item): Aggregate(function, VALUE)}
    hidden = (TIME, *further, VALUE)
    settings = OverSettings(hidden[:-1], 1 + _rows_before(window), aggregates, keyed._rows.bad_records, hidden)
    made_rows = keyed._over(settings, {}, None)
    order_of_select = tuple(output_name(each) for each in tree.expressions)
    return Table(made_rows.select(**{name: expression(column(name)) for name in order_of_select}), order_of_select)


def _rows_before(window: Tree) -> int:
    """Return the number of rows before a row that are in its window."""
    spec = window.args.get("spec")
    start = None if spec is None else spec.args.get("start")
    is_to_here = spec is not None and str(spec.args.get("end") or "CURRENT ROW").upper() == "CURRENT ROW"
    if not is_to_here or spec.args.get("kind") != "ROWS" or spec.args.get("start_side") != "PRECEDING":
        raise refused(window, "expected ROWS n PRECEDING, or ROWS BETWEEN n PRECEDING AND CURRENT ROW")
    if not isinstance(start, exp.Literal) or start.is_string or int(start.name) >= ROWS_MAX:
        raise refused(window, f"expected a number of rows up to {ROWS_MAX - 1:,}")
    return int(start.name)
