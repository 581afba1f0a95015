"""The way between Arrow columns, NumPy arrays and a table's columns, as keyed functions need it.

`state.physical` decides which types are fixed-width and how their values look; `state.bytes_column` holds strings,
bytes, decimals and nested values. A table holds all other values as Python objects; the object of a null may be any.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.python_values import exact_values
from holdfast.state.columns import Column
from holdfast.state.physical import Slots, physical_dtype, validity_of, values_of
from holdfast.state.physical import fixed_array as _fixed_array

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
AnyArray = np.ndarray[Any, np.dtype[Any]]

NO_MASK: BoolArray = np.zeros(0, dtype=np.bool_)
"""Takes the place of a validity array if no value is null; kernels test its length once."""


def has_kernels(kind: pa.DataType) -> bool:
    """True if compiled kernels loop over values of this type (half floats have no kernels)."""
    dtype = physical_dtype(kind)
    return dtype is not None and dtype != np.float16


def validity(array: pa.Array) -> BoolArray:
    """A boolean for each row, or `NO_MASK` if nothing is null."""
    valid = validity_of(array)
    return NO_MASK if valid is None else valid


def fixed_array(values: AnyArray, valid: BoolArray, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array over `values`, without a copy; null where `valid` is False (`NO_MASK`: no nulls)."""
    return _fixed_array(values, valid if len(valid) else None, kind)


def bits(values: AnyArray) -> AnyArray:
    """Return the same memory as unsigned integers: kernels that only move values are compiled once for each width."""
    return values.view(f"u{values.dtype.itemsize}")


def cells_at(slots: Slots, column: Column) -> dict[int, Any]:
    """Values of a column at distinct slots, by slot, as Python objects; None for null."""
    return dict(zip(slots.tolist(), column.objects(slots), strict=True))


def stored_values(array: pa.Array) -> list[Any]:
    """Return the values in the form of a table's column: times as numbers, so that they compare with the table's."""
    if physical_dtype(array.type) is None:
        return exact_values(array)
    values: list[Any] = values_of(array).tolist()
    for row in () if (valid := validity_of(array)) is None else np.flatnonzero(~valid).tolist():
        values[row] = None
    return values


RESERVED_PREFIX = "__"
"""The begin of names of Holdfast's own columns: no declared column may begin so."""


def concatenated(pieces: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """All pieces as a single batch of a schema."""
    if not pieces:
        return pa.RecordBatch.from_pylist([], schema=schema)
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
