"""The order of rows by several columns, within groups. NaN is above every number; nulls come after all values."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.state.physical import Integers, Slots, physical_dtype, validity_of, values_of


def order_keys(values: pa.Array) -> Integers:
    """Return int64 numbers in the order of the values; a null has any number."""
    kind = values.type
    if pa.types.is_floating(kind):
        floats = values_of(values.cast(pa.float64())) + 0.0  # -0.0 becomes 0.0
        bits = np.where(np.isnan(floats), np.nan, floats).view(np.int64)
        return np.where(bits >= 0, bits, bits ^ np.int64(2**63 - 1))
    if physical_dtype(kind) is not None and kind != pa.uint64():
        return values_of(values).astype(np.int64)
    ranked = pc.rank(values, "ascending", tiebreaker="dense")
    return values_of(ranked).astype(np.int64)


def ordered(groups: Integers | Slots, columns: Sequence[pa.Array], greatest_first: bool = False) -> Integers:
    """Return the numbers of the rows in order of their groups, then of each column; equal rows keep their order.

    `greatest_first`: the first column counts from its greatest value down; nulls stay last. A further column is looked
    at only for rows that are equal so far.
    """
    if not columns:
        return np.argsort(groups, kind="stable")
    order = np.arange(len(groups))
    tied, runs = order.copy(), np.asarray(groups, np.int64)
    for number, column in enumerate(columns):
        rows = order[tied]
        if number:
            column = column.take(pa.array(rows))
        ranks, valid = order_keys(column), validity_of(column)
        if greatest_first and not number:
            ranks = ~ranks
        nulls = np.zeros(len(rows), np.bool_) if valid is None else ~valid
        keys: Integers = np.where(nulls, 0, ranks)
        within = np.lexsort((keys, nulls, runs))
        order[tied] = rows[within]
        keys, nulls, runs = keys[within], nulls[within], runs[within]
        same = np.zeros(len(rows) + 1, np.bool_)
        same[1:-1] = (runs[1:] == runs[:-1]) & (keys[1:] == keys[:-1]) & (nulls[1:] == nulls[:-1])
        in_run = same[1:] | same[:-1]
        tied, runs = tied[in_run], np.cumsum(~same[:-1], dtype=np.int64)[in_run]
        if not len(tied):
            break
    return order
