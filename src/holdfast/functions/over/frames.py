"""The aggregates of frames: of each row, with the rows before it.

kept values of each key, in order ──┐
values of its new rows, in order ───┴──► one array, key by key ──► a result for each new row
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.over import kernels
from holdfast.functions.rows.columns import AnyArray, BoolArray, IntArray
from holdfast.functions.rows.grouping import order_of
from holdfast.state.physical import Integers, fixed_array, physical_dtype, validity_of, values_of

FUNCTIONS = ("count", "sum", "mean", "min", "max")


class ValueRead(NamedTuple):
    """An aggregate's part of a row: a value, or (`counts`) only whether it is there and the column `other` is
    true."""

    counts: bool
    column: str | None
    other: str | None

    def __str__(self) -> str:
        return f"__{'there' if self.counts else 'value'}.{self.column or ''}.{self.other or ''}"


class FrameValues(NamedTuple):
    """Values of an aggregate's column, as numbers, and which of them count."""

    values: AnyArray
    valid: BoolArray


def read_by(bound: BoundAggregate) -> ValueRead:
    """Return what an aggregate reads of a row."""
    return ValueRead(bound.aggregate.function == "count", bound.aggregate.column, bound.aggregate.other)


def frame_values(read: ValueRead, rows: pa.RecordBatch) -> FrameValues:
    """The values that an aggregate reads of rows."""
    valid = np.ones(rows.num_rows, np.bool_)
    for name in (read.column, read.other):
        if name is not None and (known := validity_of(rows.column(name))) is not None:
            valid &= known
    if read.other is not None:
        valid &= values_of(rows.column(read.other))
    if read.counts:
        return FrameValues(np.zeros(rows.num_rows, np.int64), valid)
    return FrameValues(as_numbers(values_of(rows.column(read.column))), valid)


def as_numbers(values: AnyArray) -> AnyArray:
    """Values as 64-bit numbers, of which there are two kinds."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64, copy=False)


class Frames:
    """The frames of new rows, which are in order of their groups. `kept`: the groups of the kept values, in order."""

    def __init__(self, kept: Integers, new: Integers, count: int, before: int) -> None:
        self._order, starts = order_of(np.concatenate([kept, new]), count)
        place = np.empty(len(self._order), np.int64)
        place[self._order] = np.arange(len(self._order))
        self._rows = place[len(kept) :]
        self._begins: IntArray = np.maximum(starts[new], self._rows - before)

    def aggregated(
        self, bound: BoundAggregate, kept: FrameValues, new: FrameValues
    ) -> tuple[pa.Array, BoolArray | None]:
        """Return the aggregate of each new row, and which of them do not fit its type, if any may not."""
        values = np.concatenate([kept.values, new.values])[self._order]
        frames = (values, np.concatenate([kept.valid, new.valid])[self._order], self._begins, self._rows)
        function, kind = bound.aggregate.function, bound.result_type
        counts = np.empty(len(self._rows), np.int64)
        if function in ("min", "max"):
            found = np.empty(len(self._rows), values.dtype)
            kernels.find_extremes(*frames, function == "min", found, counts)
            return fixed_array(found.astype(physical_dtype(kind)), counts > 0, kind), None
        if function == "count":
            kernels.add_integers(*frames, np.empty_like(counts), np.empty_like(counts), counts)
            return pa.array(counts), None
        if values.dtype == np.float64:
            sums = np.empty(len(self._rows), np.float64)
            kernels.add_floats(*frames, sums, counts)
        else:
            high, low = np.empty((2, len(self._rows)), np.int64)
            kernels.add_integers(*frames, high, low, counts)
            if function == "sum":
                limit = 1 << (63 - kernels.LOW_BITS)
                misfits: BoolArray = (high < -limit) | (high >= limit)
                whole = (np.where(misfits, 0, high) << kernels.LOW_BITS) + low
                return fixed_array(whole, counts > 0, kind), misfits if misfits.any() else None
            sums = high.astype(np.float64) * (1 << kernels.LOW_BITS) + low
        if function == "mean":
            sums /= np.maximum(counts, 1)
        return fixed_array(sums, counts > 0, kind), None
