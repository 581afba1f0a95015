"""Checkpoints go first: when a checkpoint is expected, and when something large that competes with it may begin.

    begun ──── under way ──── done ─ record     begun ──── …
      └──────────────── interval ─────────────────┘
                                     free … quiet ┘

Nothing begins while a checkpoint is under way, its record included, nor shortly before the next checkpoint is expected.
It is expected an interval after the last checkpoint began, the interval being that between the last two. Nobody waits
for long: if checkpoints take as long as the work that waits for them, there is nothing to win. Runs nothing itself.
"""

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

from holdfast.uploads.scheduling import Scheduler, done

BYTES_PER_S = 250e6
"""The assumed rate of reading a file, its checksum and storing it beside a busy local disk: an object that would take
longer than the time until the next checkpoint has to wait. A store that is slower is farther away, and its requests
hold up no checkpoint."""
QUIET_RATIO_MAX = 0.4
"""The largest share of the interval, before the next checkpoint, that is kept free of large objects."""
LATE_RATIO = 0.15
"""The share of the interval by which the next checkpoint may be late and is still expected."""
RECORD_S = 0.02
"""The time kept free after this TaskManager's part of a checkpoint, in which the JobMaster, perhaps on this machine,
writes the record. An upload that began at once held the record up for 4 ms; it takes a few tenths of a millisecond."""
WAIT_S_MAX = 0.5
SOON_RATIO, SOON_S_MAX = 0.3, 0.5
"""Share of the checkpoint interval, and seconds, before the next checkpoint, in which uploads ahead use the smaller
threshold. A checkpoint that is cut at a commit may come `triggers.EARLY_RATIO` of the interval before it is due, after
an interval that was longer by as much: the share covers both, and the uploads ahead."""


class Precedence:
    """The checkpoints under way and expected, and the objects that wait for them. Thread-safe."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._under_way = 0
        self._began_s: float | None = None
        self._interval_s: float | None = None
        self._waiting: dict[Future[None], None] = {}
        """The keys are the set of waiting futures in order of arrival; first come, first served."""

    def begun(self, checkpoint: Future[Any]) -> None:
        """Note that a checkpoint begins; this TaskManager's part of it ends when the future is done."""
        now_s = self._scheduler.monotonic()
        with self._lock:
            self._interval_s = None if self._began_s is None else now_s - self._began_s
            self._began_s = now_s
            self._under_way += 1
        checkpoint.add_done_callback(lambda _: self._scheduler.call_later(RECORD_S, self._ended))

    def free(self, size_bytes: int) -> Future[None]:
        """Return a future that is done when an object of that size may be stored, after `WAIT_S_MAX` at the latest."""
        with self._lock:
            if not (self._under_way or self._quiet(size_bytes / BYTES_PER_S)):
                return done()
            free: Future[None] = Future()
            self._waiting[free] = None
        cancel = self._scheduler.call_later(WAIT_S_MAX, partial(self._let_go, free))
        free.add_done_callback(lambda _: cancel())
        return free

    def soon(self) -> bool:
        """Return whether the next checkpoint comes within a moment."""
        with self._lock:
            return self._within(SOON_S_MAX, SOON_RATIO)

    def _quiet(self, takes_s: float) -> bool:
        """Return whether work of so many seconds would last into the next checkpoint."""
        return self._within(takes_s, QUIET_RATIO_MAX)

    def _within(self, seconds: float, ratio_max: float) -> bool:
        """Return whether the next checkpoint is a bit late, or due within `seconds` and `ratio_max` of the interval."""
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
