"""A scheduler for the changelog on a single thread, whose time is advanced by the test: same calls, same order."""

import heapq
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.uploads.scheduling import complete

T = TypeVar("T")


@dataclass(order=True)
class _Event:
    due_s: float
    number: int
    call: Callable[[], None] = field(compare=False)
    cancelled: bool = field(default=False, compare=False)


class ManualScheduler:
    """Implements `uploads.scheduling.Scheduler`; its lanes have no limit.

    Parameters
    ----------
    duration_s
        The seconds that a call takes in a lane. Its effects appear at the end of that time.
    """

    def __init__(self, duration_s: Callable[[str], float] = lambda lane: 0.0) -> None:
        self._duration_s = duration_s
        self._now_s = 0.0
        self._number = 0
        self._events: list[_Event] = []

    def monotonic(self) -> float:
        return self._now_s

    def submit(self, lane: str, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self.call_later(self._duration_s(lane), lambda: complete(future, call))
        return future

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Callable[[], None]:
        self._number += 1
        event = _Event(self._now_s + delay_s, self._number, call)
        heapq.heappush(self._events, event)

        def cancel() -> None:
            event.cancelled = True

        return cancel

    def result(self, future: Future[T]) -> T:
        """Run due calls until the future is done."""
        self.run_until(future.done)
        return future.result()

    def close(self) -> None:
        """Do nothing: waiting calls still run when their time comes."""

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Let time pass, from one event to the next, until the condition holds.

        Raises
        ------
        RuntimeError
            No call is left that could make the condition true.
        """
        while not condition():
            if not self._step(float("inf")):
                raise RuntimeError("no call is left to run, and the condition does not hold")

    def advance(self, seconds: float) -> None:
        """Let that many seconds pass; calls that fall due in that time run."""
        until_s = self._now_s + seconds
        while self._step(until_s):
            pass
        self._now_s = until_s

    def _step(self, until_s: float) -> bool:
        while self._events and self._events[0].cancelled:
            heapq.heappop(self._events)
        if not self._events or self._events[0].due_s > until_s:
            return False
        event = heapq.heappop(self._events)
        self._now_s = max(self._now_s, event.due_s)
        event.call()
        return True
