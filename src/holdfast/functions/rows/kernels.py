"""Loops over the rows and slots of any keyed operator, compiled."""

from typing import Any

import numpy as np

from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.state.compiled import kernel
from holdfast.state.physical import Slots

RUN_ROWS = 32
"""Rows that `sort_slices` sorts by insertion, before it merges. A higher value moves more rows one place at a time."""


@kernel
def mark_first(slots: Slots, seen: BoolArray, first: BoolArray) -> None:
    """Mark the rows whose slot comes for the first time; `seen` is by slot, and all False before."""
    for i in range(slots.shape[0]):
        first[i] = not seen[slots[i]]
        seen[slots[i]] = True


@kernel
def number_keys(slots: Slots, numbers: Slots, groups: IntArray, distinct: Slots) -> int:
    """Number the distinct slots in order of first appearance; returns how many there are.

    `numbers` is scratch space of the table's capacity, all -1 before and after; `groups[i]` becomes the number of
    row i's slot, `distinct[n]` the slot with number n.
    """
    count = 0
    for i in range(slots.shape[0]):
        s = slots[i]
        if numbers[s] < 0:
            numbers[s] = count
            distinct[count] = s
            count += 1
        groups[i] = numbers[s]
    for n in range(count):
        numbers[distinct[n]] = -1
    return count


@kernel
def extremes(values: IntArray) -> Any:
    """The least and the greatest of some values, of which there is at least one."""
    least = greatest = values[0]
    for value in values:
        least = min(least, value)
        greatest = max(greatest, value)
    return least, greatest


@kernel
def count_before(groups: IntArray, count: int) -> Any:
    """Count for each entry how many entries before it are of the same group; all groups are below `count`."""
    seen, out = np.zeros(count, np.int64), np.empty(len(groups), np.int64)
    for i in range(len(groups)):
        out[i] = seen[groups[i]]
        seen[groups[i]] += 1
    return out


@kernel
def sort_by_group(groups: IntArray, starts: IntArray, order: IntArray) -> None:
    """Order entries by group, stable; `starts`, all 0 before, becomes the begin of each group and, last, the end."""
    count = len(starts) - 1
    for group in groups:
        starts[group + 1] += 1
    for group in range(count):
        starts[group + 1] += starts[group]
    cursors = starts[:count].copy()
    for i in range(len(groups)):
        order[cursors[groups[i]]] = i
        cursors[groups[i]] += 1


@kernel
def sort_slices(starts: IntArray, ranks: IntArray, order: IntArray) -> None:
    """Sort each slice of `order`, from a start to the next, by the ranks of its rows; equal rows keep their order.

    Runs of `RUN_ROWS` rows are sorted by insertion, then merged. Numba needs five times as long to compile its own
    `np.argsort`.
    """
    longest = 0
    for i in range(len(starts) - 1):
        longest = max(longest, starts[i + 1] - starts[i])
    keys, left_keys, left_rows = np.empty(longest, np.int64), np.empty(longest, np.int64), np.empty(longest, np.int64)
    for i in range(len(starts) - 1):
        begin, count = starts[i], starts[i + 1] - starts[i]
        in_order = True
        for place in range(count):
            keys[place] = ranks[order[begin + place]]
            in_order = in_order and (place == 0 or keys[place - 1] <= keys[place])
        if in_order:
            continue
        first = 0
        for at in range(1, count):
            if at - first == RUN_ROWS:
                first = at
            key, row, place = keys[at], order[begin + at], at
            while place > first and keys[place - 1] > key:
                keys[place], order[begin + place] = keys[place - 1], order[begin + place - 1]
                place -= 1
            keys[place], order[begin + place] = key, row
        width = RUN_ROWS
        while width < count:
            first = 0
            while first + width < count:
                right, end = first + width, min(first + 2 * width, count)
                for place in range(width):
                    left_keys[place], left_rows[place] = keys[first + place], order[begin + first + place]
                place, left = first, 0
                while left < width and right < end:
                    if keys[right] < left_keys[left]:
                        keys[place], order[begin + place] = keys[right], order[begin + right]
                        right += 1
                    else:
                        keys[place], order[begin + place] = left_keys[left], left_rows[left]
                        left += 1
                    place += 1
                while left < width:
                    keys[place], order[begin + place] = left_keys[left], left_rows[left]
                    place, left = place + 1, left + 1
                first = end
            width *= 2


@kernel
def best_rows(groups: Any, ranks: Any, count: int, n: int) -> Any:
    """Return the rows with the `n` least ranks of each group, in order of group, rank and arrival.

    Groups are below `count`. A row takes its place by insertion, so the time is that of the rows and, for each of the
    rows that are better than the rows before, of at most `n` steps.
    """
    bounds, filled = np.zeros(count + 1, np.int64), np.zeros(count, np.int64)
    for group in groups:
        bounds[group + 1] += 1
    for group in range(count):
        bounds[group + 1] = bounds[group] + min(bounds[group + 1], n)
    rows, best = np.empty(bounds[count], np.int64), np.empty(bounds[count], np.int64)
    for i in range(len(groups)):
        group, rank = groups[i], ranks[i]
        begin = bounds[group]
        place = begin + filled[group]
        if place < bounds[group + 1]:
            filled[group] += 1
        elif rank >= best[place - 1]:
            continue
        else:
            place -= 1
        while place > begin and best[place - 1] > rank:
            best[place], rows[place] = best[place - 1], rows[place - 1]
            place -= 1
        best[place], rows[place] = rank, i
    return rows


@kernel
def last_rows(groups: Any, ranks: Any, count: int) -> Any:
    """Return the row with the least rank of each group, of equal rows the last; each of the `count` groups has rows."""
    rows, best = np.full(count, -1, np.int64), np.empty(count, np.int64)
    for i in range(len(groups)):
        group = groups[i]
        if rows[group] < 0 or ranks[i] <= best[group]:
            rows[group], best[group] = i, ranks[i]
    return rows
