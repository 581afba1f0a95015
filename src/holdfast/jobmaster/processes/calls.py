"""Calls to other processes: rounds of calls, threads that make them, and reports to the execution machine, which
decides how long each call may take.

A round is a single object for all its calls. A future for each call would be some twenty objects; with many
TaskManagers, the futures of a few checkpoints would make Python's garbage collector scan the complete heap.
"""

import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from holdfast.clock import Clock
from holdfast.execution import events
from holdfast.execution.calls import Step
from holdfast.ids import ProcessId
from holdfast.printable import logger

log = logger(__name__)


class Round:
    """A call to some processes, and their answers: the first answer of a process counts. Thread-safe.

    `call` takes a process's number and its gateway. `heard` is called with each process and its error, if any, on the
    thread that brings the answer.
    """

    def __init__(
        self,
        processes: Iterable[ProcessId],
        call: Callable[[int, Any], Any],
        heard: Callable[[ProcessId, Exception | None], None] | None = None,
    ) -> None:
        self.call = call
        self.results: dict[ProcessId, Any] = {}
        self.errors: dict[ProcessId, Exception] = {}
        self.done: Future[None] = Future()
        """Kept once all have answered."""
        self._heard = heard
        self._lock = threading.Lock()
        self._unanswered = dict.fromkeys(processes)
        self._listeners: list[tuple[ProcessId, Callable[[], None]]] = []
        if not self._unanswered:
            self.done.set_result(None)

    @property
    def unanswered(self) -> list[ProcessId]:
        """The processes without an answer yet."""
        with self._lock:
            return list(self._unanswered)

    def settle(self, process: ProcessId, result: Any = None, error: Exception | None = None) -> None:
        """Take a process's answer, unless there is one already."""
        with self._lock:
            if process not in self._unanswered:
                return
            del self._unanswered[process]
            if error is None:
                self.results[process] = result
            else:
                self.errors[process] = error
            is_done = not self._unanswered
            listeners = [listener for each, listener in self._listeners if each == process]
        if self._heard is not None:
            self._heard(process, error)
        for listener in listeners:
            listener()
        if is_done:
            self.done.set_result(None)

    def when_answered(self, process: ProcessId, listener: Callable[[], None]) -> None:
        """Call `listener` once the process has answered; at once, if it has answered already."""
        with self._lock:
            if process in self._unanswered:
                self._listeners.append((process, listener))
                return
        listener()


class CallReporter:
    """Reporter of calls. Thread-safe."""

    def __init__(self, tell: Callable[[events.Event], None], clock: Clock) -> None:
        self._tell = tell
        self._clock = clock
        self._numbers = itertools.count(1)

    def pending(self, asked: Round, step: Step, about: str, began_s: float) -> None:
        """Report the calls of a round, begun at `began_s`, that have no answer yet."""
        for process in asked.unanswered:
            number = next(self._numbers)
            self._tell(events.CallBegan(number, step, about, began_s, process))
            asked.when_answered(process, partial(self._tell, events.CallEnded(number)))

    @contextmanager
    def under_way(self, step: Step, about: str) -> Iterator[None]:
        """Report a call that concerns no single process, for the time of the context."""
        number = next(self._numbers)
        self._tell(events.CallBegan(number, step, about, self._clock.monotonic()))
        try:
            yield
        finally:
            self._tell(events.CallEnded(number))


class CallThread:
    """A thread that makes calls in turn. A call that never returns blocks only this thread.

    `make(round, callee)` makes a call of a round; it raises nothing.
    """

    def __init__(self, name: str, make: Callable[[Round, Any], None]) -> None:
        self._make = make
        self._calls: queue.SimpleQueue[tuple[Round, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._make_all, name=name, daemon=True).start()

    def submit(self, asked: Round, callee: Any) -> None:
        """Make the call once all calls before it have returned."""
        self._calls.put((asked, callee))

    def end(self) -> None:
        """End the thread after the calls submitted so far."""
        self._calls.put(None)

    def _make_all(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                self._make(*call)
            except Exception:
                log.exception("a call raised an error that it should have reported; later calls are made nevertheless")


def when_done(futures: list["Future[None]"], promise: "Future[None]") -> None:
    """Keep the promise when all futures are done."""
    left = [future for future in futures if not future.done()]
    if not left:
        promise.set_result(None)
        return
    left[0].add_done_callback(lambda _: when_done(left[1:], promise))
