"""Precedence of checkpoints: when the next checkpoint is expected, and when large uploads that compete with it may
begin.

    begun ──── under way ──── done ─ record     begun ──── …
      └──────────────── interval ─────────────────┘
                                     free … quiet ┘

No large upload begins while a checkpoint is under way (including its record), or shortly before the next checkpoint is
expected. That is expected one interval after the last checkpoint began; the interval is the time between the last two
checkpoints. No upload waits for long: if checkpoints take as long as the uploads that wait for them, waiting gains
nothing. This module runs nothing itself.
"""

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

from holdfast.uploads.scheduling import Scheduler, done

BYTES_PER_S = 250e6
"""Assumed rate of reading a file, computing its checksum and storing it while the local disk is busy. An object that
would take longer than the time until the next checkpoint must wait. A slower store is remote, and requests to it do not
delay checkpoints."""
QUIET_RATIO_MAX = 0.4
"""Greatest share of the interval that is kept free of large objects before the next checkpoint."""
LATE_RATIO = 0.15
"""Share of the interval by which the next checkpoint may be late and still counts as expected."""
RECORD_S = 0.02
"""Seconds kept free after this TaskManager's part of a checkpoint, in which the JobMaster, perhaps on this machine,
writes the record. An upload that began at once delayed the record by 4 ms, although the record takes only a few tenths
of a millisecond."""
WAIT_S_MAX = 0.5
SOON_RATIO, SOON_S_MAX = 0.3, 0.5
"""Time before the next checkpoint in which uploads ahead of a cut use the smaller threshold, as a share of the
checkpoint interval and in seconds. A checkpoint that is cut at a commit may come earlier than it is due by
`triggers.EARLY_RATIO` of the interval, and the last interval may have been longer by as much: the share covers both,
and the uploads themselves."""


class Precedence:
    """The checkpoints under way and expected, and the objects that wait for them. Thread-safe."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._under_way = 0
        self._began_s: float | None = None
        self._interval_s: float | None = None
        self._waiting: dict[Future[None], None] = {}
        """The waiting futures, as keys in order of arrival; first come, first served."""

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
        """Return whether the next checkpoint is expected very soon."""
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
