"""Waiting of threads for the end of a query, or until all data available at their call is processed and published."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from holdfast.ids import JournalNumber
from holdfast.jobmaster.batches.regional import AllOffsets
from holdfast.printable import logger

log = logger(__name__)


class QueryEnd:
    """The end of a query, which any thread may wait for."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._lock = threading.Lock()
        self._waiting = 0

    def set(self) -> None:
        self._reached.set()

    def is_set(self) -> bool:
        return self._reached.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; True if it was reached in time."""
        with self._lock:
            self._waiting += 1
        try:
            return self._reached.wait(timeout_s)
        finally:
            with self._lock:
                self._waiting -= 1

    def log_error(self, job: str, error: Exception, *, told: bool) -> None:
        """Log the error a query ends with, before `set`.

        Threads that wait get the error as an exception and show it. If none waits, the user sees only this line.
        """
        with self._lock:
            told = told or self._waiting > 0
        say = log.info if told else log.error
        say("%s: ended: %s: %s", job, type(error).__name__, error)
        log.debug("%s: how it came to that", job, exc_info=error)


@dataclass
class _Waiter:
    promise: "Future[None]" = field(default_factory=Future)
    looks: list[Callable[[], bool]] | None = None
    """Answers of the sources, each of which tells if it has found all that was there; None: not asked yet."""
    until: AllOffsets | None = None
    checkpoint: "Future[JournalNumber | None] | None" = None


class Waiters:
    """Waiting requests. Any thread makes them; the batch loop's thread serves them."""

    def __init__(
        self,
        reached: Callable[[AllOffsets], bool],
        request_checkpoint: Callable[[], "Future[JournalNumber | None]"],
        published: Callable[[], bool],
        begin_looks: Callable[[], list[Callable[[], bool]]] = list,
    ) -> None:
        self._reached = reached
        self._request_checkpoint = request_checkpoint
        self._published = published
        self._begin_looks = begin_looks
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []

    def add(self) -> "Future[None]":
        waiter = _Waiter()
        with self._lock:
            self._waiting.append(waiter)
        return waiter.promise

    def somebody_waits(self) -> bool:
        with self._lock:
            return bool(self._waiting)

    def serve(self, look: Callable[[bool], AllOffsets]) -> AllOffsets:
        """Serve requests and return the result of `look`. It looks anew (True) if all that was there at a request has
        been found since the last call."""
        with self._lock:
            waiting = list(self._waiting)
        found = [waiter for waiter in waiting if waiter.until is None and self._has_found(waiter)]
        latest = look(bool(found))
        for waiter in found:
            waiter.until = latest
        for waiter in waiting:
            if waiter.until is not None:
                self._serve(waiter, waiter.until)
        return latest

    def _has_found(self, waiter: _Waiter) -> bool:
        if waiter.looks is None:
            waiter.looks = self._begin_looks()
        return all(look() for look in waiter.looks)

    def _serve(self, waiter: _Waiter, until: AllOffsets) -> None:
        if waiter.checkpoint is None and self._reached(until):
            waiter.checkpoint = self._request_checkpoint()
        if waiter.checkpoint is None or not waiter.checkpoint.done():
            return
        if waiter.checkpoint.exception() is not None:
            waiter.checkpoint = None
        elif self._published():
            with self._lock:
                self._waiting.remove(waiter)
            waiter.promise.set_result(None)

    def end(self, error: Exception | None) -> None:
        """End all requests with the query: with everything processed, or with an error."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if error is None:
                waiter.promise.set_result(None)
            else:
                waiter.promise.set_exception(error)
