"""The rule for slow upload attempts: when an attempt is slow, and whether another may start beside it. Does no I/O.

An attempt is slow after `timeout + size / measured rate`. It is slow already when it takes longer than nearly all of
the latest attempts took for their size; this shortens the tail. Invariant: extra requests are at most
`EXTRA_REQUESTS_RATIO_MAX` of the first attempts, however slow the store becomes as a whole.
After Dean and Barroso, The Tail at Scale (2013).
"""

import threading
from collections import deque

import numpy as np

EXTRA_REQUESTS_RATIO_MAX = 0.05
SLOW_SHARE = 0.045
"""The share of attempts that count as slow: a little below the budget, so that the budget suffices for the slowest."""
SAVED_REQUESTS_MAX = 50.0
"""The budget does not pile up: a store that becomes slow is not met with more than that many requests on top."""
OBSERVED_MIN, OBSERVED_MAX = 100, 1000
LEARNED_EVERY = 20
SECONDS_PER_BYTE_MAX = 1e-6
"""Small objects say little about the rate: no store is taken to be slower than 1 MB/s."""
TIMEOUT_S_MIN = 0.1
"""The least seconds, on top of an object's size at the measured rate, after which an attempt is slow. With a lower
value, another request costs more than it can win; with a higher value, slow attempts hold up a checkpoint for
longer."""


class Hedging:
    """Learns from attempts how long they take. Thread-safe.

    Parameters
    ----------
    timeout_s
        The retry policy's time-out in seconds; None: no attempt is ever slow.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._observed: deque[tuple[int, float]] = deque(maxlen=OBSERVED_MAX)
        self._unlearned = 0
        self._seconds_per_byte = 0.0
        self._share_of_timeout = 1.0
        self._budget = 0.0

    def upload_started(self) -> None:
        """Count the first attempt of an upload."""
        with self._lock:
            self._budget = min(SAVED_REQUESTS_MAX, self._budget + EXTRA_REQUESTS_RATIO_MAX)

    def attempt_succeeded(self, size_bytes: int, took_s: float) -> None:
        """Learn from an attempt that stored its object, also if another attempt was faster: slow attempts count too."""
        with self._lock:
            self._observed.append((size_bytes, took_s))
            self._unlearned += 1
            if self._unlearned >= LEARNED_EVERY:
                self._unlearned = 0
                self._learn()

    def timeout_s(self, size_bytes: int) -> float | None:
        """Seconds after which an attempt with that many bytes is slow; None: never."""
        if self._timeout_s is None:
            return None
        with self._lock:
            usual_s = size_bytes * self._seconds_per_byte
            longest_s = self._timeout_s + usual_s
            return max(min(TIMEOUT_S_MIN + usual_s, longest_s), longest_s * self._share_of_timeout)

    def take(self) -> bool:
        """Return whether a request may be made beside a slow request, and count it if so."""
        with self._lock:
            if self._budget < 1.0:
                return False
            self._budget -= 1.0
            return True

    def _learn(self) -> None:
        sizes, took_s = np.array(self._observed).T
        self._seconds_per_byte = min(SECONDS_PER_BYTE_MAX, float(took_s.sum() / max(1.0, sizes.sum())))
        if len(self._observed) >= OBSERVED_MIN and self._timeout_s is not None:
            shares = took_s / (self._timeout_s + sizes * self._seconds_per_byte)
            self._share_of_timeout = min(1.0, float(np.quantile(shares, 1.0 - SLOW_SHARE)))
