"""The greatest or least rows of groups by a column, and the checks of such a declaration."""

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.ranking import kernels
from holdfast.functions.rows.ordering import order_keys
from holdfast.state.physical import Integers, validity_of

CANDIDATES_MAX = 64
"""Greatest `n` for which the `n` greatest rows are found by a scan; for a greater `n`, all rows are sorted."""


def check_top(n: int, by: str) -> None:
    """Check all that needs no schema; raises `SettingsError`."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise SettingsError(f"top({n!r}): allowed is a whole number of rows from 1")
    if not isinstance(by, str) or not by:
        raise SettingsError(f"top(by={by!r}): expected the name of a column")


def check_order(operator: str, by: str, schema: pa.Schema) -> None:
    """Refuse a column by which rows can't be ordered."""
    place = schema.get_field_index(by)
    if place < 0:
        raise JobRefused(
            f"operator {operator!r}: top(by={by!r}): there is no such column in its input ({', '.join(schema.names)})"
        )
    kind = schema.field(place).type
    if pa.types.is_nested(kind):
        raise JobRefused(f"operator {operator!r}: top(by={by!r}) has type {kind}, which has no order")


def greatest(values: pa.Array, groups: Integers, n: int, ties: bool, least: bool = False) -> Integers:
    """The rows with the greatest (or `least`) values of each group, by rank in order of the groups."""
    ranks = order_keys(values)
    if not least:
        ranks = ~ranks
    valid = validity_of(values)
    nulls = np.zeros(len(ranks), np.bool_) if valid is None else ~valid
    ranks = np.where(nulls, np.iinfo(np.int64).max, ranks)
    few = _candidates(groups, ranks, n)
    groups, ranks, nulls = groups[few], ranks[few], nulls[few]
    order = np.lexsort((ranks, nulls, groups))
    groups, ranks, nulls = groups[order], ranks[order], nulls[order]
    places = np.arange(len(order))
    begins = np.ones(len(order), np.bool_)
    begins[1:] = groups[1:] != groups[:-1]
    if ties:
        changes = begins.copy()
        changes[1:] |= (ranks[1:] != ranks[:-1]) | (nulls[1:] != nulls[:-1])
        places = np.maximum.accumulate(np.where(changes, places, 0))
    of_group = places - np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))
    kept: Integers = few[order[of_group < n]]
    return kept


def _candidates(groups: Integers, ranks: Integers, n: int) -> Integers:
    """Return rows that include the `n` least ranks of each group; all rows, if these would be about as many."""
    count = int(groups.max()) + 1 if len(groups) else 0
    if n > CANDIDATES_MAX or count * n * 2 > len(groups):
        return np.arange(len(groups))
    counts, best = np.zeros(count, np.int64), np.empty((count, n), np.int64)
    kernels.keep_best(groups, ranks, counts, best)
    chosen = np.empty(len(groups), np.bool_)
    kernels.mark_best(groups, ranks, counts, best, chosen)
    return np.flatnonzero(chosen)
