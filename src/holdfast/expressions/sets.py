"""Arrays as sets, and the entries of maps. In sets null equals null, NaN equals NaN, and -0.0 equals 0.0."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.conversions import cast
from holdfast.expressions.lists import kept, list_of, offsets_of, parents_of, with_items
from holdfast.expressions.nested import entries_of
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, with_arrays
from holdfast.expressions.table import function
from holdfast.expressions.types import type_name


def _alike(binder: Binding, name: str, left: Term, right: Term) -> tuple[Term, Term]:
    """Return both arrays with items of their common type. Raises `ExpressionRefused`."""
    inner = [Term(each.type.value_type, lambda rows: rows.column("items")) for each in (left, right)]
    kind = binder.together(inner, name)[0].type
    if pa.types.is_nested(kind):
        raise ExpressionRefused(f"{name} of arrays of {type_name(kind)} is not supported; use transform(…)")
    one, other = (cast(each, pa.list_(kind), binder.settings) for each in (left, right))
    return _without_negative_zero(one), _without_negative_zero(other)


def _without_negative_zero(node: Term) -> Term:
    """Return arrays in which -0.0 is replaced by 0.0, as in the results of Spark's functions on sets."""
    if not pa.types.is_floating(node.type.value_type):
        return node
    zero = pa.scalar(0.0, node.type.value_type)
    return applied(
        node.type, with_arrays(lambda array: with_items(array, pc.add(array.flatten(), zero))), node, fails=node.fails
    )


def _codes(left: pa.Array, right: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each item of both arrays; equal items of the same row have the same number."""
    items = pa.concat_arrays([left.flatten(), right.flatten()])
    found = items.dictionary_encode(null_encoding="encode")
    rows = np.concatenate([parents_of(left), parents_of(right)])
    codes = rows * (len(found.dictionary) + 1) + found.indices.to_numpy(zero_copy_only=False)
    return codes[: len(left.flatten())], codes[len(left.flatten()) :]


def _first_of_each(codes: np.ndarray) -> np.ndarray:
    first = np.zeros(len(codes), bool)
    first[np.unique(codes, return_index=True)[1]] = True
    return first


def _both(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.and_(left.is_valid(), right.is_valid())


def _null_unless(given: pa.Array, array: pa.Array) -> pa.Array:
    """Return lists that are null unless `given` is true."""
    return list_of(offsets_of(array), array.flatten(), pc.invert(given))


def _chosen(name: str, is_in: bool) -> None:
    @function(name, "array, array")
    def build(binder: Binding, left: Term, right: Term) -> Term:
        left, right = _alike(binder, name, left, right)

        def kernel(one: pa.Array, other: pa.Array) -> pa.Array:
            mine, others = _codes(one, other)
            return _emptied(kept(one, _first_of_each(mine) & (np.isin(mine, others) == is_in)), _both(one, other))

        return applied(left.type, with_arrays(kernel), left, right)


def _emptied(array: pa.Array, given: pa.Array) -> pa.Array:
    """Return lists that are null and have no items unless `given` is true."""
    keep = given.to_numpy(zero_copy_only=False)[parents_of(array)]
    return _null_unless(given, kept(array, keep))


_chosen("array_intersect", True)
_chosen("array_except", False)


@function("array_union", "array, array")
def array_union(binder: Binding, left: Term, right: Term) -> Term:
    left, right = _alike(binder, "array_union", left, right)

    def kernel(one: pa.Array, other: pa.Array) -> pa.Array:
        parents = np.concatenate([parents_of(one), parents_of(other)])
        codes = np.concatenate(_codes(one, other))
        keep = np.flatnonzero(_first_of_each(codes))
        order = keep[np.argsort(parents[keep], kind="stable")]
        items = pa.concat_arrays([one.flatten(), other.flatten()]).take(pa.array(order))
        counts = np.bincount(parents[order], minlength=len(one))
        made = list_of(np.concatenate(([0], np.cumsum(counts))), items, pa.array(np.zeros(len(one), bool)))
        return _emptied(made, _both(one, other))

    return applied(left.type, with_arrays(kernel), left, right)


@function("arrays_overlap", "array, array")
def arrays_overlap(binder: Binding, left: Term, right: Term) -> Term:
    left, right = _alike(binder, "arrays_overlap", left, right)

    def kernel(one: pa.Array, other: pa.Array) -> pa.Array:
        mine, others = _codes(one, other)
        known = one.flatten().is_valid().to_numpy(zero_copy_only=False)
        count = len(one)
        common = np.bincount(parents_of(one)[known & np.isin(mine, others)], minlength=count) > 0
        filled, lacking = np.ones(count, bool), np.zeros(count, bool)
        for each in (one, other):
            filled &= np.diff(offsets_of(each)) > 0
            nulls = each.flatten().is_null().to_numpy(zero_copy_only=False)
            lacking |= np.bincount(parents_of(each)[nulls], minlength=count) > 0
        given = _both(one, other).to_numpy(zero_copy_only=False)
        return pa.array(common, mask=~given | (~common & filled & lacking))

    return applied(pa.bool_(), with_arrays(kernel), left, right)


@function("map_entries", "map")
def map_entries(_: Binding, node: Term) -> Term:
    kind = pa.struct([("key", node.type.key_type), ("value", node.type.item_type)])

    def kernel(array: pa.Array) -> pa.Array:
        lists = entries_of(array)
        return list_of(offsets_of(lists), lists.flatten().cast(kind), lists.is_null())

    return applied(pa.list_(kind), with_arrays(kernel), node)
