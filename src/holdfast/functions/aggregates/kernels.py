"""The loops of accumulators over the rows of their keys, compiled; each releases the GIL.

`slots[i]` is the place of row i's key in the state arrays. `valid` is a boolean for each row, or empty if no input
value is null. `out` (and `out_valid`) receive the running value of each row, or are empty if nobody wants it. Rows are
taken in order. Blank state is zero and not valid when it arrives (`open_states` makes it so).
"""

from typing import Any

import numpy as np

from holdfast.functions.rows.columns import AnyArray, BoolArray, IntArray
from holdfast.state.compiled import kernel
from holdfast.state.physical import Slots


@kernel
def open_states(slots: Slots, valid: BoolArray, values: AnyArray) -> None:
    """Zero the values that are not valid: accumulators count from zero."""
    for i in range(slots.shape[0]):
        if not valid[slots[i]]:
            values[slots[i]] = 0


@kernel
def raise_flags(slots: Slots, flags: BoolArray) -> None:
    for i in range(slots.shape[0]):
        flags[slots[i]] = True


@kernel
def count_rows(slots: Slots, counts: IntArray) -> None:
    for i in range(slots.shape[0]):
        counts[slots[i]] += 1


@kernel
def count_rows_running(slots: Slots, counts: IntArray, out: IntArray) -> None:
    for i in range(slots.shape[0]):
        n = counts[slots[i]] + 1
        counts[slots[i]] = n
        out[i] = n


@kernel
def count_values(slots: Slots, valid: BoolArray, counts: IntArray, out: IntArray) -> None:
    running = out.shape[0] > 0
    for i in range(slots.shape[0]):
        s = slots[i]
        n = counts[s]
        if valid[i]:
            n += 1
            counts[s] = n
        if running:
            out[i] = n


@kernel
def add_integers(slots: Slots, values: AnyArray, valid: BoolArray, sums: IntArray, out: IntArray) -> int:
    """Add all rows and return -1, or add none and return the index of the first row whose sum leaves int64."""
    dense = valid.shape[0] == 0
    running = out.shape[0] > 0
    for i in range(slots.shape[0]):
        s = slots[i]
        old = sums[s]
        if dense or valid[i]:
            value = np.int64(values[i])
            new = old + value
            if ((old ^ new) & (value ^ new)) < 0:
                subtract_integers(slots[:i], values, valid, sums)
                return i
            sums[s] = new
            old = new
        if running:
            out[i] = old
    return -1


@kernel
def subtract_integers(slots: Slots, values: AnyArray, valid: BoolArray, sums: IntArray) -> None:
    """Take back the values that `add_integers` added; exact, since nothing overflowed."""
    dense = valid.shape[0] == 0
    for i in range(slots.shape[0]):
        if dense or valid[i]:
            sums[slots[i]] -= np.int64(values[i])


@kernel
def mark_valid(slots: Slots, valid: BoolArray, state_valid: BoolArray, out_valid: BoolArray) -> None:
    """Mark keys as valid from their first value that is not null on."""
    dense = valid.shape[0] == 0
    running = out_valid.shape[0] > 0
    for i in range(slots.shape[0]):
        s = slots[i]
        if dense or valid[i]:
            state_valid[s] = True
        if running:
            out_valid[i] = state_valid[s]


@kernel
def add_floats(slots: Slots, values: AnyArray, valid: BoolArray, sums: AnyArray, out: AnyArray) -> None:
    dense = valid.shape[0] == 0
    running = out.shape[0] > 0
    for i in range(slots.shape[0]):
        s = slots[i]
        if dense or valid[i]:
            sums[s] += np.float64(values[i])
        if running:
            out[i] = sums[s]


@kernel
def before(a: Any, b: Any) -> Any:
    """True if `a` is less by Spark's order: NaN equals NaN and is above everything else."""
    return a < b or (b != b and a == a)


@kernel
def keep_extreme(
    slots: Slots,
    values: AnyArray,
    valid: BoolArray,
    greatest: bool,
    state: AnyArray,
    state_valid: BoolArray,
    out: AnyArray,
    out_valid: BoolArray,
) -> None:
    """Keep the least value of each key, or with `greatest` the greatest; of equal values the first."""
    dense = valid.shape[0] == 0
    running = out.shape[0] > 0
    for i in range(slots.shape[0]):
        s = slots[i]
        if dense or valid[i]:
            better = before(state[s], values[i]) if greatest else before(values[i], state[s])
            if better or not state_valid[s]:
                state[s] = values[i]
                state_valid[s] = True
        if running:
            out[i] = state[s]
            out_valid[i] = state_valid[s]


@kernel
def keep_first(
    slots: Slots,
    values: AnyArray,
    valid: BoolArray,
    state: AnyArray,
    state_valid: BoolArray,
    seen: BoolArray,
    out: AnyArray,
    out_valid: BoolArray,
) -> None:
    dense = valid.shape[0] == 0
    running = out.shape[0] > 0
    for i in range(slots.shape[0]):
        s = slots[i]
        if not seen[s]:
            seen[s] = True
            state[s] = values[i]
            state_valid[s] = dense or valid[i]
        if running:
            out[i] = state[s]
            out_valid[i] = state_valid[s]


@kernel
def keep_last(slots: Slots, values: AnyArray, valid: BoolArray, state: AnyArray, state_valid: BoolArray) -> None:
    """Keep the last value of each key. The running value is the input itself, so this kernel does not return it."""
    dense = valid.shape[0] == 0
    for i in range(slots.shape[0]):
        s = slots[i]
        state[s] = values[i]
        state_valid[s] = dense or valid[i]
