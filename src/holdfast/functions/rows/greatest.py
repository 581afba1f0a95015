"""The greatest or least rows of groups by a column, and the last row of each group, by arrays."""

import numpy as np
import pyarrow as pa

from holdfast.functions.rows import kernels
from holdfast.functions.rows.ordering import ranks_of
from holdfast.state.physical import Integers

INSERTED_MAX = 64
"""Greatest rows of a group that are found by insertion; for more, all rows are sorted. A higher value makes insertion
slower where values ascend."""


def greatest(values: pa.Array, groups: Integers, n: int, ties: bool, least: bool = False) -> Integers:
    """The rows with the greatest (or `least`) values of each group, by rank in order of the groups."""
    order, count = ranks_of(values, least), _count(groups)
    if n > INSERTED_MAX:
        return _sorted(order, groups, n, ties)
    rows: Integers = kernels.best_rows(groups, order, count, n)
    if not ties:
        return rows
    worst = np.full(count, np.iinfo(np.int64).min)
    worst[groups[rows]] = order[rows]  # rows are in order of their ranks: the last of a group stays
    equal = np.flatnonzero(order <= worst[groups])
    found: Integers = equal[kernels.best_rows(groups[equal], order[equal], count, len(equal))]
    return found


def last_of_groups(values: pa.Array, groups: Integers) -> Integers:
    """Return the number of each group's greatest value, of equal values the last; nulls are below all others.

    Each group up to the greatest has a value.
    """
    found: Integers = kernels.last_rows(groups, ranks_of(values), _count(groups))
    return found


def _count(groups: Integers) -> int:
    return int(groups.max(initial=-1)) + 1


def _sorted(order: Integers, groups: Integers, n: int, ties: bool) -> Integers:
    """`greatest` by sorting all rows."""
    rows = np.lexsort((order, groups))
    groups, order = groups[rows], order[rows]
    places = np.arange(len(rows))
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = groups[1:] != groups[:-1]
    of_group = places - np.maximum.accumulate(np.where(begins, places, 0))
    if ties:
        changes = begins.copy()
        changes[1:] |= order[1:] != order[:-1]
        of_group = of_group[np.maximum.accumulate(np.where(changes, places, 0))]
    kept: Integers = rows[of_group < n]
    return kept
