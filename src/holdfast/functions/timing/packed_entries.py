"""Entries of an index by time in few bytes.

The entries of a bucket are near each other in time, and mostly have small numbers in their other columns. So a column
of 64-bit integers is held as its least value and each value's distance from it, in 1, 2 or 4 bytes where that is
enough.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.physical import fixed_array, physical_dtype, values_of

_WIDTHS = (np.uint8, np.uint16, np.uint32)


@dataclass(frozen=True)
class _Distances:
    """A column of 64-bit integers without nulls."""

    least: int
    distances: np.ndarray[Any, Any]
    arrow_type: pa.DataType

    @property
    def nbytes(self) -> int:
        return self.distances.nbytes

    def to_array(self) -> pa.Array:
        return fixed_array(self.distances.astype(np.int64) + self.least, None, self.arrow_type)


class PackedEntries:
    """A record batch that takes few bytes; `column` and `to_batch` give its arrays again."""

    def __init__(self, entries: pa.RecordBatch) -> None:
        self.num_rows: int = entries.num_rows
        self._schema = entries.schema
        self._columns = [_packed(column) for column in entries.columns]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns)

    def column(self, name: str) -> pa.Array:
        return _array(self._columns[self._schema.get_field_index(name)])

    def to_batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_array(column) for column in self._columns], schema=self._schema)


def _packed(column: pa.Array) -> Any:
    """Return the column's distances, or the column itself if these would not be shorter."""
    if physical_dtype(column.type) != np.int64 or column.null_count or not len(column):
        return column
    values = values_of(column)
    least, greatest = int(values.min()), int(values.max())
    width = next((width for width in _WIDTHS if greatest - least <= np.iinfo(width).max), None)
    return column if width is None else _Distances(least, (values - least).astype(width), column.type)


def _array(column: Any) -> pa.Array:
    return column.to_array() if isinstance(column, _Distances) else column
