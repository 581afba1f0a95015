"""A rescale as its caller sees it: how far it is, and how it ended."""

import threading
from collections.abc import Callable

from holdfast.errors import RescaleFailed


class Rescale:
    """A rescale that `Query.rescale` began; the query goes on meanwhile. Thread-safe.

    `task_managers`: the number that was asked for. `before`: the number at the call.
    """

    def __init__(self, before: int, task_managers: int, bytes_moved: Callable[[], int]) -> None:
        self.before = before
        self.task_managers = task_managers
        self._bytes_moved = bytes_moved
        self._ended = threading.Event()
        self._error: str | None = None
        self._moved = 0
        self._step = "starting TaskManagers"

    @property
    def is_done(self) -> bool:
        """True once it has ended, well or not."""
        return self._ended.is_set()

    @property
    def error(self) -> str | None:
        """Why the job still has the layout of before; None while it goes on, and if it succeeded."""
        return self._error

    @property
    def bytes_moved(self) -> int:
        """Bytes of state that TaskManagers have read for the subtasks that they gain."""
        return self._moved if self.is_done else self._bytes_moved()

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        way = f"from {self.before} to {self.task_managers} TaskManagers"
        moved = f"{self.bytes_moved:,} bytes of state read"
        if not self.is_done:
            return f"{way}: {self._step}, {moved}"
        return f"{way}: done, {moved}" if self._error is None else f"{way}: failed: {self._error}"

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the job has the new layout, at most `timeout` seconds.

        Raises
        ------
        RescaleFailed
            The job still has the layout of before.
        TimeoutError
            It goes on after that time.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the rescale goes on after {timeout:g} s: {self.progress}")
        if self._error is not None:
            raise RescaleFailed(f"rescale {self.progress}")

    def __repr__(self) -> str:
        return f"<Rescale {self.progress}>"

    def now(self, step: str) -> None:
        """Note the step that it is at."""
        self._step = step

    def end(self, error: str | None) -> None:
        """Note that it has ended."""
        if not self.is_done:
            self._moved, self._error = self._bytes_moved(), error
            self._ended.set()
