"""Sizes of batches for a target duration. Pure: durations in, a number of rows out.

A batch's duration is modelled as `fixed + slope · rows`. After each batch the model is corrected, and the next batch
gets the rows that the model expects to take the target duration. It is the counterpart of Flink's buffer debloating
(FLIP-183): the amount of data under way is bounded by time instead of by size, so that a checkpoint, a stop or an undo
waits for about the target duration, whatever the load.
"""

from collections import deque
from dataclasses import dataclass

REMEMBERED_MAX = 20
"""Number of batches from which the fixed part and the slope are estimated. With a higher value, the model follows a
change more slowly."""
GROWTH_MAX = 2.0
"""Greatest factor by which a batch may have more rows than the largest remembered batch. The model knows nothing about
larger batches, so a batch overshoots the target at most by this factor."""
SPREAD_MIN = 1.5
"""Least ratio of the largest to the smallest remembered batch that shows how the duration depends on the rows."""
ROWS_FIRST = 10_000
"""Rows of the first batch, for which there is no model yet."""
SURPRISE = 1.5
"""Ratio of a duration to the expected duration, or the reverse, from which on the cost of a row counts as changed, so
that earlier batches are forgotten. A lower value forgets them because of mere noise."""
EASING = 0.5
"""Share of the difference by which the slope follows a batch that was faster than expected. A slower batch counts in
full at once."""


@dataclass(frozen=True)
class _Measured:
    rows: int
    duration_s: float


class BatchSizer:
    """Chooses the rows of the next batch. `rows_max` stays the bound."""

    def __init__(self, target_s: float, rows_max: int) -> None:
        self._target_s = target_s
        self._rows_max = rows_max
        self._measured: deque[_Measured] = deque(maxlen=REMEMBERED_MAX)
        self._fixed_s = 0.0
        self._slope_s = 0.0

    @property
    def rows(self) -> int:
        """Rows that the next batch may have, at least 1."""
        if not self._measured:
            return min(ROWS_FIRST, self._rows_max)
        wanted = max(0.0, self._target_s - self._fixed_s) / max(self._slope_s, 1e-12)
        known = max(each.rows for each in self._measured)
        return max(1, min(self._rows_max, int(min(wanted, GROWTH_MAX * known))))

    def observe(self, rows: int, duration_s: float) -> None:
        """Correct the model by a committed batch. A batch without rows says nothing about rows, and is ignored."""
        if rows < 1:
            return
        expected_s = self._fixed_s + self._slope_s * rows
        is_first = not self._measured
        if not expected_s / SURPRISE <= duration_s <= expected_s * SURPRISE:
            self._measured.clear()
        self._measured.append(_Measured(rows, duration_s))
        self._fixed_s = min(self._estimated_fixed_s(), duration_s)
        seen_s = (duration_s - self._fixed_s) / rows
        is_slower = is_first or duration_s > expected_s
        self._slope_s = seen_s if is_slower else self._slope_s + EASING * (seen_s - self._slope_s)

    def _estimated_fixed_s(self) -> float:
        """Estimate the fixed part by least squares over the remembered batches; keep the last estimate if the batches
        are too similar in size."""
        sizes = [each.rows for each in self._measured]
        if max(sizes) < SPREAD_MIN * min(sizes):
            return self._fixed_s
        mean_rows = sum(sizes) / len(sizes)
        mean_s = sum(each.duration_s for each in self._measured) / len(sizes)
        covariance = sum((each.rows - mean_rows) * (each.duration_s - mean_s) for each in self._measured)
        slope_s = covariance / sum((rows - mean_rows) ** 2 for rows in sizes)
        smallest_s = min(each.duration_s for each in self._measured)
        return min(max(0.0, mean_s - slope_s * mean_rows), smallest_s)
