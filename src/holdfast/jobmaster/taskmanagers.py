"""The JobMaster's TaskManagers: waiting until all serve, calling all of them, and the routes to them.

What they share with senders (starts, incarnations, registrations, heartbeats, ends) is in `processes`. What to do
about a loss is the JobMaster's affair.
"""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import JobRefused, TaskManagerLost
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.cluster import Cluster
from holdfast.jobmaster.processes import HEARTBEAT_TIMEOUT_S, Processes
from holdfast.taskmanager.protocol import ExchangeRoute, TaskManagerGateway

REGISTRATION_TIMEOUT_S = 120.0

T = TypeVar("T")


class TaskManagers(Processes[TaskManagerGateway]):
    """Thread-safe. `lost(process, reason)` is called once for each incarnation that ends unasked."""

    def __init__(
        self,
        cluster: Cluster,
        count: int,
        clock: Clock,
        lost: Callable[[ProcessId, str], None],
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        def connect(process: ProcessId, address: str) -> TaskManagerGateway:
            return cluster.gateway(ExchangeRoute(process.number, process.incarnation, address))

        super().__init__(Role.TASK_MANAGER, count, cluster, clock, connect, lost, heartbeat_timeout_s)
        self._calls = ThreadPoolExecutor(max(count, 1), thread_name_prefix="holdfast-calls")

    def await_serving(self, stopping: threading.Event, timeout_s: float = REGISTRATION_TIMEOUT_S) -> None:
        """Block until all serve, or somebody stops the query.

        Raises `TaskManagerLost` if one ends meanwhile, `JobRefused` after the time-out.
        """
        deadline_s = self._clock.monotonic() + timeout_s
        with self._changed:
            while not self._settled() and not stopping.is_set() and self._clock.monotonic() < deadline_s:
                self._changed.wait(0.1)
            if len(self._serving) == self.count or stopping.is_set():
                return
            missing = sorted(set(range(self.count)) - self._serving.keys())
            reasons = "; ".join(f"{index}: {self._reasons.get(index, 'not registered')}" for index in missing)
            ended = len(self._started) < self.count
        if ended:
            raise TaskManagerLost(f"TaskManagers ended while they started: {reasons}")
        raise JobRefused(
            f"{len(missing)} of {self.count} TaskManagers did not start within {timeout_s:.0f} s ({reasons}). Look at "
            "the executors' logs; can the executors reach the driver (spark.driver.host)?"
        )

    def _settled(self) -> bool:
        return len(self._started) < self.count or len(self._serving) == self.count

    def routes(self) -> list[ExchangeRoute]:
        """Those that serve, by index."""
        with self._changed:
            serving = [self._serving[index] for index in sorted(self._serving)]
            return [ExchangeRoute(each.process.number, each.process.incarnation, each.address) for each in serving]

    @property
    def missing(self) -> bool:
        """Whether one of them does not serve."""
        return len(self._serving) < self.count

    def take_dead(self, live: Collection[int]) -> list[int]:
        """Incarnations that ended since the last call. Those that somebody still takes for `live` come next time."""
        with self._changed:
            dead = [process.incarnation for process in self._dead if process.incarnation not in live]
            self._dead = [process for process in self._dead if process.incarnation in live]
            return dead

    def gateway(self, task_manager: int) -> TaskManagerGateway:
        """Raises `TaskManagerLost` where it does not serve."""
        with self._changed:
            found = self._serving.get(task_manager)
            if found is None:
                reason = self._reasons.get(task_manager, "does not serve")
                raise TaskManagerLost(f"TaskManager {task_manager}: {reason}")
            return found.gateway

    def on_all(self, call: Callable[[int, TaskManagerGateway], T]) -> list[T]:
        """Call all of them side by side, wait for every answer, raise the first error."""
        pending = [self._calls.submit(self._call, call, index) for index in range(self.count)]
        errors = [error for error in (future.exception() for future in pending) if error is not None]
        if errors:
            raise next((error for error in errors if not isinstance(error, TaskManagerLost)), errors[0])
        return [future.result() for future in pending]

    def _call(self, call: Callable[[int, TaskManagerGateway], T], index: int) -> T:
        """One that cannot be reached counts as dead: what hosts it is ended, and its loss follows."""
        gateway = self.gateway(index)
        process = self._started.get(index)
        try:
            return call(index, gateway)
        except TaskManagerLost:
            if process is not None:
                self._cluster.end(process)
            raise

    def await_loss(self, timeout_s: float) -> None:
        """After a `TaskManagerLost`: until the end that came with it has been noticed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._serving) < self.count or self._stopping, timeout_s)

    def stop(self) -> None:
        super().stop()
        self._calls.shutdown(wait=False)
