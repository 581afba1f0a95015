"""An event loop on a thread of its own, for the calls of a function in a process."""

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.clock import Clock, SystemClock

T = TypeVar("T")

END_S_MAX = 5.0
"""Seconds for which the end of a loop is awaited."""
LOOK_S = 0.001
"""Seconds for which a loop with a simulated clock waits for real events before it skips a pause."""


class LoopThread:
    """Runs an event loop until `close`. With another clock than the machine's, pauses take no time: see
    `SkippingLoop`."""

    def __init__(self, clock: Clock) -> None:
        self.loop = asyncio.new_event_loop() if isinstance(clock, SystemClock) else SkippingLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="holdfast-calls", daemon=True)
        self._thread.start()

    def submit(self, made: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine on the loop; may be called from any thread."""
        return asyncio.run_coroutine_threadsafe(made, self.loop)

    def close(self) -> None:
        """End the loop and its thread. A loop that a function blocks for longer than `END_S_MAX` is left to itself."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_S_MAX)
        if not self._thread.is_alive():
            self.loop.close()


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop for tests: if there is nothing else to do, it goes on to the next timer at once.

    A test of time-outs and retries then takes no time. A call that really waits, for a socket or a thread, races with
    the timers.
    """

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped_s


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        found = super().select(min(timeout, LOOK_S))
        if not found:
            self.skipped_s += timeout
        return found
