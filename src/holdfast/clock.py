"""The clock, injected wherever time matters, so that tests can turn it by hand."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock and monotonic time in seconds."""

    def now(self) -> float:
        """Seconds since the Unix epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

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
