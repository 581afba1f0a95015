"""Conditions that are passed to a source: it needs to give only rows from which a target gets a row. Pure.

    read ──► where a > 5 ──► select b ──► where b < 3 ──► sink          wanted: a > 5 AND b < 3

The steps stay as they are; a source may pass over groups of rows of which none is wanted. A step that may fail for a
row, or that is a function, needs all rows: a row for which it fails is a bad record.
"""

from collections.abc import Collection, Sequence
from typing import Any

from holdfast.graph.program import MapBatches, OperatorOrigin
from holdfast.graph.projecting import Projection, Selection
from holdfast.graph.resolving import Resolved
from holdfast.sources.wanted import WantedRows


def wanted_of(nodes: Sequence[Resolved], given: Collection[Resolved]) -> WantedRows | None:
    """Return the rows of the first node that the others want; None: all of them. `given`: nodes that targets get."""
    first, read = nodes[0], nodes[0].read
    known: dict[Resolved, Any] = {}
    behind: dict[Resolved, list[Resolved]] = {node: [] for node in nodes}
    for node in reversed(nodes):
        conditions = [_through(each, known[each]) for each in behind[node]]
        is_asked = node not in given and conditions and None not in conditions
        known[node] = _joined("any_true", conditions) if is_asked else None
        for before in node.inputs:
            if before in behind:
                behind[before].append(node)
    settings = next((fn.condition.settings for node in nodes if (fn := _selection(node)) is not None), None)
    if known[first] is None or settings is None or read is None or isinstance(read.origin, OperatorOrigin):
        return None
    watermark = read.watermark
    time = None if watermark is None or watermark.of_batches else watermark.column
    return WantedRows(known[first], first.schema, settings, time)


def _selection(node: Resolved) -> Selection | None:
    """Return the condition in SQL that a node is, over rows that are no changes."""
    fn = node.step.fn if isinstance(node.step, MapBatches) else None
    return fn if isinstance(fn, Selection) and fn.in_sql and fn.kind == "append" else None


def _through(node: Resolved, wanted: Any) -> Any:
    """Return the condition on a node's input that follows from that on its own rows; None: all rows are wanted."""
    selection = _selection(node)
    if selection is not None:
        return _joined("all_true", [each for each in (selection.condition.tree, wanted) if each is not None])
    if wanted is None or node.step is None:
        return wanted
    fn = node.step.fn if isinstance(node.step, MapBatches) else None
    if not isinstance(fn, Projection) or any(each is not None and _may_fail(each) for each in fn.columns.values()):
        return None
    from holdfast.expressions.conditions import over_columns

    return over_columns(wanted, lambda name: _taken(name, fn))


def _may_fail(made: Any) -> bool:
    return bool(getattr(made, "fails", True))


def _joined(how: str, conditions: Sequence[Any]) -> Any:
    from holdfast.expressions import conditions as trees  # the parser, which most jobs do without

    return getattr(trees, how)(conditions)


def _taken(name: str, made: Projection) -> str | None:
    """Return the column of the input that a column of the output is; None if it is computed."""
    from holdfast.expressions.conditions import column_alone

    same = [each for each in made.columns if each == name]
    same = same or [each for each in made.columns if each.lower() == name.lower()]
    if not same:
        return name if made.added else None
    given = made.columns[same[0]] if len(same) == 1 else ""
    return same[0] if given is None else column_alone(getattr(given, "tree", None))
