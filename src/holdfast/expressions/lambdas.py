"""Higher-order functions over arrays: the lambda runs once over the items of all rows."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from holdfast.expressions.choosing import condition
from holdfast.expressions.lists import kept, list_of, offsets_of, parents_of
from holdfast.expressions.nodes import Binding, ExpressionRefused, Scope, Term, Value, array_of
from holdfast.expressions.types import type_name

SUPPORTED = ("transform", "filter", "exists", "any_match", "forall")


def bound(binder: Binding, name: str, given: Sequence[exp.Expression]) -> Term:
    """Bind a call whose last argument is a lambda. Raises `ExpressionRefused`."""
    if name not in SUPPORTED:
        raise ExpressionRefused(
            f"the function {name} is not supported in expressions; the nearest are "
            f"{', '.join(SUPPORTED)}. Use transform(…) for it"
        )
    if len(given) != 2 or not isinstance(given[1], exp.Lambda):
        raise ExpressionRefused(f"{name}: expected an array and a lambda, such as {name}(items, x -> x > 1)")
    array = binder.bound(given[0])
    if not pa.types.is_list(array.type):
        raise ExpressionRefused(f"{name} of {type_name(array.type)}; expected an array")
    body, item, place = _body(binder, given[1], array.type.value_type, name)
    if name == "transform":
        return _transform(array, body, item, place)
    made = condition(body, f"the lambda of {name}")
    return _filter(array, made, item, place) if name == "filter" else _quantified(name, array, made, item, place)


def _body(binder: Binding, tree: exp.Lambda, kind: pa.DataType, name: str) -> tuple[Term, str, str]:
    names = [each.name for each in tree.expressions]
    if len(names) > (2 if name in ("transform", "filter") else 1):
        raise ExpressionRefused(f"the lambda of {name} takes {len(names)} parameters; that is too many")
    before = dict(binder.parameters)
    keys = [f"\0{len(before) + place} {each}" for place, each in enumerate(names)]
    for key, parameter, of in zip(keys, names, (kind, pa.int32()), strict=False):
        binder.parameters[parameter] = Term(of, _reader(key), name=parameter)
    try:
        return binder.bound(tree.this), keys[0], keys[1] if len(keys) > 1 else ""
    finally:
        binder.parameters = before


def _reader(key: str):  # type: ignore[no-untyped-def]
    return lambda rows: rows.column(key)


def _over_items(array: pa.Array, body: Term, rows: Scope, item: str, place: str) -> pa.Array:
    """Run the lambda over the items of all rows."""
    parents, items = parents_of(array), array.flatten()
    columns = {item: items}
    if place:
        columns[place] = pa.array(np.arange(len(items)) - offsets_of(array)[parents], pa.int32())
    inside = rows.taken(pa.array(parents)).with_columns(columns)
    return array_of(body.run(inside), len(items))


def _transform(array: Term, body: Term, item: str, place: str) -> Term:
    def run(rows: Scope) -> Value:
        found = array_of(array.run(rows), rows.count)
        return list_of(offsets_of(found), _over_items(found, body, rows, item, place), found.is_null())

    return Term(pa.list_(body.type), run, array.fails or body.fails)


def _filter(array: Term, body: Term, item: str, place: str) -> Term:
    def run(rows: Scope) -> Value:
        found = array_of(array.run(rows), rows.count)
        keep = pc.fill_null(_over_items(found, body, rows, item, place), False)
        return kept(found, keep.to_numpy(zero_copy_only=False))

    return Term(array.type, run, array.fails or body.fails)


def _quantified(name: str, array: Term, body: Term, item: str, place: str) -> Term:
    """Make `exists` or `forall`: null where no item decides and the lambda gave null for an item."""
    decides = name != "forall"

    def run(rows: Scope) -> Value:
        found = array_of(array.run(rows), rows.count)
        values = _over_items(found, body, rows, item, place)
        parents = parents_of(found)
        deciding = pc.fill_null(pc.equal(values, decides), False).to_numpy(zero_copy_only=False)
        decided = np.bincount(parents[deciding], minlength=rows.count) > 0
        unknown = np.bincount(parents[values.is_null().to_numpy(zero_copy_only=False)], minlength=rows.count) > 0
        missing = found.is_null().to_numpy(zero_copy_only=False)
        return pa.array(np.where(decided, decides, not decides), mask=missing | (~decided & unknown))

    return Term(pa.bool_(), run, array.fails or body.fails)
