"""Loops over the rows and slots of any keyed operator, compiled."""

from typing import Any

from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.state.compiled import kernel
from holdfast.state.physical import Slots


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
