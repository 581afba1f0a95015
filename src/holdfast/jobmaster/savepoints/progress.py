"""The progress of a savepoint that is being written, the time that is left for it, and its outcome."""

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import described
from holdfast.formats.history import SavepointStats
from holdfast.ids import Epoch
from holdfast.printable import logger

log = logger(__name__)

LOG_EVERY_S = 5.0
"""Seconds between two lines about a copy's progress. Lower values write more lines."""

T = TypeVar("T")


class SavepointProgress:
    """A savepoint under way. `timeout_s`: seconds from now within which it must be written; None: there is no limit."""

    def __init__(self, url: str, epoch: Epoch, clock: Clock, timeout_s: float | None) -> None:
        self._url = url
        self._epoch = epoch
        self._clock = clock
        self._timeout_s = timeout_s
        self._at_s = clock.now()
        self._began_s = self._said_s = clock.monotonic()
        self._checkpoint = -1
        self._total: int | None = None
        self._objects = self._size_bytes = 0

    @property
    def duration_s(self) -> float:
        return self._clock.monotonic() - self._began_s

    @property
    def left_s(self) -> float | None:
        """Seconds that it may still take; None if there is no limit."""
        return None if self._timeout_s is None else max(0.0, self._timeout_s - self.duration_s)

    def await_(self, promise: "Future[T]") -> T:
        """Wait for a step of the savepoint. Raises `TimeoutError` if there is no time left."""
        try:
            return promise.result(self.left_s)
        except FutureTimeout:
            raise self.late() from None

    def late(self) -> TimeoutError:
        """Return the error of a savepoint that took too long."""
        return TimeoutError(
            f"savepoint {self._url}: not written within {self._timeout_s:g} s: {self._state}. Whatever was copied is "
            "deleted, and the query goes on. Set a longer timeout, or more task_managers, which copy side by side"
        )

    def begin_copies(self, checkpoint: int, total: int) -> None:
        """Note that `total` objects of that checkpoint are copied from now on."""
        self._checkpoint, self._total = checkpoint, total

    def copied(self, objects: int, size_bytes: int) -> None:
        """Note the objects and bytes copied so far, and log them now and then."""
        self._objects, self._size_bytes = objects, size_bytes
        if self._clock.monotonic() - self._said_s >= LOG_EVERY_S:
            self._said_s = self._clock.monotonic()
            log.info("%s", self)

    def copied_in_time(self, objects: int, size_bytes: int) -> None:
        """Note the same. Raises `TimeoutError` if there is no time left."""
        self.copied(objects, size_bytes)
        if self.left_s == 0.0:
            raise self.late()

    def completed(self) -> SavepointStats:
        return self._stats("completed", "")

    def failed(self, error: Exception) -> SavepointStats:
        return self._stats("failed", described(error))

    def _stats(self, outcome: str, reason: str) -> SavepointStats:
        figures = (self._at_s, self.duration_s, self._objects, self._size_bytes)
        return SavepointStats(self._url, self._checkpoint, *figures, outcome, reason, self._epoch)

    @property
    def _state(self) -> str:
        if self._total is None:
            return "nothing is copied yet, since its checkpoint, or publication before that, is not complete"
        return f"{self._objects} of {self._total} objects, {self._size_bytes} bytes are copied"

    def __str__(self) -> str:
        return f"savepoint {self._url}: {self._state}"
