"""Meetings of rows of two sides within groups of the same key: points inside of intervals."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from holdfast.functions.joins import kernels
from holdfast.state.physical import Integers

PAIRS_MAX = 1 << 17
"""Number of pairs that are listed, and whose rows are joined, at a time. A higher value makes larger batches of
output."""


class Points(NamedTuple):
    """Left rows (in a join as of a time: right rows): the group of each, and its time."""

    groups: Integers
    at: Integers


class Intervals(NamedTuple):
    """The other side's rows: the group of each, and the times that it meets, both included."""

    groups: Integers
    froms: Integers
    untils: Integers


class Pairs(NamedTuple):
    """Rows that meet, by their numbers."""

    left: Integers
    right: Integers


class SortedPoints:
    """Points of `count` groups, in order."""

    def __init__(self, points: Points, count: int) -> None:
        self._points = points
        self._bounds = np.zeros(count + 1, np.int64)
        self._order = np.empty(len(points.groups), np.int64)
        kernels.sort_points(points.groups, points.at, self._bounds, self._order)

    def meet(self, intervals: Intervals) -> Iterator[Pairs]:
        """All pairs, in the order of the intervals, then of the points' times, at most `PAIRS_MAX` together."""
        begins, ends = np.empty((2, len(intervals.groups)), np.int64)
        total = int(kernels.find_points(*intervals, self._bounds, self._points.at, self._order, begins, ends))
        if total <= PAIRS_MAX:
            yield self._pairs(begins, ends, total, 0)
            return
        before = np.cumsum(ends - begins)
        for start in range(0, total, PAIRS_MAX):
            stop = min(start + PAIRS_MAX, total)
            first, last = (int(np.searchsorted(before, pair, side="right")) for pair in (start, stop - 1))
            some_begins, some_ends = begins[first : last + 1].copy(), ends[first : last + 1].copy()
            some_ends[-1] -= before[last] - stop
            some_begins[0] = ends[first] - (before[first] - start)
            yield self._pairs(some_begins, some_ends, stop - start, first)

    def _pairs(self, begins: Integers, ends: Integers, total: int, first: int) -> Pairs:
        """The pairs of intervals from number `first` on, with the points from their begins to their ends."""
        points, numbers = np.empty((2, total), np.int64)
        kernels.list_pairs(begins, ends, self._order, numbers, points)
        numbers += first
        return Pairs(points, numbers)

    def newest(self, intervals: Intervals) -> Integers:
        """Return the last point of each interval; of equal points the last to arrive; -1 if the interval has none."""
        begins, ends = np.empty((2, len(intervals.groups)), np.int64)
        kernels.find_points(*intervals, self._bounds, self._points.at, self._order, begins, ends)
        found, newest = ends > begins, np.full(len(begins), -1, np.int64)
        newest[found] = self._order[ends[found] - 1]
        return newest
