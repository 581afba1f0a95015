"""Threads of the control loop for slow work: journal records, gathering, deletions. Each does its work in order."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum


class Side(Enum):
    """Work of a side is done in order; sides do not wait for each other. The value is part of the thread's name."""

    RECORDS = "records"
    GATHERING = "gathering"
    DELETIONS = "deletions"


class SideThreads:
    """A thread for each side. `guarded` runs a step so that its errors end the query, not the thread."""

    def __init__(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        self._guarded = guarded
        self._threads = {side: ThreadPoolExecutor(1, f"holdfast-{side.value}") for side in Side}
        self._closed = False

    def submit(self, side: Side, work: Callable[..., None], *arguments: object) -> None:
        """Have work done; after `close`, nothing happens."""
        if not self._closed:
            self._threads[side].submit(self._guarded, lambda: work(*arguments))

    def ask(self, side: Side, work: Callable[[], None]) -> "Future[None]":
        """Have work done; the caller can wait for its end, and gets its error."""
        return self._threads[side].submit(work)

    def stop(self) -> None:
        """Take no further work."""
        self._closed = True

    def close(self) -> None:
        """Wait for the work under way; drop the rest."""
        self.stop()
        for thread in self._threads.values():
            thread.shutdown(wait=True, cancel_futures=True)
