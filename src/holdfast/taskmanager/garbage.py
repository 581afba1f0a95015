"""When this process looks for cyclic garbage: by time, not by allocations.

User functions make a few small objects a row, which reference counts free: looking through them took a third of a
`ProcessFunction`'s time. What is left in cycles may hold arrays of megabytes (a DataFrame is such a cycle), however few
objects it consists of, so that allocations say little about it.
"""

import gc
from contextlib import AbstractContextManager
from types import TracebackType

from holdfast.clock import Clock

COLLECT_AFTER = (100_000, 20, 20)
"""Allocations (net) before the youngest generation is looked through; such runs before the next older one is."""

PAUSE_S_MIN = 10.0
PAUSE_RATIO = 100.0
"""Looking takes no more than one part in so many of the time."""

SETTLE_GROWTH = 10
"""The first, tenth, hundredth … look goes through all there is; what is left then stays out of the looks between. It is
mostly compiled kernels, which are loaded with the first batches and took 25 ms a look, but also what a batch holds in
cycles at that moment: so it is not left out for good."""


class GarbageCollection(AbstractContextManager["GarbageCollection"]):
    """The process's garbage collection while it is entered; `tick` now and then. Not for two at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._usual = gc.get_threshold()
        self._next_s = 0.0
        self._looks = 0
        self._next_settle = 1

    def __enter__(self) -> "GarbageCollection":
        gc.set_threshold(*COLLECT_AFTER)
        # Modules and compiled kernels stay for as long as the process: nothing to look through.
        gc.freeze()
        self._next_s = self._clock.monotonic() + PAUSE_S_MIN
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        gc.unfreeze()
        gc.set_threshold(*self._usual)

    def tick(self) -> None:
        """Look, if it is time."""
        began_s = self._clock.monotonic()
        if began_s < self._next_s:
            return
        self._look()
        ended_s = self._clock.monotonic()
        self._next_s = ended_s + max(PAUSE_S_MIN, PAUSE_RATIO * (ended_s - began_s))

    def _look(self) -> None:
        self._looks += 1
        settles = self._looks == self._next_settle
        if settles:
            self._next_settle *= SETTLE_GROWTH
            gc.unfreeze()
        gc.collect()
        if settles:
            gc.freeze()
