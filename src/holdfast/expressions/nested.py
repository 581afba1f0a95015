"""Arrays, maps and structs: fields, items, and the functions over them."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.expressions.comparing import compared
from holdfast.expressions.conversions import cast
from holdfast.expressions.lists import kept, list_of, offsets_of, parents_of, with_items
from holdfast.expressions.mapping import with_settings
from holdfast.expressions.nodes import (
    Binding,
    ExpressionRefused,
    Scope,
    Term,
    applied,
    array_of,
    constant,
    failed_where,
    with_arrays,
)
from holdfast.expressions.patterns import item_of_split
from holdfast.expressions.table import NEAREST, function
from holdfast.expressions.types import is_integer, type_name


def field_of(binder: Binding, node: Term, name: str) -> Term:
    """Make the term of a field of a struct, or of the value of a key of a map."""
    kind = node.type
    if pa.types.is_map(kind):
        return value_of(binder, node, constant(pa.scalar(name)))
    if not pa.types.is_struct(kind):
        raise ExpressionRefused(f"{type_name(kind)} has no field {name!r}; only structs and maps have fields")
    names = [each.name for each in kind]
    same = [each for each in names if each == name] or [each for each in names if each.lower() == name.lower()]
    if len(same) != 1:
        raise ExpressionRefused(
            f"there is no field {name!r} in {type_name(kind)}; its fields are {', '.join(names[: NEAREST * 4])}"
        )
    place = names.index(same[0])
    made = applied(kind.field(place).type, lambda value: pc.struct_field(value, place), node)
    return Term(made.type, made.run, made.fails, made.constant, same[0])


def item_of(binder: Binding, node: Term, key: Term) -> Term:
    """Make `array[0]`, `map['key']` or `struct['field']`."""
    if pa.types.is_struct(node.type) and key.constant is not None and key.type == pa.string():
        return field_of(binder, node, str(key.constant.as_py()))
    if pa.types.is_map(node.type):
        return value_of(binder, node, key)
    return _item(binder, node, key, from_one=False, fails=binder.settings.ansi)


def _item(binder: Binding, node: Term, place: Term, from_one: bool, fails: bool) -> Term:
    if not pa.types.is_list(node.type) or not (is_integer(place.type) or pa.types.is_null(place.type)):
        raise ExpressionRefused(
            f"{type_name(node.type)} has no items by {type_name(place.type)}; expected ARRAY and INT"
        )

    def kernel(array: pa.Array, given: pa.Array) -> pa.Array:
        offsets = offsets_of(array)
        counts = np.diff(offsets)
        at = pc.fill_null(given.cast(pa.int64()), 1).to_numpy(zero_copy_only=False)
        there = pc.and_(array.is_valid(), given.is_valid()).to_numpy(zero_copy_only=False)
        if from_one:
            if (at[there] == 0).any():
                raise pa.ArrowInvalid("the items of an array are counted from 1, not 0")
            at = np.where(at > 0, at - 1, counts + at)
        inside = (at >= 0) & (at < counts)
        if fails and (there & ~inside).any():
            raise pa.ArrowInvalid(f"an array has no item {given[int(np.flatnonzero(there & ~inside)[0])]}")
        return array.flatten().take(pa.array(offsets[:-1] + at, mask=~(inside & there)))

    if node.parts is not None and place.constant is not None and place.constant.is_valid:
        return item_of_split(*node.parts, int(place.constant.as_py()), from_one, fails)
    return applied(node.type.value_type, with_arrays(kernel), node, place, fails=fails or from_one)


def value_of(binder: Binding, node: Term, key: Term) -> Term:
    """Make the term of the value of a key of a map; it is null if the map does not have the key."""
    kind = node.type
    key = cast(key, kind.key_type, binder.settings)
    probe = compared(
        binder,
        "eq",
        Term(kind.key_type, lambda rows: rows.column("keys")),
        Term(kind.key_type, lambda rows: rows.column("key")),
    )

    def kernel(array: pa.Array, wanted: pa.Array) -> pa.Array:
        lists = entries_of(array)
        parents = parents_of(lists)
        items = lists.flatten()
        wanted_keys = wanted.take(pa.array(parents))
        keys = items.field(0)
        same = probe.run(Scope(lambda name: keys if name == "keys" else wanted_keys, len(keys)))
        hits = np.flatnonzero(pc.fill_null(same, False).to_numpy(zero_copy_only=False))
        at = np.full(len(array), -1, np.int64)
        at[parents[hits][::-1]] = hits[::-1]
        return items.field(1).take(pa.array(at, mask=at < 0))

    return applied(kind.item_type, with_arrays(kernel), node, key)


def entries_of(array: pa.Array) -> pa.Array:
    """Return maps as lists of structs."""
    kind = array.type
    items = (
        pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
        if len(array.keys)
        else pa.array([], pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
    )
    offsets = pa.array(np.array(array.offsets))  # a copy, since PyArrow takes no slice's offsets together with a mask
    return pa.ListArray.from_arrays(offsets, items, mask=array.is_null() if len(array) else None)


@function("element_at", "any, any")
def element_at(binder: Binding, node: Term, key: Term) -> Term:
    if pa.types.is_map(node.type):
        return value_of(binder, node, key)
    return _item(binder, node, key, from_one=True, fails=binder.settings.ansi)


@function("try_element_at", "any, any")
def try_element_at(binder: Binding, node: Term, key: Term) -> Term:
    if pa.types.is_map(node.type):
        return value_of(binder, node, key)
    return _item(binder, node, key, from_one=True, fails=False)


@function("get", "array, int")
def get(binder: Binding, node: Term, place: Term) -> Term:
    return _item(binder, node, place, from_one=False, fails=False)


def _size(value: pa.Array) -> pa.Array:
    if pa.types.is_map(value.type):
        value = entries_of(value)
    return pc.list_value_length(value)


@function("size cardinality", "any")
def size(binder: Binding, node: Term) -> Term:
    if not (pa.types.is_list(node.type) or pa.types.is_map(node.type)):
        raise ExpressionRefused(f"size of {type_name(node.type)}; expected an array or a map")
    if binder.settings.ansi:
        return applied(pa.int32(), with_arrays(_size), node)
    return applied(pa.int32(), with_arrays(lambda value: pc.fill_null(_size(value), -1)), node)


@function("array_size", "array")
def array_size(_: Binding, node: Term) -> Term:
    return applied(pa.int32(), with_arrays(_size), node)


@function("array", "any*")
def array(binder: Binding, *given: Term) -> Term:
    nodes = binder.together(given, "array") if given else []
    if not nodes:
        return constant(pa.scalar([], pa.list_(pa.null())))
    kind = pa.list_(nodes[0].type)

    def kernel(*values: pa.Array) -> pa.Array:
        count, width = len(values[0]), len(values)
        items = pa.concat_arrays(values).take(pa.array(np.arange(count * width).reshape(width, count).T.ravel()))
        return list_of(np.arange(count + 1) * width, items, pa.array(np.zeros(count, bool)))

    return applied(kind, with_arrays(kernel), *nodes)


@function("struct", "any, any*")
def struct(_: Binding, *given: Term) -> Term:
    names = [node.name or f"col{place}" for place, node in enumerate(given, 1)]
    return _struct(names, given)


@function("named_struct", "any, any, any*")
def named_struct(_: Binding, *given: Term) -> Term:
    if len(given) % 2 or not all(each.constant is not None and each.type == pa.string() for each in given[::2]):
        raise ExpressionRefused("named_struct: expected names in quotes and values in turn")
    return _struct([str(each.constant.as_py()) for each in given[::2] if each.constant is not None], given[1::2])


def _struct(names: list[str], nodes: tuple[Term, ...]) -> Term:
    kind = pa.struct([pa.field(name, node.type) for name, node in zip(names, nodes, strict=True)])
    return applied(
        kind, with_arrays(lambda *values: pa.StructArray.from_arrays(list(values), fields=list(kind))), *nodes
    )


@function("map", "any*")
def map_of(binder: Binding, *given: Term) -> Term:
    if len(given) % 2 or not given:
        raise ExpressionRefused("map: expected keys and values in turn")
    keys, items = binder.together(given[::2], "the keys of map"), binder.together(given[1::2], "the values of map")
    kind, width = pa.map_(keys[0].type, items[0].type), len(keys)

    def kernel(*values: pa.Array) -> pa.Array:
        count = len(values[0])
        order = pa.array(np.arange(count * width).reshape(width, count).T.ravel())
        made = [pa.concat_arrays(some).take(order) for some in (values[:width], values[width:])]
        if made[0].null_count:
            raise pa.ArrowInvalid("a key of a map is null")
        parents = np.repeat(np.arange(count), width)
        if width > 1 and len(
            pa.table([pa.array(parents), made[0]], ["row", "key"]).group_by(["row", "key"]).aggregate([])
        ) < len(parents):
            raise pa.ArrowInvalid("a map has a key twice")
        return pa.MapArray.from_arrays(pa.array(np.arange(count + 1) * width, pa.int32()), *made)

    return applied(kind, with_arrays(kernel), *keys, *items, fails=True)


@function("map_keys", "map")
def map_keys(_: Binding, node: Term) -> Term:
    return applied(pa.list_(node.type.key_type), with_arrays(lambda value: _part(value, 0)), node)


@function("map_values", "map")
def map_values(_: Binding, node: Term) -> Term:
    return applied(pa.list_(node.type.item_type), with_arrays(lambda value: _part(value, 1)), node)


def _part(value: pa.Array, place: int) -> pa.Array:
    lists = entries_of(value)
    return list_of(offsets_of(lists), lists.flatten().field(place), lists.is_null())


@function("map_contains_key", "map, any")
def map_contains_key(binder: Binding, node: Term, key: Term) -> Term:
    return array_contains(binder, map_keys(binder, node), key)


def _items(binder: Binding, node: Term, key: Term, place: str) -> tuple[Term, Term, Term]:
    """Return the array, the value cast to the type of its items, and the comparison of both."""
    inner = Term(node.type.value_type, lambda rows: rows.column("items"))
    one, other = binder.together([inner, key], place)
    if one.type != inner.type:
        node = cast(node, pa.list_(one.type), binder.settings)
    probe = compared(binder, "eq", Term(one.type, inner.run), Term(one.type, lambda rows: rows.column("key")))
    return node, other, probe


def _hits(probe: Term, array: pa.Array, wanted: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each item, and whether the item equals the wanted value."""
    parents = parents_of(array)
    items, keys = array.flatten(), wanted.take(pa.array(parents))
    same = probe.run(Scope(lambda name: items if name == "items" else keys, len(items)))
    return parents, pc.fill_null(array_of(same, len(items)), False).to_numpy(zero_copy_only=False)


