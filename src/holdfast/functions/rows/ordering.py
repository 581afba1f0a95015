"""The order of rows by several columns, within groups. NaN is above every number; nulls come after all values."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.functions.rows.grouping import order_of
from holdfast.functions.rows.kernels import sort_slices
from holdfast.state.nested import blocks_of
from holdfast.state.physical import Integers, physical_dtype, validity_of, values_of, variable_array


def order_keys(values: pa.Array) -> Integers:
    """Return int64 numbers in the order of the values; a null has any number. Nested values are in the order of their
    blocks, which is the same wherever they come from."""
    kind = values.type
    if pa.types.is_nested(kind):
        values = variable_array(*blocks_of(values), validity_of(values), pa.large_binary())
    if pa.types.is_floating(kind):
        floats = values_of(values.cast(pa.float64())) + 0.0  # -0.0 becomes 0.0
        bits = np.where(np.isnan(floats), np.nan, floats).view(np.int64)
        return np.where(bits >= 0, bits, bits ^ np.int64(2**63 - 1))
    if physical_dtype(kind) is not None and kind != pa.uint64():
        return values_of(values).astype(np.int64)
    ranked = pc.rank(values, "ascending", tiebreaker="dense")
    return values_of(ranked).astype(np.int64)


def ranks_of(values: pa.Array, least: bool = False) -> Integers:
    """int64 numbers that are less for greater (or `least`) values; those of nulls are the greatest."""
    ranks, valid = order_keys(values), validity_of(values)
    if not least:
        ranks = ~ranks
    if valid is None:
        return ranks
    known, dense = np.unique(ranks[valid], return_inverse=True)
    ranks = np.full(len(ranks), len(known), np.int64)
    ranks[valid] = dense
    return ranks


def ordered(groups: Integers, count: int, columns: Sequence[pa.Array], greatest_first: bool = False) -> Integers:
    """Return the numbers of the rows in order of their groups, which are below `count`, then of each column; equal rows
    keep their order.

    `greatest_first`: the first column counts from its greatest value down; nulls stay last. A further column is looked
    at only for rows that are equal so far.
    """
    order, starts = order_of(groups, count)
    tied = np.arange(len(order))
    for number, column in enumerate(columns):
        rows = order[tied]
        ranks = ranks_of(column.take(pa.array(rows)) if number else column, least=bool(number) or not greatest_first)
        within = np.arange(len(rows)) if number else order
        sort_slices(starts, ranks, within)
        if number:
            order[tied] = rows[within]
        ranks = ranks[within]
        same = np.zeros(len(rows) + 1, np.bool_)
        same[1:-1] = ranks[1:] == ranks[:-1]
        same[starts] = False
        in_run = same[1:] | same[:-1]
        if not in_run.any():
            break
        tied = tied[in_run]
        starts = np.append(np.flatnonzero(~same[:-1][in_run]), len(tied))
    return order
