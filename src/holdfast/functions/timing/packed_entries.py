"""Entries of an index by time in few bytes.

The entries of a bucket are near each other in time, and mostly have small numbers in their other columns. So a column
of 64-bit integers is held as its least value and each value's distance from it, in 1, 2 or 4 bytes where that is
enough.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.kernels import extremes
from holdfast.state.physical import fixed_array, physical_dtype, values_of

PACKED_FROM = 1000
"""Number of entries from which they are packed. A lower value saves memory in buckets of few entries, and costs a
batch that adds to many buckets more time."""
WIDTHS = tuple((np.iinfo(kind).max, np.dtype(kind)) for kind in (np.uint8, np.uint16, np.uint32))


class Distances:
    """A column of 64-bit integers without nulls: `values` less `least`."""

    def __init__(self, least: int, values: np.ndarray[Any, Any], kind: pa.DataType) -> None:
        self._least = least
        self._values = values
        self._kind = kind

    @property
    def nbytes(self) -> int:
        return self._values.nbytes

    def to_array(self) -> pa.Array:
        return fixed_array(self._values + np.int64(self._least), None, self._kind)


class PackedEntries:
    """A record batch that takes few bytes; `column` and `to_batch` give its arrays again."""

    def __init__(self, entries: pa.RecordBatch) -> None:
        self.num_rows: int = entries.num_rows
        self._schema = entries.schema
        packs = self.num_rows >= PACKED_FROM
        self._columns = [_packed(column) if packs else column for column in entries.columns]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns)

    def column(self, name: str) -> pa.Array:
        return _array(self._columns[self._schema.get_field_index(name)])

    def to_batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_array(column) for column in self._columns], schema=self._schema)


def _packed(column: pa.Array) -> Any:
    """Return the column's distances, or the column itself if these would not be shorter."""
    if physical_dtype(column.type) != np.int64 or column.null_count:
        return column
    values = values_of(column)
    least, greatest = extremes(values)
    for distance_max, dtype in WIDTHS:
        if greatest - least <= distance_max:
            return Distances(least, (values - least).astype(dtype), column.type)
    return column


def _array(column: Any) -> pa.Array:
    return column.to_array() if isinstance(column, Distances) else column