@function("array_contains", "array, any")
def array_contains(binder: Binding, node: Term, key: Term) -> Term:
    node, key, probe = _items(binder, node, key, "array_contains")

    def kernel(array: pa.Array, wanted: pa.Array) -> pa.Array:
        parents, same = _hits(probe, array, wanted)
        count = len(array)
        found = np.bincount(parents[same], minlength=count) > 0
        missing = np.bincount(parents[array.flatten().is_null().to_numpy(zero_copy_only=False)], minlength=count) > 0
        given = pc.and_(array.is_valid(), wanted.is_valid()).to_numpy(zero_copy_only=False)
        return pa.array(found, mask=~given | (~found & missing))

    return applied(pa.bool_(), with_arrays(kernel), node, key)


@function("array_position", "array, any")
def array_position(binder: Binding, node: Term, key: Term) -> Term:
    node, key, probe = _items(binder, node, key, "array_position")

    def kernel(array: pa.Array, wanted: pa.Array) -> pa.Array:
        parents, same = _hits(probe, array, wanted)
        hits = np.flatnonzero(same)
        at = np.zeros(len(array), np.int64)
        at[parents[hits][::-1]] = (hits - offsets_of(array)[parents[hits]] + 1)[::-1]
        given = pc.and_(array.is_valid(), wanted.is_valid()).to_numpy(zero_copy_only=False)
        return pa.array(at, mask=~given)

    return applied(pa.int64(), with_arrays(kernel), node, key)


