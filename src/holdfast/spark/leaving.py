"""Executors that are to go: decommissioned nodes, and spot instances whose notice has come.

Spark gives such an executor no new tasks, and waits for those that it has; the cluster manager ends it after a while.
A thread asks Spark every `LOOK_S` seconds, in a single call as long as no executor is to go.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from holdfast.ids import ProcessId
from holdfast.printable import logger

log = logger(__name__)

LOOK_S = 1.0
"""Seconds between two looks. A higher value asks Spark less often, and notices later."""


@runtime_checkable
class TellsWhoLeaves(Protocol):
    """A `SparkHost` that tells which executors are to go."""

    def leaving(self) -> dict[str, str]:
        """Return Spark's message about each executor that is to go, by its id."""
        ...

    def executors_of(self, group: str) -> frozenset[str]:
        """Return the ids of the executors that run tasks of that group."""
        ...


class LeavingWatch:
    """Tells once of each process whose executor is to go, from its construction until `close`."""

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
        """Tell of the processes on executors that are to go by now."""
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
