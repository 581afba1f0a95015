"""Requests that the batch loop serves: the end of a query, all available data, news for sources, a final checkpoint.

`QueryEnd` and `Waiters` serve threads that wait for the end of a query, or until all data available at their call is
processed and published. `SourceNews` tells sources of checkpoints. `FinalCheckpoint` ends `available_now`.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from holdfast.availability import listed
from holdfast.checkpoint.events import Position
from holdfast.clock import Clock
from holdfast.errors import CheckpointFailed, described
from holdfast.ids import JournalNumber
from holdfast.jobmaster.batches.planner import Planner
from holdfast.jobmaster.batches.regional import AllOffsets
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.printable import logger
from holdfast.settings import AvailableNow, QueryTrigger

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

        Threads that wait get the error as an exception and show it. If no thread waits, the user sees only this line.
        """
        with self._lock:
            told = told or self._waiting > 0
        say = log.info if told else log.error
        say("%s: ended: %s", job, described(error))
        log.debug("%s: how it came to that", job, exc_info=error)


@dataclass
class _Waiter:
    promise: "Future[None]" = field(default_factory=Future)
    looks: list[Callable[[], bool]] | None = None
    """One function for each source, which returns True once the source has found all data that was there; None: not
    asked yet."""
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
        """Serve requests, and return the result of `look`. It is called with True, for a new look, if a request's
        sources have found all their data since the last call."""
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


class SourceNews:
    """Passes news of checkpoints to sources on the batch loop's thread, which owns the enumerators, and at the end.

    Any thread calls `completed`, the batch loop `tell`; `end` is called once after the loop has ended.
    """

    def __init__(
        self, job: str, planner: Planner, request_checkpoint: Callable[[], "Future[JournalNumber | None]"]
    ) -> None:
        self._request_checkpoint = request_checkpoint
        self._requested: Future[JournalNumber | None] | None = None
        self._job = job
        self._planner = planner
        self._lock = threading.Lock()
        self._newest: Position | None = None

    def completed(self, position: Position) -> None:
        """Note that a checkpoint at that position was recorded; the next `tell` passes on the newest such position."""
        with self._lock:
            self._newest = position

    def tell(self) -> None:
        """Pass on the news. If planning waits for a checkpoint, request it, whatever the trigger is, and request it
        again after a failure."""
        with self._lock:
            newest, self._newest = self._newest, None
        if newest is not None:
            self._planner.completed(newest)
        if self._planner.awaits_record and (self._requested is None or self._requested.done()):
            self._requested = self._request_checkpoint()

    def end(self, newest: Position | None) -> None:
        """Tell sources of the newest record, since the next start may come late or never. An error is only logged."""
        if newest is None:
            return
        try:
            self._planner.completed(newest)
        except Exception as error:
            log.warning("%s: a source could not be notified of the last checkpoint: %s", self._job, error)


class FinalCheckpoint:
    """Requests the final checkpoint of `available_now` when there is nothing to process, and again after a failure.

    It does not wait, since refusals need further batches.
    """

    def __init__(self, trigger: QueryTrigger, control: Control, clock: Clock) -> None:
        self._timeout = trigger.timeout if isinstance(trigger, AvailableNow) else None
        self._timeout_s = trigger.timeout_s if isinstance(trigger, AvailableNow) else None
        self._control = control
        self._clock = clock
        self._began_s: float | None = None
        self._promise: Future[JournalNumber | None] | None = None

    def is_taken(self) -> bool:
        """True if everything processed so far is recorded; otherwise request a checkpoint, unless a request is pending.

        Raises
        ------
        CheckpointFailed
            The checkpoint was not taken within the trigger's timeout; names those who refuse it, or the cause of the
            failure.
        """
        if self._promise is None:
            self._promise = self._control.request_checkpoint()
            self._began_s = self._clock.monotonic() if self._began_s is None else self._began_s
        if self._promise.done():
            promise, self._promise = self._promise, None
            error = promise.exception()
            if error is None:
                return True
            if not isinstance(error, CheckpointFailed) or not error.soft:
                log.warning("the final checkpoint failed, trying again: %s", error)
            self._check(str(error))
        else:
            self._check(listed(self._control.refused_by) or "it is still under way")
        return False

    def _check(self, reason: str) -> None:
        limit_s = self._timeout_s
        if limit_s is not None and self._began_s is not None and self._clock.monotonic() - self._began_s > limit_s:
            raise CheckpointFailed(f"no final checkpoint within {self._timeout}: {reason}")
