"""Entries of an index by time in few bytes.

The entries of a bucket are near each other in time, and mostly have small numbers in their other columns. So where
there are many entries, a column of 64-bit integers is held as its least value and each value's distance from it, in 1,
2 or 4 bytes where that is enough.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.rows.kernels import extremes
from holdfast.state.physical import fixed_array, physical_dtype, values_of

PACKED_FROM = 1000
"""Number of entries from which they are packed. A lower value saves memory in buckets of few entries, and costs a
batch that adds to many buckets more time."""
DISTANCE_TYPES = tuple((int(np.iinfo(kind).max), np.dtype(kind)) for kind in (np.uint8, np.uint16, np.uint32))
"""The greatest distance that each type takes, and the type; the narrowest type first."""


class Distances:
    """A column of 64-bit integers without nulls: the distances of its values from `least`."""

    def __init__(self, least: int, distances: np.ndarray[Any, Any], kind: pa.DataType) -> None:
        self.least = least
        self.distances = distances
        self._kind = kind

    @property
    def nbytes(self) -> int:
        return self.distances.nbytes

    def filter(self, mask: pa.Array) -> "Distances":
        return Distances(self.least, self.distances[values_of(mask)], self._kind)

    def to_array(self) -> pa.Array:
        return fixed_array(self.distances + np.int64(self.least), None, self._kind)


class PackedEntries:
    """A record batch whose column `time` has microseconds, `first_us` the least and `last_us` the greatest of them."""

    def __init__(self, columns: list[Any], schema: pa.Schema, time: str) -> None:
        self._columns = columns
        self._schema = schema
        self._time = time
        self._times, self._zero_us = _integers(columns[schema.get_field_index(time)])
        self.first_us = self.last_us = 0
        if len(self._times):
            self.first_us = int(self._times.min()) + self._zero_us
            self.last_us = int(self._times.max()) + self._zero_us

    @property
    def num_rows(self) -> int:
        return len(self._times)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns)

    def to_batch(self) -> pa.RecordBatch:
        arrays = [column.to_array() if isinstance(column, Distances) else column for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def between(self, start_us: int | None, stop_us: int | None) -> "PackedEntries":
        """The entries with `start_us <= time < stop_us`; None is no limit."""
        if (start_us is None or start_us <= self.first_us) and (stop_us is None or stop_us > self.last_us):
            return self
        mask = pa.array(self._wanted(start_us, stop_us))
        return PackedEntries([column.filter(mask) for column in self._columns], self._schema, self._time)

    def earliest(self, from_us: int | None) -> int | None:
        """The first time that is not below `from_us`; None if there is none."""
        if not self.num_rows or (from_us is not None and from_us > self.last_us):
            return None
        if from_us is None or from_us <= self.first_us:
            return self.first_us
        return int(self._times[self._wanted(from_us, None)].min()) + self._zero_us

    def _wanted(self, start_us: int | None, stop_us: int | None) -> Any:
        wanted = np.ones(self.num_rows, np.bool_)
        if (start_us is not None and start_us > self.last_us) or (stop_us is not None and stop_us <= self.first_us):
            wanted[:] = False
            return wanted
        # Limits between the least and the greatest time fit the type of the distances.
        if start_us is not None and start_us > self.first_us:
            wanted &= self._times >= start_us - self._zero_us
        if stop_us is not None and stop_us <= self.last_us:
            wanted &= self._times < stop_us - self._zero_us
        return wanted


def pack(entries: pa.RecordBatch, time: str) -> PackedEntries:
    """Hold entries, whose times are in the column `time`, in few bytes."""
    columns = entries.columns
    if entries.num_rows >= PACKED_FROM:
        columns = [_packed(column) for column in columns]
    return PackedEntries(columns, entries.schema, time)


def _packed(column: pa.Array) -> Any:
    """Return the column's distances, or the column itself if these would not be shorter."""
    if physical_dtype(column.type) != np.int64 or column.null_count:
        return column
    values = values_of(column)
    least, greatest = map(int, extremes(values))
    for distance_max, dtype in DISTANCE_TYPES:
        if greatest - least <= distance_max:
            return Distances(least, (values - least).astype(dtype), column.type)
    return column


def _integers(column: Any) -> tuple[Any, int]:
    """Values of a column of integers, and the number to be added to each."""
    return (column.distances, column.least) if isinstance(column, Distances) else (values_of(column), 0)
