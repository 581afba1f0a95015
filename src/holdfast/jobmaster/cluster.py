"""What the JobMaster needs of the place it runs on: TaskManagers to start, levels of a batch to run.

Implemented by `spark/` for real, and by `testing/` in process. A cluster decides nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from holdfast.exchange.task import LevelRequest, UnitResult
from holdfast.graph.plan import Unit
from holdfast.taskmanager.protocol import ExchangeRoute, ExchangeRoutes, TaskManagerGateway


class LevelRun(msgspec.Struct, frozen=True):
    """One level of one run of a batch: all units, and where the TaskManagers are."""

    request: LevelRequest
    units: list[Unit]
    routes: ExchangeRoutes
    description: str


@dataclass(frozen=True)
class StartTaskManager:
    """One start of a TaskManager; `ended` is called once, from any thread, when it is over."""

    task_manager: int
    incarnation: int
    ended: Callable[[int, int, str], None]


class Cluster(Protocol):
    """All calls may be made from any thread."""

    senders: int
    """How many units of a level run side by side at most: the slots that TaskManagers leave."""

    heartbeats: bool
    """Whether its TaskManagers send heartbeats; where they do not, silence says nothing."""

    def start_task_manager(self, start: StartTaskManager) -> None:
        """Returns at once; the TaskManager registers with the JobMaster by itself."""
        ...

    def end_task_manager(self, task_manager: int, incarnation: int) -> None:
        """Cancel what hosts that incarnation, if it still runs; its `ended` follows."""
        ...

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        """A connection to a registered TaskManager."""
        ...

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        """Blocks; results in unit order. Raises only where the cluster itself fails (a lost executor, say)."""
        ...

    def cancel(self, run: int) -> None:
        """End the Spark jobs of a run; returns when they are over or after a bound."""
        ...

    def stop(self) -> None:
        """End all TaskManagers and connections."""
        ...
