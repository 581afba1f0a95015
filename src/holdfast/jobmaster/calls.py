"""Calls in progress, reported to the execution machine, which knows how long each may take."""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from holdfast.execution import events
from holdfast.execution.calls import Step
from holdfast.ids import ProcessId


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
