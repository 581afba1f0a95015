"""Checkpoints go first: when one is expected, and when something large may begin that competes with it.

    begun ──── under way ──── done ─ record     begun ──── …
      └──────────────── interval ─────────────────┘
                                     free … quiet ┘

Nothing begins while a checkpoint is under way, its record included, nor shortly before the next one is expected: one
interval after the last one began, the interval being that between the last two. Nobody waits for long: where
checkpoints take as long as what waits for them, there is nothing to win. Runs nothing itself.
"""

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

from holdfast.uploads.scheduling import Scheduler, done

BYTES_PER_S = 250e6
"""Of reading a file, its checksum and storing it, beside a busy local disk: what begins later than so before the next
checkpoint would last into it. A store that is slower is farther away, and its requests hold up no checkpoint's."""
QUIET_RATIO_MAX = 0.4
"""Of the interval: so much is left free at most."""
LATE_RATIO = 0.15
"""Of the interval: by so much the next checkpoint may be late."""
RECORD_S = 0.02
"""What is stored here is one part of a checkpoint: then the JobMaster, perhaps on this machine, writes its record. What
began at once held that up for 4 ms, where it takes a few tenths of one."""
WAIT_S_MAX = 0.5
SOON_RATIO, SOON_S_MAX = 0.3, 0.5
"""A checkpoint comes soon, where so much of the interval is left: long enough for what is stored ahead of it, where it
is cut at a commit, by up to `triggers.EARLY_RATIO` before it is due, and the interval before was longer by as much."""


class Precedence:
    """What is told of checkpoints, and who waits for them. Thread-safe."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._under_way = 0
        self._began_s: float | None = None
        self._interval_s: float | None = None
        self._waiting: dict[Future[None], None] = {}
        """Without values: a set in order, so that who came first goes first."""

    def begun(self, checkpoint: Future[Any]) -> None:
        """A checkpoint begins now; its part here ends when this future does."""
        now_s = self._scheduler.monotonic()
        with self._lock:
            self._interval_s = None if self._began_s is None else now_s - self._began_s
            self._began_s = now_s
            self._under_way += 1
        checkpoint.add_done_callback(lambda _: self._scheduler.call_later(RECORD_S, self._ended))

    def free(self, size_bytes: int) -> Future[None]:
        """Done when an object of that size may be made and stored, after `WAIT_S_MAX` at the latest."""
        with self._lock:
            if not (self._under_way or self._quiet(size_bytes / BYTES_PER_S)):
                return done()
            free: Future[None] = Future()
            self._waiting[free] = None
        cancel = self._scheduler.call_later(WAIT_S_MAX, partial(self._let_go, free))
        free.add_done_callback(lambda _: cancel())
        return free

    def soon(self) -> bool:
        """Whether the next checkpoint comes within a moment."""
        with self._lock:
            return self._within(SOON_S_MAX, SOON_RATIO)

    def _quiet(self, takes_s: float) -> bool:
        """Whether what takes so long would last into the next checkpoint."""
        return self._within(takes_s, QUIET_RATIO_MAX)

    def _within(self, seconds: float, ratio_max: float) -> bool:
        """Whether less is left until the next checkpoint, also than that ratio of the interval, or it is a bit late."""
        if self._began_s is None or self._interval_s is None:
            return False
        left_s = self._began_s + self._interval_s - self._scheduler.monotonic()
        return -LATE_RATIO * self._interval_s < left_s < min(seconds, ratio_max * self._interval_s)

    def _ended(self) -> None:
        with self._lock:
            self._under_way -= 1
            waiting = () if self._under_way else tuple(self._waiting)
        for each in waiting:
            self._let_go(each)

    def _let_go(self, waiting: Future[None]) -> None:
        with self._lock:
            if waiting not in self._waiting:
                return
            del self._waiting[waiting]
        waiting.set_result(None)
