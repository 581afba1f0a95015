"""The rule by which requests to persist are joined, without clock, threads or I/O.

The requests of a cut wait for each other, to share an object, until every registered log has asked, or `delay_s` after
the first, or until they hold `bytes_max`. A log that asks with nothing to persist counts as having asked.
"""

from collections.abc import Iterable
from typing import Generic, TypeVar

Request = TypeVar("Request")
L = TypeVar("L")


class Gathering(Generic[L, Request]):
    """The requests that wait. Not thread-safe: its owner holds a lock."""

    def __init__(self, delay_s: float, bytes_max: int) -> None:
        self._delay_s = delay_s
        self._bytes_max = bytes_max
        self._asked: set[L] = set()
        self._requests: list[Request] = []
        self._bytes = 0
        self._deadline_s: float | None = None

    def ask(self, log: L, now_s: float, request: Request | None = None, size_bytes: int = 0) -> None:
        """Note that a log asks to persist; `request` is None if it has nothing new."""
        if not self._requests and log in self._asked:
            # A log asks once in each cut. The cut before had nothing to store, so `take` did not clear the logs that
            # had asked.
            self._asked.clear()
        self._asked.add(log)
        if request is None:
            return
        self._requests.append(request)
        self._bytes += size_bytes
        if self._deadline_s is None:
            self._deadline_s = now_s + self._delay_s

    def due_in_s(self, now_s: float, registered: Iterable[L]) -> float | None:
        """Seconds until the requests should be taken; 0: now; None: no request waits."""
        if self._deadline_s is None:
            return None
        if self._bytes >= self._bytes_max or self._asked.issuperset(registered):
            return 0.0
        return max(0.0, self._deadline_s - now_s)

    def take(self) -> list[Request]:
        """Take out the requests that waited, in order; the next request begins a new gathering."""
        taken, self._requests = self._requests, []
        self._asked.clear()
        self._bytes = 0
        self._deadline_s = None
        return taken
