"""Loops over the values of frames, compiled.

The frame of row `rows[n]` is the row itself and the values before it from `begins[n]` on. Values that are not valid are
passed over; `counts` gets the number of the others in each frame.
"""

from typing import Any

from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.state.compiled import kernel

LOW_BITS = 32
LOW = (1 << LOW_BITS) - 1


@kernel
def add_floats(values: Any, valid: BoolArray, begins: IntArray, rows: IntArray, sums: Any, counts: IntArray) -> None:
    """Sum each frame, from its first value to its last."""
    for n in range(len(rows)):
        total, count = 0.0, 0
        for place in range(begins[n], rows[n] + 1):
            if valid[place]:
                total += values[place]
                count += 1
        sums[n], counts[n] = total, count


@kernel
def add_integers(
    values: IntArray,
    valid: BoolArray,
    begins: IntArray,
    rows: IntArray,
    high: IntArray,
    low: IntArray,
    counts: IntArray,
) -> None:
    """Sum each frame without overflow: the sum is `high << LOW_BITS`, plus `low`, which is from 0 to `LOW`."""
    for n in range(len(rows)):
        high_sum, low_sum, count = 0, 0, 0
        for place in range(begins[n], rows[n] + 1):
            if valid[place]:
                high_sum += values[place] >> LOW_BITS
                low_sum += values[place] & LOW
                count += 1
        high[n], low[n], counts[n] = high_sum + (low_sum >> LOW_BITS), low_sum & LOW, count


@kernel
def find_extremes(
    values: Any, valid: BoolArray, begins: IntArray, rows: IntArray, least: bool, found: Any, counts: IntArray
) -> None:
    """Find the least or the greatest value of each frame, of equal values the first. NaN is above every number."""
    for n in range(len(rows)):
        best, count = values[rows[n]], 0
        for place in range(begins[n], rows[n] + 1):
            if not valid[place]:
                continue
            value = values[place]
            less = value < best or (best != best and value == value)
            greater = value > best or (value != value and best == best)
            if count == 0 or (less if least else greater):
                best = value
            count += 1
        found[n], counts[n] = best, count
