"""Functions that build arrays and maps: from other arrays and maps, from entries, from texts, and by counting."""

from collections.abc import Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.conversions import cast
from holdfast.expressions.lists import list_of, offsets_of, parents_of
from holdfast.expressions.mapping import mapped
from holdfast.expressions.nested import entries_of
from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, failed_where, with_arrays
from holdfast.expressions.table import function
from holdfast.expressions.times import text_constant
from holdfast.expressions.types import is_integer, type_name, wider_number

SEQUENCE_ITEMS_MAX = 10_000_000
"""Bound on the items of all arrays that `sequence` makes for a batch. A higher value needs more memory."""


def joined_arrays(binder: Binding, given: Sequence[Term]) -> Term:
    """Make `concat` of arrays: the result is null if one of them is null."""
    arrays = binder.together(given, "concat")
    if not pa.types.is_list(arrays[0].type):
        raise ExpressionRefused(f"concat of {type_name(arrays[0].type)}; expected arrays, or texts")
    return applied(arrays[0].type, with_arrays(_joined), *arrays)


def _joined(*arrays: pa.Array) -> pa.Array:
    given = reduce(pc.and_, [each.is_valid() for each in arrays])
    parents = np.concatenate([parents_of(each) for each in arrays])
    order = np.argsort(parents, kind="stable")
    order = order[given.to_numpy(zero_copy_only=False)[parents[order]]]
    items = pa.concat_arrays([each.flatten() for each in arrays]).take(pa.array(order))
    counts = np.bincount(parents[order], minlength=len(given))
    return list_of(np.concatenate(([0], np.cumsum(counts))), items, pc.invert(given))


def map_of_lists(lists: pa.Array) -> pa.Array:
    """Return lists of keys and values as maps. Raises `pa.ArrowInvalid` if a key is null or occurs twice."""
    entries, missing = lists.flatten(), lists.is_null()
    keys, values = entries.field(0), entries.field(1)
    if keys.null_count:
        raise pa.ArrowInvalid("a key of a map is null")
    parents = pa.array(parents_of(lists))
    if len(pa.table([parents, keys], ["row", "key"]).group_by(["row", "key"]).aggregate([])) < len(parents):
        raise pa.ArrowInvalid("a map has a key twice")
    offsets = pa.array(offsets_of(lists), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, values, mask=missing if len(lists) else None)


@function("map_concat", "map, map*")
def map_concat(_: Binding, *given: Term) -> Term:
    kind = given[0].type
    if any(each.type != kind for each in given):
        shown = ", ".join(type_name(each.type) for each in given)
        raise ExpressionRefused(f"map_concat of {shown}: expected maps of one type; cast them")

    def kernel(*maps: pa.Array) -> pa.Array:
        return map_of_lists(_joined(*map(entries_of, maps))).cast(kind)

    return applied(kind, with_arrays(kernel), *given, fails=True)


@function("map_from_entries", "array")
def map_from_entries(_: Binding, node: Term) -> Term:
    entry = node.type.value_type
    if not pa.types.is_struct(entry) or entry.num_fields != 2:
        raise ExpressionRefused(
            f"map_from_entries of {type_name(node.type)}; expected an array of structs of two fields"
        )

    def kernel(array: pa.Array) -> pa.Array:
        lacking = parents_of(array)[array.flatten().is_null().to_numpy(zero_copy_only=False)]
        missing = array.is_null().to_numpy(zero_copy_only=False) | (np.bincount(lacking, minlength=len(array)) > 0)
        whole = pa.array(~missing)
        entries = array.flatten().filter(whole.take(pa.array(parents_of(array))))
        counts = np.where(missing, 0, np.diff(offsets_of(array)))
        return map_of_lists(list_of(np.concatenate(([0], np.cumsum(counts))), entries, pc.invert(whole)))

    return applied(pa.map_(entry.field(0).type, entry.field(1).type), with_arrays(kernel), node, fails=True)


@function("str_to_map", "string, string?, string?")
def str_to_map(_: Binding, node: Term, between: Term | None = None, within: Term | None = None) -> Term:
    pairs, value = (
        default if each is None else text_constant(each, "a delimiter of str_to_map")
        for each, default in ((between, ","), (within, ":"))
    )
    if len(pairs) != 1 or len(value) != 1 or set(pairs + value) & set("\\^$.|?*+()[]{}"):
        raise ExpressionRefused("str_to_map: delimiters of a single character that is none of regular expressions")

    def read(text: str) -> list[tuple[str, str | None]]:
        made = [each.partition(value) for each in text.split(pairs)]
        if len({key for key, _, _ in made}) < len(made):
            raise pa.ArrowInvalid("a map has a key twice")
        return [(key, rest if found else None) for key, found, rest in made]

    kind = pa.map_(pa.string(), pa.string())
    return applied(kind, with_arrays(lambda array: mapped(array, read, kind)), node, fails=True)


@function("sequence", "integer, integer, integer?")
def sequence(binder: Binding, start: Term, stop: Term, step: Term | None = None) -> Term:
    kind = wider_number(start.type, stop.type, binder.settings.ansi)
    if step is not None and not is_integer(step.type):
        raise ExpressionRefused(f"sequence by {type_name(step.type)}; expected a whole number")
    nodes = [cast(each, kind, binder.settings) for each in (start, stop, *([] if step is None else [step]))]

    def kernel(*given: pa.Array) -> pa.Array:
        valid = reduce(pc.and_, [each.is_valid() for each in given])
        first, last, *by = (pc.fill_null(each, 1).to_numpy(zero_copy_only=False).astype(object) for each in given)
        steps = by[0] if by else np.where(first <= last, 1, -1).astype(object)
        wrong = np.array(
            [(b == 0 and a != c) or (c - a) * b < 0 for a, c, b in zip(first, last, steps, strict=True)], bool
        )
        failed_where(pc.and_(valid, pa.array(wrong)), "sequence from {} to {}: its step goes another way", *given[:2])
        known = valid.to_numpy(zero_copy_only=False)
        counts = np.array(
            [(c - a) // b + 1 if ok and b else int(ok) for a, c, b, ok in zip(first, last, steps, known, strict=True)],
            np.int64,
        )
        offsets = np.concatenate(([0], np.cumsum(counts)))
        if offsets[-1] > SEQUENCE_ITEMS_MAX:
            raise pa.ArrowInvalid(f"sequence: more than {SEQUENCE_ITEMS_MAX:,} items are not supported in expressions")
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        items = np.repeat(first.astype(np.int64), counts) + places * np.repeat(steps.astype(np.int64), counts)
        return list_of(offsets, pa.array(items, pa.int64()).cast(kind), pc.invert(valid))

    return applied(pa.list_(kind), with_arrays(kernel), *nodes, fails=True)
