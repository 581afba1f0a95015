"""The way between Arrow columns, NumPy arrays and a table's columns, as keyed functions need it.

`state.physical` rules which types are fixed-width and how they look; a table holds everything else as Python objects,
`None` or anything where it is null.
"""

from datetime import datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.physical import Slots, physical_dtype, validity_of, values_of
from holdfast.state.physical import fixed_array as _fixed_array

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
AnyArray = np.ndarray[Any, np.dtype[Any]]

NO_MASK: BoolArray = np.zeros(0, dtype=np.bool_)
"""Instead of a validity array where no value is null; kernels test its length once."""


def has_kernels(kind: pa.DataType) -> bool:
    """True if compiled kernels loop over values of this type (half floats have no kernels)."""
    dtype = physical_dtype(kind)
    return dtype is not None and dtype != np.float16


def validity(array: pa.Array) -> BoolArray:
    """A boolean for each row, or `NO_MASK` if nothing is null."""
    valid = validity_of(array)
    return NO_MASK if valid is None else valid


def fixed_array(values: AnyArray, valid: BoolArray, kind: pa.DataType) -> pa.Array:
    """An Arrow array over `values`, without a copy; null where `valid` is False (`NO_MASK`: nowhere)."""
    return _fixed_array(values, valid if len(valid) else None, kind)


def bits(values: AnyArray) -> AnyArray:
    """The same memory as unsigned integers: kernels that only move values are compiled once a width."""
    return values.view(f"u{values.dtype.itemsize}")


def object_array(values: list[Any]) -> AnyArray:
    """A one-dimensional array of Python objects, also where they are sequences."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def cells_at(slots: Slots, values: AnyArray, valid: BoolArray) -> dict[int, Any]:
    """Value by slot of an object column at distinct slots; None where it is null."""
    triples = zip(slots.tolist(), values[slots].tolist(), valid[slots].tolist(), strict=True)
    return {slot: value if ok else None for slot, value, ok in triples}


def column_array(values: AnyArray, valid: BoolArray, kind: pa.DataType) -> pa.Array:
    """An Arrow array of rows gathered from a table's column, null where `valid` is False."""
    if values.dtype == object:
        objects = [value if ok else None for value, ok in zip(values.tolist(), valid.tolist(), strict=True)]
        return pa.array(objects, type=kind)
    return fixed_array(values, valid, kind)


def python_values(array: pa.Array) -> list[Any]:
    """`array.to_pylist()`, much faster for plain numbers without nulls, timestamps and dates."""
    if pa.types.is_date32(array.type) or (pa.types.is_timestamp(array.type) and array.type.unit != "ns"):
        return _python_times(array)
    plain = pa.types.is_integer(array.type) or pa.types.is_float64(array.type) or pa.types.is_boolean(array.type)
    values: list[Any] = array.to_pylist() if array.null_count or not plain else values_of(array).tolist()
    return values


_FIRST, _LAST = np.datetime64("0001-01-02", "D"), np.datetime64("9999-12-30", "D")
"""Times that Python can hold in every time zone."""


def _python_times(array: pa.Array) -> list[Any]:
    """Dates and timestamps by way of NumPy: 0.05 µs each, 0.15 in UTC, 0.7 in other zones; `to_pylist` takes 2.6."""
    unit = "D" if pa.types.is_date32(array.type) else array.type.unit
    valid = validity_of(array)
    numbers = values_of(array).astype(np.int64, copy=False)
    times = (numbers if valid is None else np.where(valid, numbers, 0)).view(f"M8[{unit}]")
    if not len(times) or times.min() < _FIRST or times.max() > _LAST:
        return list(array.to_pylist())
    values: list[Any] = times.tolist()
    zone = None if unit == "D" or array.type.tz is None else _zone(array.type.tz)
    if zone is not None and zone.utcoffset(None) == timedelta(0):
        values = [datetime.combine(value, value.time(), zone) for value in values]
    elif zone is not None:
        values = [zone.fromutc(value.replace(tzinfo=zone)) for value in values]
    for place in () if valid is None else np.flatnonzero(~valid).tolist():
        values[place] = None
    return values


@cache
def _zone(name: str) -> Any:
    """The time zone that Arrow gives its values."""
    return pa.scalar(0, pa.timestamp("s", tz=name)).as_py().tzinfo
