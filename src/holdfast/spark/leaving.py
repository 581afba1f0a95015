"""Executors that will be removed: on decommissioned nodes, and on spot instances that have received their notice.

Spark gives such an executor no new tasks, and waits for its running tasks; the cluster manager ends it after a while.
A thread asks Spark every `LOOK_S` seconds, by a single call while no executor is about to be removed.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from holdfast.ids import ProcessId
from holdfast.printable import logger

log = logger(__name__)

LOOK_S = 1.0
"""Seconds between two questions to Spark. A higher value asks less often, and notices a removal later."""


@runtime_checkable
class TellsWhoLeaves(Protocol):
    """A `SparkHost` that reports which executors will be removed."""

    def leaving(self) -> dict[str, str]:
        """Return Spark's message about each executor that will be removed, by the executor's id."""
        ...

    def executors_of(self, group: str) -> frozenset[str]:
        """Return the ids of the executors that run tasks of that group."""
        ...


class LeavingWatch:
    """Reports each process whose executor will be removed, once, from its construction until `close`."""

    def __init__(
        self,
        host: TellsWhoLeaves,
        processes: Callable[[], Iterable[ProcessId]],
        group_of: Callable[[ProcessId], str],
        tell: Callable[[ProcessId, str], None],
    ) -> None:
        self._host, self._processes, self._group_of, self._tell = host, processes, group_of, tell
        self._told: set[ProcessId] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="holdfast-leaving", daemon=True).start()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Report the processes on executors that will be removed."""
        leaving = self._host.leaving()
        if not leaving:
            return
        for process in [each for each in self._processes() if each not in self._told]:
            for executor in self._host.executors_of(self._group_of(process)) & leaving.keys():
                self._told.add(process)
                self._tell(process, f"executor {executor} is to go: {leaving[executor].strip()}")

    def close(self) -> None:
        """End the watch."""
        self._closed.set()
