"""Loops over the rows of deviations and of `max_by`, compiled; conventions as in `kernels`."""

from typing import Any

import numpy as np

from holdfast.functions.aggregates.kernels import before
from holdfast.state.compiled import kernel


@kernel
def add_moments(
    slots: Any, values: Any, valid: Any, means: Any, m2s: Any, counts: Any, root: bool, out: Any, out_valid: Any
) -> None:
    """Update the mean, the sum of squared distances from it, and the count, by Welford's algorithm."""
    dense = valid.shape[0] == 0
    running = out.shape[0] > 0
    for i in range(slots.shape[0]):
        s = slots[i]
        if dense or valid[i]:
            counts[s] += 1
            delta = np.float64(values[i]) - means[s]
            means[s] += delta / counts[s]
            m2s[s] += delta * (np.float64(values[i]) - means[s])
        if running:
            out_valid[i] = counts[s] > 1
            out[i] = m2s[s] / (counts[s] - 1) if counts[s] > 1 else 0.0
            if root:
                out[i] = np.sqrt(out[i])


@kernel
def merge_moments(slots: Any, more: Any, more_m2s: Any, more_counts: Any, means: Any, m2s: Any, counts: Any) -> None:
    """Add states to states, by Chan's algorithm."""
    for i in range(slots.shape[0]):
        s = slots[i]
        n = more_counts[i]
        if n > 0:
            total = counts[s] + n
            delta = more[i] - means[s]
            means[s] += delta * n / total
            m2s[s] += more_m2s[i] + delta * delta * counts[s] * n / total
            counts[s] = total


@kernel
def keep_by(
    slots: Any,
    values: Any,
    valid: Any,
    by: Any,
    by_valid: Any,
    greatest: bool,
    state: Any,
    state_valid: Any,
    best: Any,
    best_valid: Any,
    out: Any,
    out_valid: Any,
) -> None:
    """Keep the value where `by` is least, or with `greatest` greatest; of equal ones the first. NaN is above
    everything."""
    dense = valid.shape[0] == 0
    by_dense = by_valid.shape[0] == 0
    running = out.shape[0] > 0
    for i in range(slots.shape[0]):
        s = slots[i]
        if by_dense or by_valid[i]:
            better = before(best[s], by[i]) if greatest else before(by[i], best[s])
            if better or not best_valid[s]:
                best[s] = by[i]
                best_valid[s] = True
                state[s] = values[i]
                state_valid[s] = dense or valid[i]
        if running:
            out[i] = state[s]
            out_valid[i] = state_valid[s]