@function("array_remove", "array, any")
def array_remove(binder: Binding, node: Term, key: Term) -> Term:
    node, key, probe = _items(binder, node, key, "array_remove")

    def kernel(array: pa.Array, wanted: pa.Array) -> pa.Array:
        made = kept(array, ~_hits(probe, array, wanted)[1])
        return pc.if_else(wanted.is_valid(), made, pa.scalar(None, made.type)) if wanted.null_count else made

    return applied(node.type, with_arrays(kernel), node, key)


@function("array_compact", "array")
def array_compact(_: Binding, node: Term) -> Term:
    return applied(
        node.type,
        with_arrays(lambda value: kept(value, value.flatten().is_valid().to_numpy(zero_copy_only=False))),
        node,
    )


@function("flatten", "array")
def flatten(_: Binding, node: Term) -> Term:
    if not pa.types.is_list(node.type.value_type):
        raise ExpressionRefused(f"flatten of {type_name(node.type)}; expected an array of arrays")

    def kernel(array: pa.Array) -> pa.Array:
        inner, offsets = array.flatten(), offsets_of(array)
        lacking = (
            np.bincount(parents_of(array)[inner.is_null().to_numpy(zero_copy_only=False)], minlength=len(array)) > 0
        )
        missing = pc.or_(array.is_null(), pa.array(lacking))
        return list_of(offsets_of(inner)[offsets], inner.flatten(), missing)

    return applied(node.type.value_type, with_arrays(kernel), node)


