"""The gauge `stateCacheHitRatio`: of the distinct rows that a batch looked up, the share found in memory.

Averaged over each second, as in FLIP-325: the value is that of the last full second that had any. Several look-ups
of a row in one batch count once, so that reuse inside a batch, which is free everywhere, does not show.
"""

import time
from collections.abc import Callable


class HitRatio:
    """Counted by one thread, read by any."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.hits = 0
        self.accesses = 0
        self._now_s = now_s
        self._second = int(now_s())
        self._in_second = (0, 0)
        self._average: float | None = None

    def count(self, hits: int, accesses: int) -> None:
        second = int(self._now_s())
        if second != self._second:
            self._average = self.average
            self._second, self._in_second = second, (0, 0)
        self._in_second = self._in_second[0] + hits, self._in_second[1] + accesses
        self.hits += hits
        self.accesses += accesses

    @property
    def average(self) -> float | None:
        """None before the first access; within the first second, of what there was so far."""
        hits, accesses = self._in_second
        if accesses and (self._average is None or int(self._now_s()) != self._second):
            return hits / accesses
        return self._average
