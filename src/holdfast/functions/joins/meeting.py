"""Meetings of rows of two sides within groups of the same key: points inside of intervals."""

from typing import NamedTuple

import numpy as np

from holdfast.functions.joins import kernels
from holdfast.state.physical import Integers


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

    def meet(self, intervals: Intervals) -> Pairs:
        """All pairs, in the order of the intervals, then of the points' times."""
        begins, ends = np.empty((2, len(intervals.groups)), np.int64)
        total = kernels.find_points(*intervals, self._bounds, self._points.at, self._order, begins, ends)
        left, right = np.empty((2, int(total)), np.int64)
        kernels.list_pairs(begins, ends, self._order, right, left)
        return Pairs(left, right)

    def newest(self, intervals: Intervals) -> Integers:
        """The last point of each interval; of equal points the last that came; -1 if the interval has none."""
        begins, ends = np.empty((2, len(intervals.groups)), np.int64)
        kernels.find_points(*intervals, self._bounds, self._points.at, self._order, begins, ends)
        found, newest = ends > begins, np.full(len(begins), -1, np.int64)
        newest[found] = self._order[ends[found] - 1]
        return newest
