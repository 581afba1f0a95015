"""Division of rows by key: hash → key group → place, then a stable counting sort by place.

Fixed-width columns without nulls are scattered by compiled loops (about 2 ns a value), the others are taken by Arrow.
With a single place, nothing is hashed or copied. Rows with null keys are not divided: the caller finds them first
(`null_keys`) and fails or sets them aside. Key groups come from `state.keys` and nowhere else.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.exchange import kernels
from holdfast.graph.keygroups import subtask_of
from holdfast.state.keys import encode_keys, key_groups

DIVISIONS_KEPT_MAX = 16
"""Bound on the divisions of key groups that a process keeps: a job has one, until its TaskManagers change."""


class Division(NamedTuple):
    """Rows ordered by place; rows of place `p` are `[bounds[p], bounds[p + 1])`."""

    rows: pa.RecordBatch
    bounds: npt.NDArray[np.int64]


def null_keys(rows: pa.RecordBatch, key_columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """Numbers of the rows with a null in any key column; costs nothing if no column has nulls."""
    columns = [rows.column(name) for name in key_columns]
    found = [column.is_null() for column in columns if column.null_count]
    if not found:
        return np.empty(0, np.int64)
    any_null = found[0]
    for more in found[1:]:
        any_null = pc.or_(any_null, more)
    return np.flatnonzero(any_null.to_numpy(zero_copy_only=False))


def without(rows: pa.RecordBatch, numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Remove the numbered rows from `rows`; keep the order."""
    keep = np.ones(rows.num_rows, np.bool_)
    keep[numbers] = False
    return rows.filter(pa.array(keep))


@lru_cache(DIVISIONS_KEPT_MAX)
def places_of_groups(place_of_subtask: tuple[int, ...], max_parallelism: int) -> npt.NDArray[np.uint16]:
    """Return the place of each key group: the place of the subtask that owns the group. Callers must not change the
    array."""
    parallelism = len(place_of_subtask)
    groups = range(max_parallelism)
    return np.array([place_of_subtask[subtask_of(group, parallelism, max_parallelism)] for group in groups], np.uint16)


def arrange(
    rows: pa.RecordBatch, key_columns: Sequence[str], place_of_group: npt.NDArray[np.uint16], places: int
) -> Division:
    """Order `rows`, whose keys have no nulls, by place. `place_of_group` as made by `places_of_groups`."""
    if places == 1:
        return Division(rows, np.array([0, rows.num_rows], np.int64))
    groups = key_groups(encode_keys(rows, key_columns), len(place_of_group))
    place_of_row = np.empty(rows.num_rows, np.uint16)
    counts = np.zeros(places, np.int64)
    kernels.destinations(groups, place_of_group, place_of_row, counts)
    bounds = np.zeros(places + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    if (counts == rows.num_rows).any():
        return Division(rows, bounds)
    return Division(_sorted(rows, place_of_row, bounds), bounds)


def _sorted(
    rows: pa.RecordBatch, place_of_row: npt.NDArray[np.uint16], bounds: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    order: pa.Array | None = None
    columns = []
    for column in rows.columns:
        values = _fixed_width_values(column)
        if values is not None:
            out = np.empty_like(values)
            kernels.scatter(values, place_of_row, bounds[:-1].copy(), out)
            columns.append(pa.Array.from_buffers(column.type, len(column), [None, pa.py_buffer(out)]))
            continue
        if order is None:
            numbers = np.empty(rows.num_rows, np.int32)
            kernels.order(place_of_row, bounds[:-1].copy(), numbers)
            order = pa.array(numbers)
        columns.append(column.take(order))
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _fixed_width_values(column: pa.Array) -> npt.NDArray[np.unsignedinteger] | None:
    kind = column.type
    if column.null_count or not pa.types.is_primitive(kind) or kind.bit_width not in (8, 16, 32, 64):
        return None
    dtype = np.dtype(f"u{kind.bit_width // 8}")
    values: npt.NDArray[np.unsignedinteger] = np.frombuffer(
        column.buffers()[1], dtype=dtype, count=column.offset + len(column)
    )
    return values[column.offset :]
