"""The threads and the clock of the changelog's work: the single seam between the work and threads.

    submit(lane, call) ──► a thread of that lane ──► the future, whose callbacks run there
    call_later(delay)  ──► the timer's thread: short calls only, which submit longer work to a lane

A lane runs a limited number of calls at once, in the order in which they came. Invariant of `ThreadScheduler`: after
`close`, it ends once all submitted calls, and all calls that these submitted, have ended. A call that is submitted even
later runs on its caller's thread. A scheduler with a single thread and manual time is `testing.ManualScheduler`.
"""

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from holdfast.printable import logger

T = TypeVar("T")

_log = logger(__name__)


class Scheduler(Protocol):
    """Runs calls beside each other, and later."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def submit(self, lane: str, call: Callable[[], T]) -> Future[T]:
        """Run `call` in that lane; returns at once."""
        ...

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
        """Make the call once after the delay, unless the returned function cancels it before."""
        ...

    def result(self, future: Future[T]) -> T:
        """Wait for the future; return its result or raise its error. Do not call it from a lane that the future
        needs."""
        ...

    def close(self) -> None:
        """End once the submitted calls have ended. Returns at once."""
        ...


def complete(future: Future[T], call: Callable[[], T]) -> None:
    """Give the future the result or the error of `call`."""
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def done() -> Future[None]:
    """A future that is done."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def report_failure(future: Future[Any]) -> None:
    """Log the error of a call that should not raise, and whose future is not used otherwise."""
    error = future.exception()
    if error is not None:
        _log.error("work of the changelog failed", exc_info=error)


@dataclass(order=True)
class _Timer:
    due_s: float
    number: int
    call: Callable[[], None] | None = field(compare=False)
    """None once it is over, to break a cycle: the call often holds the object that holds the function to cancel it."""

    @property
    def over(self) -> bool:
        """True once it was called or cancelled."""
        return self.call is None


class ThreadScheduler:
    """Threads, up to a number for each lane, started as they are needed, and a thread for timers."""

    def __init__(self, threads: Mapping[str, int]) -> None:
        self._pools = {
            lane: ThreadPoolExecutor(count, thread_name_prefix=f"holdfast-{lane}") for lane, count in threads.items()
        }
        self._changed = threading.Condition()
        self._timers: list[_Timer] = []
        self._timed = 0
        self._timer_thread: threading.Thread | None = None
        self._unfinished = 0
        self._closing = False
        self._ended = False

    def monotonic(self) -> float:
        return time.monotonic()

    def submit(self, lane: str, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            self._unfinished += 1
            ended = self._ended
        if ended:
            self._run(future, call)
            return future
        try:
            self._pools[lane].submit(self._run, future, call)
        except RuntimeError:
            # The interpreter is ending and starts no thread any more.
            self._run(future, call)
        return future

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
        with self._changed:
            if self._ended:
                # The last submitted call may have ended before its caller asks for a retry.
                late = threading.Timer(delay_s, call)
                late.daemon = True
                late.start()
                return late.cancel
            self._timed += 1
            timer = _Timer(self.monotonic() + delay_s, self._timed, call)
            heapq.heappush(self._timers, timer)
            self._unfinished += 1
            if self._timer_thread is None:
                self._timer_thread = threading.Thread(target=self._time, name="holdfast-timer", daemon=True)
                self._timer_thread.start()
            self._changed.notify_all()

        def cancel() -> None:
            with self._changed:
                pending, timer.call = not timer.over, None
            if pending:
                self._one_finished()

        return cancel

    def result(self, future: Future[T]) -> T:
        return future.result()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._end_if_idle()

    def _run(self, future: Future[T], call: Callable[[], T]) -> None:
        try:
            complete(future, call)
        finally:
            self._one_finished()

    def _one_finished(self) -> None:
        with self._changed:
            self._unfinished -= 1
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._closing and not self._unfinished and not self._ended:
            self._ended = True
            self._changed.notify_all()
            for pool in self._pools.values():
                pool.shutdown(wait=False)

    def _time(self) -> None:
        while (call := self._next_call()) is not None:
            try:
                call()
            except Exception:
                _log.exception("a timer's call failed")
            finally:
                del call
                self._one_finished()

    def _next_call(self) -> Callable[[], None] | None:
        """Wait for the next timer that is due, and return its call; None at the end."""
        with self._changed:
            while not self._ended:
                while self._timers and self._timers[0].over:
                    heapq.heappop(self._timers)
                left_s = self._timers[0].due_s - self.monotonic() if self._timers else None
                if left_s is not None and left_s <= 0:
                    timer = heapq.heappop(self._timers)
                    call, timer.call = timer.call, None
                    return call
                self._changed.wait(left_s)
            return None
