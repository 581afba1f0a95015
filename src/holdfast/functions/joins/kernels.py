"""Loops over the rows that meet in a join, compiled."""

from typing import Any

from holdfast.functions.rows.kernels import sort_by_group, sort_slices
from holdfast.state.compiled import kernel


@kernel
def sort_points(groups: Any, points: Any, bounds: Any, order: Any) -> None:
    """Order rows by group, then point, then arrival.

    `bounds[g]` becomes the begin of group g, and `bounds[g + 1]` its end. The caller passes `bounds` filled with 0, one
    element longer than the number of groups.
    """
    sort_by_group(groups, bounds, order)
    sort_slices(bounds, points, order)


@kernel
def _first_not_below(points: Any, order: Any, begin: Any, end: Any, value: Any) -> Any:
    while begin < end:
        middle = (begin + end) // 2
        if points[order[middle]] < value:
            begin = middle + 1
        else:
            end = middle
    return begin


@kernel
def find_points(
    groups: Any, froms: Any, untils: Any, bounds: Any, points: Any, order: Any, begins: Any, ends: Any
) -> Any:
    """Write for each interval the range of places in `order` of its group's points inside; return how many points
    there are."""
    total = 0
    for i in range(groups.shape[0]):
        begin, end = bounds[groups[i]], bounds[groups[i] + 1]
        begins[i] = _first_not_below(points, order, begin, end, froms[i])
        ends[i] = max(begins[i], _first_not_below(points, order, begins[i], end, untils[i] + 1))
        total += ends[i] - begins[i]
    return total


@kernel
def list_pairs(begins: Any, ends: Any, order: Any, intervals: Any, points: Any) -> None:
    """The pairs that `find_points` counted: numbers of intervals and of points."""
    place = 0
    for i in range(begins.shape[0]):
        for j in range(begins[i], ends[i]):
            intervals[place] = i
            points[place] = order[j]
            place += 1
