"""What the JobMaster needs of the place it runs on: TaskManagers to start, levels of a batch to run.

Implemented by `spark/` for real, and by `testing/` in process. A cluster decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from holdfast.exchange.resident import SenderGateway
from holdfast.exchange.task import LevelRequest, UnitResult
from holdfast.graph.plan import Unit
from holdfast.ids import ProcessId
from holdfast.protocol.taskmanager import ExchangeRoute, ExchangeRoutes, TaskManagerGateway


class LevelRun(msgspec.Struct, frozen=True):
    """One level of one run of a batch: all units, and where the TaskManagers are."""

    request: LevelRequest
    units: list[Unit]
    routes: ExchangeRoutes
    description: str


@dataclass(frozen=True)
class StartProcess:
    """One start of a TaskManager or a sender; `ended` is called when it is over, from any
    thread, with the reason; what counts is the first call."""

    process: ProcessId
    ended: Callable[[ProcessId, str], None]


class Cluster(Protocol):
    """All calls may be made from any thread."""

    senders: int
    """How many units of a level run side by side at most: senders that stay, or the slots that TaskManagers leave."""

    residents: int
    """How many senders are to stay; 0: every unit goes as a short Spark job."""

    heartbeats: bool
    """Whether its processes send heartbeats; where they do not, silence says nothing."""

    def residents_that_fit(self) -> int:
        """How many senders can stay now beside all TaskManagers: fewer than `residents` while executors are missing."""
        ...

    def check(self) -> None:
        """Raises `SessionStopped` where this place is no more: nothing will run here again."""
        ...

    def start(self, start: StartProcess) -> None:
        """Returns at once; the process registers with the JobMaster by itself."""
        ...

    def end(self, process: ProcessId) -> None:
        """Cancel what hosts that process, if it still runs; its `ended` is called before or after."""
        ...

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        """A connection to a registered TaskManager."""
        ...

    def sender(self, process: ProcessId, address: str) -> SenderGateway:
        """A connection to a registered sender."""
        ...

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        """Work off units as a short job. Blocks; results in unit order.

        Raises only where the cluster itself fails (a lost executor, say).
        """
        ...

    def cancel(self, run: int) -> None:
        """End the Spark jobs of a run; returns when they are over or after a bound. Raises nothing."""
        ...

    def stop(self) -> None:
        """End all TaskManagers and connections."""
        ...
