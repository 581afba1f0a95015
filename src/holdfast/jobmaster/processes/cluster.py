"""Interface of a cluster, which starts TaskManagers and runs levels of a batch for the JobMaster.

Implemented by `spark/` for real, and by `testing/` in process. A cluster decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from holdfast.exchange.resident import SenderGateway
from holdfast.exchange.task import LevelRequest, UnitResult
from holdfast.graph.plan import Unit
from holdfast.ids import ProcessId, RunNumber
from holdfast.protocol.taskmanager import ExchangeRoute, ExchangeRoutes, TaskManagerGateway


class LevelRun(msgspec.Struct, frozen=True):
    """A level of a batch's run: all units, and the addresses of the TaskManagers."""

    request: LevelRequest
    units: list[Unit]
    routes: ExchangeRoutes
    description: str


@dataclass(frozen=True)
class ProcessStarter:
    """Start of a TaskManager or a sender. The cluster calls `ended` with the reason once the process has ended, from
    any thread; only the first call counts."""

    process: ProcessId
    ended: Callable[[ProcessId, str], None]
    explained: Callable[[ProcessId, str], None] = lambda process, reason: None
    """Takes a better reason for an end that was reported before the cluster knew the reason."""
    leaving: Callable[[ProcessId, str], None] = lambda process, reason: None
    """Called with the reason if the process still works, but its machine is about to be removed."""


class Cluster(Protocol):
    """Host of a job's processes. All calls may be made from any thread."""

    @property
    def senders(self) -> int:
        """Greatest number of units of a level that run side by side: the number of long-running senders, or the slots
        that TaskManagers leave free."""
        ...

    @property
    def residents(self) -> int:
        """Number of long-running senders that may stay now; 0: every unit runs as a short Spark job."""
        ...

    heartbeats: bool
    """True if processes send heartbeats; otherwise silence means nothing."""

    def residents_that_fit(self) -> int:
        """Number of long-running senders for which there is room now beside all TaskManagers: fewer than `residents`
        while executors are missing."""
        ...

    def resize(self, processes: int, senders: int | None = None) -> None:
        """Hold slots for this number of TaskManagers, standbys included, and of senders; None: as many senders as
        before. Raises `JobRefused` if there are too few slots."""
        ...

    def check(self) -> None:
        """Look at the cluster, and hold slots that have come for senders that had none.

        Raises `SessionStopped` if it has ended: nothing will run there again.
        """
        ...

    def start(self, start: ProcessStarter) -> None:
        """Start a process and return at once; the process registers with the JobMaster by itself."""
        ...

    def end(self, process: ProcessId) -> None:
        """Cancel the Spark job that hosts the process, if it still runs; the process's `ended` is called before or
        after."""
        ...

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        """Connect to a registered TaskManager."""
        ...

    def sender(self, process: ProcessId, address: str) -> SenderGateway:
        """Connect to a registered sender."""
        ...

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        """Run units as a short Spark job. Blocks; returns the results in unit order.

        Raises only if the cluster itself fails, for example because of a lost executor.
        """
        ...

    def cancel(self, run: RunNumber) -> None:
        """End the Spark jobs of a run; return when they are over or after a time limit. Raises nothing."""
        ...

    def stop(self) -> None:
        """End all TaskManagers and connections."""
        ...
