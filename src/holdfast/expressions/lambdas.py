"""Higher-order functions over arrays: the lambda runs once, over the items of all rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from holdfast.expressions.building import map_of_lists
from holdfast.expressions.choosing import condition
from holdfast.expressions.lists import kept, list_of, offsets_of, parents_of
from holdfast.expressions.nested import entries_of
from holdfast.expressions.nodes import Binding, ExpressionRefused, Scope, Term, Value, array_of
from holdfast.expressions.types import type_name

SUPPORTED = (
    "transform", "filter", "exists", "forall", "map_filter", "transform_keys", "transform_values",
    "zip_with", "aggregate", "reduce",
)  # fmt: skip
AGGREGATE_ITEMS_MAX = 100_000
"""Bound on an array's items in `aggregate`, which processes them in turn. A higher value lets a row take longer."""


def bound(binder: Binding, name: str, given: Sequence[exp.Expression]) -> Term:
    """Bind a call whose last argument is a lambda. Raises `ExpressionRefused`."""
    if name not in SUPPORTED:
        raise ExpressionRefused(
            f"the function {name} is not supported in expressions; the nearest are "
            f"{', '.join(SUPPORTED)}. Use transform(…) for it"
        )
    if name == "zip_with":
        return _zip_with(binder, given)
    if name in ("aggregate", "reduce"):
        return _aggregated(binder, name, given)
    if len(given) != 2 or not isinstance(given[1], exp.Lambda):
        raise ExpressionRefused(f"{name}: expected an array and a lambda, such as {name}(items, x -> x > 1)")
    array = binder.bound(given[0])
    if name in ("map_filter", "transform_keys", "transform_values"):
        return _over_map(binder, name, array, given[1])
    if not pa.types.is_list(array.type):
        raise ExpressionRefused(f"{name} of {type_name(array.type)}; expected an array")
    most = 2 if name in ("transform", "filter") else 1
    body, (item, *further) = _body(binder, given[1], (array.type.value_type, pa.int32())[:most], name)
    place = further[0] if further else ""
    if name == "transform":
        return _transform(array, body, item, place)
    made = condition(body, f"the lambda of {name}")
    return _filter(array, made, item, place) if name == "filter" else _quantified(name, array, made, item, place)


def _body(binder: Binding, tree: exp.Lambda, kinds: Sequence[pa.DataType], name: str) -> tuple[Term, tuple[str, ...]]:
    """Return the term of a lambda, and the columns that its parameters read.

    `kinds` are the types of the parameters; a lambda may have fewer.
    """
    names = [each.name for each in tree.expressions]
    if len(names) > len(kinds):
        raise ExpressionRefused(f"the lambda of {name} takes {len(names)} parameters; that is too many")
    before = dict(binder.parameters)
    keys = [f"\0{len(before) + place} {each}" for place, each in enumerate(names)]
    for key, parameter, of in zip(keys, names, kinds, strict=False):
        binder.parameters[parameter] = Term(of, _reader(key), name=parameter)
    try:
        return binder.bound(tree.this), tuple(keys)
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
    """Make `exists` or `forall`. The result is null if no item decides and the lambda returned null for an item."""
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


def _over_map(binder: Binding, name: str, node: Term, tree: exp.Lambda) -> Term:
    """Make `map_filter`, `transform_keys` or `transform_values`, whose lambda takes a key and its value."""
    if not pa.types.is_map(node.type) or len(tree.expressions) != 2:
        raise ExpressionRefused(f"{name}: expected a map and a lambda of its keys and values, such as (k, v) -> v > 1")
    kind = node.type
    body, keys = _body(binder, tree, (kind.key_type, kind.item_type), name)
    made = condition(body, f"the lambda of {name}") if name == "map_filter" else body

    def run(rows: Scope) -> Value:
        lists = entries_of(array_of(node.run(rows), rows.count))
        entries = lists.flatten()
        columns = dict(zip(keys, (entries.field(0), entries.field(1)), strict=True))
        inside = rows.taken(pa.array(parents_of(lists))).with_columns(columns)
        values = array_of(made.run(inside), len(entries))
        if name == "transform_keys":
            entries = pa.StructArray.from_arrays([values, entries.field(1)], ["key", "value"])
            return map_of_lists(list_of(offsets_of(lists), entries, lists.is_null()))
        if name == "map_filter":
            lists = kept(lists, pc.fill_null(values, False).to_numpy(zero_copy_only=False))
            entries, values = lists.flatten(), lists.flatten().field(1)
        missing = lists.is_null() if len(lists) else None
        return pa.MapArray.from_arrays(pa.array(offsets_of(lists)), entries.field(0), values, mask=missing)

    of_keys = body.type if name == "transform_keys" else kind.key_type
    of_values = body.type if name == "transform_values" else kind.item_type
    return Term(pa.map_(of_keys, of_values), run, node.fails or made.fails or name == "transform_keys")


