"""Calls to other processes: threads that make them, and reports to the execution machine, which knows how long each
may take."""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from holdfast.execution import events
from holdfast.execution.calls import Step
from holdfast.ids import ProcessId

log = logging.getLogger(__name__)


class CallReporter:
    """Reporter of calls. Thread-safe."""

    def __init__(self, tell: Callable[[events.Event], None]) -> None:
        self._tell = tell
        self._numbers = itertools.count(1)

    def pending(self, answer: "Future[Any]", step: Step, about: str, began_s: float, process: ProcessId) -> None:
        """Report a call to a process that began some time ago and has no answer yet."""
        number = next(self._numbers)
        self._tell(events.CallBegan(number, step, about, began_s, process))
        answer.add_done_callback(lambda _: self._tell(events.CallEnded(number)))

    @contextmanager
    def under_way(self, step: Step, about: str) -> Iterator[None]:
        """Report a call that concerns no single process, for the time of the context."""
        number = next(self._numbers)
        self._tell(events.CallBegan(number, step, about, time.monotonic()))
        try:
            yield
        finally:
            self._tell(events.CallEnded(number))


class CallThread:
    """A thread that makes calls in turn. A call that never returns keeps this thread, and nobody else."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._make_all, name=name, daemon=True).start()

    def submit(self, call: Callable[[], None]) -> None:
        """Make the call once all calls before it have returned. `call` raises nothing."""
        self._calls.put(call)

    def end(self) -> None:
        """End the thread after the calls submitted so far."""
        self._calls.put(None)

    def _make_all(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                log.exception("a call raised an error that it should have told; later calls are made all the same")
