"""Arrow arrays and types rebuilt in plain forms: nested arrays over other leaves, and types that every operator has.

A dictionary, a run-end encoded array and a view are other layouts of the same values. State, keys and kernels handle
only the plain layout, so other layouts are converted where rows enter Holdfast.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Leaf = Callable[[pa.Array], pa.Array]
NOT_UTF8 = "Invalid UTF8"
"""Part of PyArrow's error for a text that is not UTF-8."""
NO_VALUE = (NOT_UTF8, "within the acceptable range", "whole number of days", "does not fit in precision")
"""Parts of PyArrow's errors for a stored value that its type does not have: a text, a time of the day, a day, a
decimal."""

_OFFSETS = {pa.string().id: np.int32, pa.large_string().id: np.int64}


def rebuilt(array: pa.Array, leaf: Leaf) -> pa.Array:
    """Return the array in a plain layout, with `leaf` applied to the arrays of values that are not nested."""
    types, kind = pa.types, array.type
    if isinstance(array, pa.ExtensionArray):
        return rebuilt(array.storage, leaf)
    if types.is_dictionary(kind):
        return rebuilt(array.dictionary_decode(), leaf)
    if types.is_run_end_encoded(kind):
        return rebuilt(pc.run_end_decode(array), leaf)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return leaf(array.cast(plain_type(kind)))
    if types.is_struct(kind):
        children = [rebuilt(array.field(place), leaf) for place in range(kind.num_fields)]
        fields = [field.with_type(child.type) for field, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return _list(_from_view(array), leaf)
    return _list(array, leaf) if _is_list(kind) else leaf(array)


def _list(array: pa.Array, leaf: Leaf) -> pa.Array:
    """Rebuild a list, or a map, which is a list of structs, with the list's own offsets."""
    kind, values = array.type, array.values
    if pa.types.is_map(kind):
        keys, items = rebuilt(values.field(0), leaf), rebuilt(values.field(1), leaf)
        key, item = kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type)
        made: pa.DataType = pa.map_(key, item)
        child = pa.StructArray.from_arrays([keys, items], fields=[made.key_field, made.item_field])
    else:
        child = rebuilt(values, leaf)
        made = _with_items(kind, kind.value_field.with_type(child.type))
    own = array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(made, len(array), own, offset=array.offset, children=[child])


def _from_view(array: pa.Array) -> pa.Array:
    """Return a list view as a list. (A cast would make an array whose offsets buffer is too short.)"""
    null = array.is_null()
    sizes = np.where(null.to_numpy(zero_copy_only=False), 0, array.sizes.to_numpy())
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    made, large = _list_of(array.type), pa.types.is_large_list_view(array.type)
    starts = pa.array(offsets, pa.int64() if large else pa.int32())
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(starts, array.flatten(), type=made, mask=null)


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)
    return any(test(kind) for test in tests)


def _list_of(kind: pa.DataType) -> pa.DataType:
    """Return the list type for the type of a list view."""
    return pa.list_(kind.value_field) if pa.types.is_list_view(kind) else pa.large_list(kind.value_field)


def _with_items(kind: pa.DataType, field: pa.Field) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if pa.types.is_large_list(kind) else pa.list_(field)


@cache
def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values in a plain layout."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.string() if types.is_string_view(kind) else pa.binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        key = kind.key_field.with_type(plain_type(kind.key_type))
        return pa.map_(key, kind.item_field.with_type(plain_type(kind.item_type)), kind.keys_sorted)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return plain_type(_list_of(kind))
    if _is_list(kind):
        return _with_items(kind, kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the same columns in a plain layout; the same object if every column is plain already."""
    made = pa.schema([field.with_type(plain_type(field.type)) for field in schema], schema.metadata)
    return schema if made.equals(schema, check_metadata=True) else made


def plain_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows in a plain layout. `schema` is the `plain_schema` of the rows' schema."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        column if column.type == field.type else rebuilt(column, lambda leaf: leaf)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    named = [_named(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(named, schema=schema)


def _named(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column with the names of nested fields that the type has."""
    return column if column.type == kind else column.cast(kind)


def invalid_rows(rows: pa.RecordBatch) -> dict[int, str]:
    """Return the rows with a value that its type does not have, each with the reason; found by halving.

    Arrays can be made of any bytes: by a view of binary values as texts, or by a file's writer. Stored objects are
    refused if they hold such a value. Raises `pa.ArrowInvalid` if a column is damaged in another way.
    """
    try:
        rows.validate()
        for column in rows.columns:
            if not _is_ascii(column):
                column.validate(full=True)
        return {}
    except pa.ArrowInvalid:
        found: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        waiting = [(0, len(column))]
        while waiting:
            begin, end = waiting.pop()
            problem = _problem(column, begin, end)
            if problem is None:
                continue
            if end - begin == 1:
                told = "a text that is not UTF-8" if NOT_UTF8 in problem else f"no {column.type}: {problem}"
                found[begin] = f"column {name!r} holds {told}"
            else:
                middle = (begin + end) // 2
                waiting += [(begin, middle), (middle, end)]
    return dict(sorted(found.items()))


def _is_ascii(column: pa.Array) -> bool:
    """Tell whether a column of texts holds ASCII alone, which is UTF-8 wherever its values begin and end.

    All bytes are looked at together, which takes a fifth of the time of PyArrow's check of each value.
    """
    width = _OFFSETS.get(column.type.id)
    if width is None or not len(column):
        return False
    _, offsets, texts = column.buffers()
    places = np.frombuffer(offsets, width)[column.offset : column.offset + len(column) + 1]
    if texts is None or (places[1:] < places[:-1]).any():
        return False
    return bool(np.frombuffer(texts, np.int8)[places[0] : places[-1]].min(initial=0) >= 0)


def _problem(column: pa.Array, begin: int, end: int) -> str | None:
    """Return PyArrow's error for a value in these rows; None if there is none."""
    rows = column[begin:end]
    try:
        # A slice of a nested column holds the values of other rows too, so the rows are copied.
        (rows.take(pa.array(range(len(rows)))) if column.type.num_fields else rows).validate(full=True)
    except pa.ArrowInvalid as error:
        if not any(part in str(error) for part in NO_VALUE):
            raise
        return str(error)
    return None
