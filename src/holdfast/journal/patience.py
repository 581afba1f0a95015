"""Limits on the journal's attempts at a store that does not answer."""

import random
import time

from holdfast.back_off import doubled_s
from holdfast.errors import StorageError
from holdfast.journal.rules import Wait

ATTEMPTS_MAX = 10
DELAY_S_MIN = 0.1
DELAY_S_MAX = 5.0


def back_off(attempts: int) -> None:
    """Sleep 0.1 s after the first attempt, then twice as long each time up to `DELAY_S_MAX`, minus a random part of up
    to a half."""
    time.sleep(doubled_s(DELAY_S_MIN, attempts, DELAY_S_MAX) * random.uniform(0.5, 1.0))


class Patience:
    """Counts attempts at an operation and waits between them. After `attempts_max` attempts it raises an error."""

    def __init__(self, attempts_max: int, wait: Wait) -> None:
        self._attempts_max = attempts_max
        self.wait = wait
        self._attempts = 0

    def spend(self, what: str, cause: Exception | None) -> None:
        """Count a failed attempt and wait before the next.

        Raises `StorageError` with `what` and the last cause after the last attempt.
        """
        self._attempts += 1
        if self._attempts >= self._attempts_max:
            raise StorageError(f"{what} after {self._attempts} attempts; last: {cause}") from cause
        self.wait(self._attempts)