def _zip_with(binder: Binding, given: Sequence[exp.Expression]) -> Term:
    """Make `zip_with`. The shorter array is filled up with nulls."""
    if len(given) != 3 or not isinstance(given[2], exp.Lambda) or len(given[2].expressions) != 2:
        raise ExpressionRefused("zip_with: expected two arrays and a lambda, such as (x, y) -> x + y")
    arrays = [binder.bound(each) for each in given[:2]]
    for each in arrays:
        if not pa.types.is_list(each.type):
            raise ExpressionRefused(f"zip_with of {type_name(each.type)}; expected arrays")
    body, keys = _body(binder, given[2], [each.type.value_type for each in arrays], "zip_with")

    def run(rows: Scope) -> Value:
        found = [array_of(each.run(rows), rows.count) for each in arrays]
        missing = pc.or_(found[0].is_null(), found[1].is_null())
        sizes = [np.diff(offsets_of(each)) for each in found]
        counts = np.where(missing.to_numpy(zero_copy_only=False), 0, np.maximum(*sizes))
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        parents = np.repeat(np.arange(rows.count), counts)
        places = np.arange(offsets[-1]) - offsets[parents]
        columns = {
            key: each.flatten().take(pa.array(offsets_of(each)[parents] + places, mask=places >= size[parents]))
            for key, each, size in zip(keys, found, sizes, strict=True)
        }
        inside = rows.taken(pa.array(parents)).with_columns(columns)
        return list_of(offsets, array_of(body.run(inside), len(parents)), missing)

    return Term(pa.list_(body.type), run, any(each.fails for each in (*arrays, body)))


def _aggregated(binder: Binding, name: str, given: Sequence[Any]) -> Term:
    """Make `aggregate`. The lambda takes the value so far and an item, for all rows at once, item after item."""
    if len(given) not in (3, 4) or not all(isinstance(each, exp.Lambda) for each in given[2:]):
        raise ExpressionRefused(
            f"{name}: expected an array, a start and a lambda, such as {name}(items, 0, (a, x) -> a + x)"
        )
    array, start = binder.bound(given[0]), binder.bound(given[1])
    if not pa.types.is_list(array.type):
        raise ExpressionRefused(f"{name} of {type_name(array.type)}; expected an array")
    body, (so_far, *item) = _body(binder, given[2], (start.type, array.type.value_type), name)
    if body.type != start.type:
        raise ExpressionRefused(
            f"{name}: the lambda gives {type_name(body.type)} and the start is {type_name(start.type)}; cast the start"
        )
    end, end_key = body, ""
    if len(given) == 4:
        end, (end_key,) = _body(binder, given[3], (start.type,), name)

    def run(rows: Scope) -> Value:
        found, values = array_of(array.run(rows), rows.count), array_of(start.run(rows), rows.count)
        offsets, items = offsets_of(found), found.flatten()
        counts = np.diff(offsets)
        if counts.max(initial=0) > AGGREGATE_ITEMS_MAX:
            raise pa.ArrowInvalid(f"{name}: more than {AGGREGATE_ITEMS_MAX:,} items are not supported in expressions")
        for place in range(int(counts.max(initial=0))):
            at = np.flatnonzero(counts > place)
            columns = {so_far: values.take(pa.array(at))}
            columns |= {key: items.take(pa.array(offsets[at] + place)) for key in item}
            made = array_of(body.run(rows.taken(pa.array(at)).with_columns(columns)), len(at))
            order = np.arange(rows.count)
            order[at] = rows.count + np.arange(len(at))
            values = pa.concat_arrays([values, made]).take(pa.array(order))
        if end_key:
            values = array_of(
                end.run(rows.taken(pa.array(np.arange(rows.count))).with_columns({end_key: values})), rows.count
            )
        missing = found.is_null().to_numpy(zero_copy_only=False)
        return values.take(pa.array(np.arange(rows.count), mask=missing)) if missing.any() else values

    return Term(end.type, run, any(each.fails for each in (array, start, body, end)))
