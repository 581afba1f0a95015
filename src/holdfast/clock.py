"""The clock, which is injected wherever time matters, so that tests can advance it."""

import threading
import time
from pathlib import Path
from typing import Protocol

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File in which Linux identifies the machine's current boot."""


class Clock(Protocol):
    """Wall-clock and monotonic time in seconds.

    A clock may also have `elapsed()`, which is monotonic and counts the time for which the machine was suspended, and a
    text `identity`. Readings of `elapsed()` are comparable between processes whose clocks have the same identity.
    """

    def now(self) -> float:
        """Seconds since the Unix epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's own clock."""

    _BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)

    @property
    def identity(self) -> str:
        """The identity of the machine's current boot; empty if the machine does not provide one."""
        try:
            return BOOT_ID.read_text().strip() if self._BOOTTIME is not None else ""
        except OSError:
            return ""

    def elapsed(self) -> float:
        """Seconds since the machine started, including those for which it was suspended."""
        return time.monotonic() if self._BOOTTIME is None else time.clock_gettime(self._BOOTTIME)

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, start_s: float = 1_000_000.0) -> None:
        self._now_s = start_s
        self._lock = threading.Lock()

    def now(self) -> float:
        with self._lock:
            return self._now_s

    def monotonic(self) -> float:
        return self.now()

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: {seconds} s")
        with self._lock:
            self._now_s += seconds
