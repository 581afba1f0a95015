"""Kernels that operators share, beside NumPy."""

import itertools

import numpy as np
import pytest

from holdfast.functions.joins.kernels import sort_points
from holdfast.functions.rows.kernels import sort_slices


@pytest.mark.parametrize("values", [1, 5, 1 << 40], ids=["all equal", "few", "many"])
@pytest.mark.parametrize("sizes", [(0, 1, 2, 31, 0, 32), (33, 64, 1, 65), (300, 1000)], ids=str)
def test_slices_are_sorted_by_rank_and_rows_of_a_rank_keep_their_order(sizes: tuple[int, ...], values: int) -> None:
    rng = np.random.default_rng(len(sizes) + values)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    ranks, order = rng.integers(-values, values, starts[-1]), rng.permutation(starts[-1])
    slices = [order[begin:end].copy() for begin, end in itertools.pairwise(starts)]
    sort_slices(starts, ranks, order)
    expected = [row for rows in slices for row in rows[np.argsort(ranks[rows], kind="stable")]]
    assert order.tolist() == expected


@pytest.mark.parametrize("groups", [1, 7, 400])
def test_points_are_in_order_of_group_then_point_then_arrival(groups: int) -> None:
    rng = np.random.default_rng(groups)
    group_of, points = rng.integers(0, groups, 2000), rng.integers(-50, 50, 2000)
    bounds, order = np.zeros(groups + 1, np.int64), np.empty(2000, np.int64)
    sort_points(group_of, points, bounds, order)
    assert order.tolist() == np.lexsort((points, group_of)).tolist()
    assert bounds.tolist() == np.searchsorted(np.sort(group_of), np.arange(groups + 1)).tolist()