def _ordered(array: pa.Array, ascending: bool, nulls_first: bool) -> np.ndarray:
    """Return the positions of the items, sorted within each row. NaN is above every number."""
    items = array.flatten()
    columns, keys = [pa.array(parents_of(array))], [("row", "ascending")]
    for name, values, order in (
        ("null", items.is_null(), "descending" if nulls_first else "ascending"),
        (
            "nan",
            pc.is_nan(items) if pa.types.is_floating(items.type) else None,
            "ascending" if ascending else "descending",
        ),
        ("item", items, "ascending" if ascending else "descending"),
    ):
        if values is not None:
            columns.append(pc.fill_null(values.cast(pa.int8()), 0) if name != "item" else values)
            keys.append((name, order))
    order = pc.sort_indices(pa.table(columns, [name for name, _ in keys]), sort_keys=keys)
    return np.asarray(order.to_numpy(), np.int64)


def _check_ordered(node: Term, name: str) -> None:
    if pa.types.is_nested(node.type.value_type):
        raise ExpressionRefused(f"{name} of {type_name(node.type)} is not supported in expressions; use transform(…)")


@function("sort_array", "array, bool?")
def sort_array(_: Binding, node: Term, ascending: Term | None = None) -> Term:
    _check_ordered(node, "sort_array")
    if ascending is not None and (ascending.constant is None or not ascending.constant.is_valid):
        raise ExpressionRefused("sort_array: the order has to be true or false in expressions")
    up = True if ascending is None else bool(ascending.constant.as_py())  # type: ignore[union-attr]

    def kernel(array: pa.Array) -> pa.Array:
        return list_of(offsets_of(array), array.flatten().take(pa.array(_ordered(array, up, up))), array.is_null())

    return applied(node.type, with_arrays(kernel), node)


@function("array_sort", "array")
def array_sort(_: Binding, node: Term) -> Term:
    _check_ordered(node, "array_sort")

    def kernel(array: pa.Array) -> pa.Array:
        return list_of(offsets_of(array), array.flatten().take(pa.array(_ordered(array, True, False))), array.is_null())

    return applied(node.type, with_arrays(kernel), node)


def _extreme(name: str, ascending: bool) -> None:
    @function(name, "array")
    def build(_: Binding, node: Term) -> Term:
        _check_ordered(node, name)

        def kernel(array: pa.Array) -> pa.Array:
            some = kept(array, array.flatten().is_valid().to_numpy(zero_copy_only=False))
            offsets = offsets_of(some)
            order = _ordered(some, ascending, False)
            empty = np.diff(offsets) == 0
            at = np.append(order, 0)[np.minimum(offsets[:-1], len(order))] if len(some) else np.zeros(0, np.int64)
            return some.flatten().take(pa.array(at, mask=empty))

        return applied(node.type.value_type, with_arrays(kernel), node)


_extreme("array_min", True)
_extreme("array_max", False)


@function("array_join", "array, string, string?")
def array_join(binder: Binding, node: Term, separator: Term, instead: Term | None = None) -> Term:
    node = cast(node, pa.list_(pa.string()), binder.settings)

    def kernel(array: pa.Array, between: str, missing: str | None = None) -> pa.Array:
        if missing is None:
            array = kept(array, array.flatten().is_valid().to_numpy(zero_copy_only=False))
        else:
            array = list_of(offsets_of(array), pc.fill_null(array.flatten(), missing), array.is_null())
        return pc.binary_join(array, between)

    return with_settings(pa.string(), kernel, node, separator, *([] if instead is None else [instead]))


