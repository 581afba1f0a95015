"""The rule for slow upload attempts: when an attempt is slow, and whether another may start beside it. Does no I/O.

An attempt is slow after `timeout`, and a larger one after up to `timeout` more than usual for its size; or earlier,
once it takes longer for its size than nearly all of the latest attempts: this shortens the tail. A checkpoint waits for
the slowest of all its uploads, so `BESIDE_MAX` attempts start at once beside a slow attempt. Invariant: there are at
most `STARTING_REQUESTS` extra requests plus a share (a setting) of the first attempts, however slow the whole store
becomes. After Dean and Barroso, The Tail at Scale (2013).
"""

import threading
from collections import deque

import numpy as np

Seconds = np.float64 | np.ndarray[tuple[int], np.dtype[np.float64]]

BESIDE_MAX = 2
"""Attempts that start at once beside a slow attempt. With a higher value fewer attempts can count as slow for the same
number of requests, and no attempt is left to follow when they fail."""
SLOW_OF_BUDGET = 0.96
"""Share of the budget that slow attempts are expected to use. It is a little below 1, so that the budget suffices for
the slowest attempts."""
SLOW_SHARE_MAX = 0.5
STARTING_REQUESTS = 6.0
"""Extra requests that are allowed before any upload has added to the budget. A process makes few uploads, often one for
each checkpoint, and even the first checkpoint of a job with many processes waits for the slowest upload. A higher value
lets a store that is slow at the start get more requests."""
SAVED_REQUESTS_MAX = 50.0
"""Bound on the budget, so that a store that becomes slow gets at most this many extra requests at once."""
OBSERVED_SLOW_MIN, OBSERVED_MAX = 2.4, 1000
"""Expected number of slow attempts among the observed ones from which on the time of slow attempts counts as known: for
example 100 observed attempts, if 2.4 % are slow."""
LEARNED_EVERY = 20
SECONDS_PER_BYTE_MAX = 1e-6
"""Bound on the measured time for a byte, since small objects say little about the rate: no store counts as slower than
1 MB/s."""
TIMEOUT_S_MIN = 0.1
"""Least time in seconds, beyond the time for the object's size at the measured rate, after which an attempt is slow.
With a lower value, another request costs more than it can gain; with a higher value, slow attempts delay a checkpoint
for longer."""


class Hedging:
    """Learns from attempts how long they take. Thread-safe.

    Parameters
    ----------
    timeout_s
        The retry policy's time-out in seconds; None: no attempt is ever slow.
    extra_ratio_max
        Bound on the ratio of extra requests to first attempts, in the long run.
    """

    def __init__(self, timeout_s: float | None, extra_ratio_max: float) -> None:
        self._timeout_s = timeout_s
        self._extra_ratio_max = extra_ratio_max
        self._slow_share = min(SLOW_SHARE_MAX, SLOW_OF_BUDGET * extra_ratio_max / BESIDE_MAX)
        self._lock = threading.Lock()
        self._observed: deque[tuple[int, float]] = deque(maxlen=OBSERVED_MAX)
        self._unlearned = 0
        self._seconds_per_byte = 0.0
        self._share_of_timeout = 1.0
        self._budget = STARTING_REQUESTS if extra_ratio_max else 0.0

    def upload_started(self) -> None:
        """Count the first attempt of an upload."""
        with self._lock:
            self._budget = min(SAVED_REQUESTS_MAX, self._budget + self._extra_ratio_max)

    def attempt_succeeded(self, size_bytes: int, took_s: float) -> None:
        """Learn from an attempt that stored its object, even if another attempt was faster: slow attempts count too."""
        with self._lock:
            self._observed.append((size_bytes, took_s))
            self._unlearned += 1
            if self._unlearned >= min(LEARNED_EVERY, len(self._observed) // 4):
                self._unlearned = 0
                self._learn()

    def timeout_s(self, size_bytes: int) -> float | None:
        """Seconds after which an attempt with that many bytes is slow; None: never."""
        if self._timeout_s is None:
            return None
        with self._lock:
            usual_s = size_bytes * self._seconds_per_byte
            longest_s = float(_longest_s(self._timeout_s, np.float64(usual_s)))
            return max(min(TIMEOUT_S_MIN + usual_s, longest_s), longest_s * self._share_of_timeout)

    def take(self, wanted: int) -> int:
        """Return how many of the `wanted` requests may be made beside a slow request, and count these."""
        with self._lock:
            granted = min(wanted, BESIDE_MAX, int(self._budget))
            self._budget -= granted
            return granted

    def _learn(self) -> None:
        sizes, took_s = np.array(self._observed).T
        self._seconds_per_byte = min(SECONDS_PER_BYTE_MAX, float(took_s.sum() / max(1.0, sizes.sum())))
        if len(self._observed) * self._slow_share >= OBSERVED_SLOW_MIN and self._timeout_s is not None:
            shares = took_s / _longest_s(self._timeout_s, sizes * self._seconds_per_byte)
            self._share_of_timeout = min(1.0, float(np.quantile(shares, 1.0 - self._slow_share)))


def _longest_s(timeout_s: float, usual_s: Seconds) -> Seconds:
    """Return the time after which an attempt is slow, from the usual time for its size: twice that, within bounds.

    The usual time has the store's latency in it, which is all of it for small objects: it is not added to a time-out
    that is meant for the latency.
    """
    return np.clip(2 * usual_s, timeout_s, timeout_s + usual_s)
