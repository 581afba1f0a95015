"""Measured values: how processes keep them and how they travel to the JobMaster.

They travel as one flat map from name to number (`dict[str, float]`), in which

    name                        a counter (grows from 0 at each deployment) or a gauge
    name.<operator>.<subtask>   a gauge of one subtask
    name#count, #sum, #max      a histogram; name#le<exponent> counts its values in (2^(exponent-1), 2^exponent]

so that counters and histograms can be added up over TaskManagers and incarnations. Names are camel case, as usual for
stream processors; `observe.known_metrics` explains them. This module starts no thread and sends nothing.
"""

import math
import threading
from collections.abc import Mapping

SEPARATOR = "#"
BUCKET = "le"
EXPONENT_MIN, EXPONENT_MAX = 0, 40
"""Values below 1 count as 1. Values above 2^40 (a terabyte; 18 minutes in nanoseconds) count in the last bucket."""


class Histogram:
    """Counts values in buckets of powers of two. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._sum = 0.0
        self._max = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count a value, in the unit of the metric's name."""
        bucket = exponent_of(value)
        with self._lock:
            self._count += 1
            self._sum += value
            self._max = max(self._max, value)
            self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def values(self, name: str) -> dict[str, float]:
        """Return the histogram's entries for the flat map; none before the first value."""
        with self._lock:
            if not self._count:
                return {}
            entries = {f"{name}{SEPARATOR}{BUCKET}{at}": float(count) for at, count in self._buckets.items()}
            entries[f"{name}{SEPARATOR}count"] = float(self._count)
            entries[f"{name}{SEPARATOR}sum"] = self._sum
            entries[f"{name}{SEPARATOR}max"] = self._max
            return entries


def exponent_of(value: float) -> int:
    """Return the bucket of a value: the least exponent, within bounds, with `value <= 2 ** exponent`."""
    if value <= 1:
        return EXPONENT_MIN
    return min(EXPONENT_MAX, math.ceil(math.log2(value)))


def quantile(buckets: Mapping[int, float], share: float, largest: float) -> float:
    """Return an upper bound of the `share` quantile, at most twice the true value.

    `buckets`: number of values by exponent. `largest`: the highest value seen. Returns 0 if there are no values.
    """
    wanted = share * sum(buckets.values())
    counted = 0.0
    for exponent in sorted(buckets):
        counted += buckets[exponent]
        if counted and counted >= wanted:
            return float(min(largest, 2.0**exponent))
    return 0.0