@function("slice", "array, int, int")
def slice_of(_: Binding, node: Term, start: Term, length: Term) -> Term:
    def kernel(array: pa.Array, first: pa.Array, count: pa.Array) -> pa.Array:
        given = pc.and_(pc.and_(array.is_valid(), first.is_valid()), count.is_valid())
        failed_where(
            pc.and_(given, pc.or_(pc.equal(first, 0), pc.less(count, 0))),
            "slice from {} of length {}: counted from 1, and not negative",
            first,
            count,
        )
        offsets = offsets_of(array)
        sizes = np.diff(offsets)
        at = pc.fill_null(first, 1).to_numpy(zero_copy_only=False).astype(np.int64)
        at = np.where(at > 0, at - 1, sizes + at)
        wanted = pc.fill_null(count, 0).to_numpy(zero_copy_only=False)
        lengths = np.where((at < 0) | (at >= sizes), 0, np.minimum(wanted, sizes - at))
        ends = np.concatenate(([0], np.cumsum(lengths)))
        places = np.repeat(offsets[:-1] + at - ends[:-1], lengths) + np.arange(ends[-1])
        return list_of(ends, array.flatten().take(pa.array(places)), pc.invert(given))

    return applied(node.type, with_arrays(kernel), node, start, length, fails=True)


@function("array_repeat", "any, int")
def array_repeat(_: Binding, node: Term, count: Term) -> Term:
    def kernel(values: pa.Array, counts: pa.Array) -> pa.Array:
        lengths = np.maximum(pc.fill_null(counts, 0).to_numpy(zero_copy_only=False), 0)
        items = values.take(pa.array(np.repeat(np.arange(len(values)), lengths)))
        return list_of(np.concatenate(([0], np.cumsum(lengths))), items, counts.is_null())

    return applied(pa.list_(node.type), with_arrays(kernel), node, count)


def _ended(name: str, at_end: bool) -> None:
    @function(name, "array, any")
    def build(binder: Binding, node: Term, item: Term) -> Term:
        node, item, _ = _items(binder, node, item, name)

        def kernel(array: pa.Array, added: pa.Array) -> pa.Array:
            offsets = offsets_of(array)
            count, items = len(array), array.flatten()
            places = np.insert(
                np.arange(len(items)), offsets[1:] if at_end else offsets[:-1], len(items) + np.arange(count)
            )
            found = pa.concat_arrays([items, added]).take(pa.array(places))
            return list_of(offsets + np.arange(count + 1), found, array.is_null())

        return applied(node.type, with_arrays(kernel), node, item)


_ended("array_append", True)
_ended("array_prepend", False)


@function("map_from_arrays", "array, array")
def map_from_arrays(_: Binding, keys: Term, items: Term) -> Term:
    def kernel(first: pa.Array, second: pa.Array) -> pa.Array:
        given = pc.and_(first.is_valid(), second.is_valid())
        some = [
            pc.if_else(given, each, pa.scalar(None, each.type))
            if given.null_count or not pc.all(given).as_py()
            else each
            for each in (first, second)
        ]
        if not np.array_equal(offsets_of(some[0]), offsets_of(some[1])):
            raise pa.ArrowInvalid("the keys and the values of a map are of different number")
        flat = [each.flatten() for each in some]
        if flat[0].null_count:
            raise pa.ArrowInvalid("a key of a map is null")
        parents = pa.array(parents_of(some[0]))
        if len(pa.table([parents, flat[0]], ["row", "key"]).group_by(["row", "key"]).aggregate([])) < len(parents):
            raise pa.ArrowInvalid("a map has a key twice")
        lists = list_of(offsets_of(some[0]), flat[0], pc.invert(given))
        return pa.MapArray.from_arrays(lists.offsets, flat[0], flat[1], mask=pc.invert(given) if len(given) else None)

    return applied(pa.map_(keys.type.value_type, items.type.value_type), with_arrays(kernel), keys, items, fails=True)


@function("array_distinct", "array")
def array_distinct(_: Binding, node: Term) -> Term:
    _check_ordered(node, "array_distinct")

    def kernel(array: pa.Array) -> pa.Array:
        items = array.flatten()
        if pa.types.is_floating(items.type):
            items = pc.add(items, pa.scalar(0.0, items.type))  # -0.0 becomes 0.0
            array = with_items(array, items)
        table = pa.table(
            [pa.array(parents_of(array)), items, pa.array(np.arange(len(items)))], ["row", "item", "place"]
        )
        first = table.group_by(["row", "item"]).aggregate([("place", "min")]).column("place_min").to_numpy()
        keep = np.zeros(len(items), bool)
        keep[first] = True
        return kept(array, keep)

    return applied(node.type, with_arrays(kernel), node)
