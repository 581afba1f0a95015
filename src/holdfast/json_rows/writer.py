"""Writing of rows as JSON texts, from which the reader makes the same rows again.

Types that JSON does not have are written as Spark's `to_json` writes them: bytes in base64, times in ISO 8601
(instants in UTC), maps as objects, NaN and Infinity as texts. Decimals are texts, too, since many readers take numbers
for floats. A map's key is a text: the text of its value, or the JSON of a value that is no text.
"""

import base64
import math
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.json_rows.far_times import time_texts
from holdfast.json_rows.leaves import is_bytes, is_time
from holdfast.json_rows.values import is_list

encode = msgspec.json.Encoder().encode


def row_texts(rows: pa.RecordBatch) -> list[bytes]:
    """Return each row as a JSON object with all columns."""
    if rows.num_columns == 0:
        return [b"{}"] * rows.num_rows
    columns = [json_values(column) for column in rows.columns]
    return [encode(dict(zip(rows.schema.names, row, strict=True))) for row in zip(*columns, strict=True)]


def json_values(array: pa.Array) -> list[Any]:
    """Return values as booleans, numbers, texts, lists and dictionaries."""
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return json_values(array.dictionary_decode())
    if pa.types.is_struct(type_):
        return _structs(array)
    if pa.types.is_map(type_):
        return _maps(array)
    if is_list(type_):
        return _lists(array, json_values(array.flatten()))
    if pa.types.is_floating(type_):
        return _floats(array)
    if is_bytes(type_):
        return [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        return list(time_texts(array).to_pylist())
    if is_time(type_):
        return list(pc.replace_substring_regex(pc.cast(array, pa.string()), r"\.0+$", "").to_pylist())
    if pa.types.is_decimal(type_):
        return list(pc.cast(array, pa.string()).to_pylist())
    if pa.types.is_duration(type_):
        return list(array.view(pa.int64()).to_pylist())
    return list(array.to_pylist())


def key_text(value: Any) -> str:
    """Return the text of a map's key: the inverse of the reading of keys in `values.py`."""
    return value if isinstance(value, str) else encode(value).decode()


def unwritable(rows: pa.RecordBatch) -> dict[int, str]:
    """Return the rows that cannot be written, each with the reason: a map may have a key twice, which an object in JSON
    cannot."""
    found: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for row in np.flatnonzero(_doubled(column)).tolist():
            found.setdefault(row, f"column {name!r} has a map with a key that comes twice, as an object in JSON cannot")
    return found


def _doubled(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values are, or contain, maps with a key that comes twice."""
    none = np.zeros(len(array), bool)
    if not has_maps(array.type) or len(array) == 0:
        return none
    if pa.types.is_struct(array.type):
        return np.asarray(np.logical_or.reduce([none, *map(_doubled, array.flatten())]))
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(array.type):
        array = pc.cast(array, pa.list_(array.type.value_field))
    offsets = array.offsets.to_numpy() - array.offsets[0].as_py()
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    if not pa.types.is_map(array.type):
        return np.asarray(present & _any_within(_doubled(array.values[first:last]), offsets))
    keys = [key_text(key) for key in json_values(array.keys[first:last])]
    twice = [len(set(keys[start:end])) < end - start for start, end in pairwise(offsets)]
    return np.asarray(present & (np.array(twice, bool) | _any_within(_doubled(array.items[first:last]), offsets)))


def _any_within(marks: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    counts = np.concatenate([[0], np.cumsum(marks)])
    return np.asarray(counts[offsets[1:]] > counts[offsets[:-1]])


def has_maps(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return True
    return any(has_maps(type_.field(place).type) for place in range(type_.num_fields))


def _floats(array: pa.Array) -> list[Any]:
    values = array.to_pylist()
    if pc.all(pc.is_finite(pc.cast(array, pa.float64()))).as_py() is not False:
        return list(values)
    names = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return [value if value is None or math.isfinite(value) else names.get(value, "NaN") for value in values]


def _structs(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    children = [json_values(child) for child in array.flatten()]
    rows = zip(*children, strict=True) if children else [()] * len(array)
    present = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, present, strict=True)]


def _maps(array: pa.Array) -> list[Any]:
    offsets = array.offsets.to_pylist() or [0]
    first, last = offsets[0], offsets[-1]
    keys = [key_text(key) for key in json_values(array.keys[first:last])]
    pairs = list(zip(keys, json_values(array.items[first:last]), strict=True))
    present = array.is_valid().to_pylist()
    return [
        dict(pairs[start - first : end - first]) if there else None
        for start, end, there in zip(offsets, offsets[1:], present, strict=False)
    ]


def _lists(array: pa.Array, items: list[Any]) -> list[Any]:
    """Divide the items of all lists, laid end to end, into lists."""
    found: list[Any] = []
    at = 0
    for length in pc.list_value_length(array).to_pylist():
        found.append(None if length is None else items[at : at + length])
        at += length or 0
    return found
