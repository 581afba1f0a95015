"""The JobMaster's view of its TaskManagers: who was started, who serves, who is lost.

Each start has an incarnation number of its own. Death is the end of a TaskManager's Spark job; a missing
heartbeat is a long backstop only, since a user's function may hold the interpreter for a while.
This module starts and notices; what to do about a loss is the JobMaster's affair.
"""

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.clock import Clock
from holdfast.errors import JobRefused, TaskManagerLost
from holdfast.jobmaster.cluster import Cluster, StartTaskManager
from holdfast.taskmanager.protocol import ExchangeRoute, Registration, TaskManagerGateway

log = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_S = 30.0
REGISTRATION_TIMEOUT_S = 120.0

T = TypeVar("T")


class TaskManagers:
    """Thread-safe. `lost(task_manager, reason)` is called once for each incarnation that ends unasked."""

    def __init__(self, cluster: Cluster, count: int, clock: Clock, lost: Callable[[int, str], None]) -> None:
        self.count = count
        self._cluster = cluster
        self._clock = clock
        self._lost = lost
        self._changed = threading.Condition()
        self._next_incarnation = 1
        self._started: dict[int, int] = {}
        self._serving: dict[int, ExchangeRoute] = {}
        self._processes: dict[int, str] = {}
        self._gateways: dict[int, TaskManagerGateway] = {}
        self._heard_s: dict[int, float] = {}
        self._dead: list[int] = []
        self._ended: dict[int, str] = {}
        self._stopping = False
        self._calls = ThreadPoolExecutor(max(count, 1), thread_name_prefix="holdfast-calls")

    def start_missing(self) -> None:
        """Start whoever is not running; returns at once."""
        for task_manager in range(self.count):
            with self._changed:
                if task_manager in self._started:
                    continue
                incarnation = self._next_incarnation
                self._next_incarnation += 1
                self._started[task_manager] = incarnation
                self._heard_s[task_manager] = self._clock.monotonic()
            self._cluster.start_task_manager(StartTaskManager(task_manager, incarnation, self._on_end))

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
            reasons = "; ".join(f"{index}: {self._ended.get(index, 'not registered')}" for index in missing)
            ended = len(self._started) < self.count
        if ended:
            raise TaskManagerLost(f"TaskManagers ended while they started: {reasons}")
        raise JobRefused(
            f"{len(missing)} of {self.count} TaskManagers did not start within {timeout_s:.0f} s ({reasons}). Look at "
            "the executors' logs; can the executors reach the driver (spark.driver.host)?"
        )

    def _settled(self) -> bool:
        return len(self._started) < self.count or len(self._serving) == self.count

    def register(self, registration: Registration) -> bool:
        """True for the first process of the incarnation that was started last, however often; False: end yourself."""
        task_manager, incarnation, address = registration.task_manager, registration.incarnation, registration.address
        with self._changed:
            if self._started.get(task_manager) != incarnation:
                return False
            if task_manager in self._serving:
                return self._processes[task_manager] == registration.process
            route = ExchangeRoute(task_manager, incarnation, address)
            self._serving[task_manager] = route
            self._processes[task_manager] = registration.process
            self._gateways[task_manager] = self._cluster.gateway(route)
            self._heard_s[task_manager] = self._clock.monotonic()
            self._ended.pop(task_manager, None)
            self._changed.notify_all()
        log.info("TaskManager %d, incarnation %d, serves at %s", task_manager, incarnation, address)
        return True

    def heartbeat(self, task_manager: int, incarnation: int) -> bool:
        with self._changed:
            wanted = self._started.get(task_manager) == incarnation and not self._stopping
            if wanted:
                self._heard_s[task_manager] = self._clock.monotonic()
            return wanted

    def check_heartbeats(self) -> None:
        """End who has been silent for too long; its loss follows."""
        if not self._cluster.heartbeats:
            return
        now_s = self._clock.monotonic()
        with self._changed:
            silent = [
                (index, route.incarnation)
                for index, route in self._serving.items()
                if now_s - self._heard_s[index] > HEARTBEAT_TIMEOUT_S
            ]
            for index, _ in silent:
                self._heard_s[index] = now_s
        for index, incarnation in silent:
            log.warning("TaskManager %d has been silent for %.0f s; ending it", index, HEARTBEAT_TIMEOUT_S)
            self._cluster.end_task_manager(index, incarnation)

    def _on_end(self, task_manager: int, incarnation: int, reason: str) -> None:
        with self._changed:
            if self._started.get(task_manager) != incarnation:
                return
            del self._started[task_manager]
            self._serving.pop(task_manager, None)
            self._gateways.pop(task_manager, None)
            self._dead.append(incarnation)
            self._ended[task_manager] = reason
            stopping = self._stopping
            self._changed.notify_all()
        if not stopping:
            log.warning("TaskManager %d, incarnation %d, ended: %s", task_manager, incarnation, reason)
            self._lost(task_manager, reason)

    def routes(self) -> list[ExchangeRoute]:
        """Those that serve, by index."""
        with self._changed:
            return [self._serving[index] for index in sorted(self._serving)]

    def take_dead(self, live: Collection[int]) -> list[int]:
        """Incarnations that ended since the last call. Those that somebody still takes for `live` come next time."""
        with self._changed:
            dead = [incarnation for incarnation in self._dead if incarnation not in live]
            self._dead = [incarnation for incarnation in self._dead if incarnation in live]
            return dead

    def gateway(self, task_manager: int) -> TaskManagerGateway:
        """Raises `TaskManagerLost` where it does not serve."""
        with self._changed:
            found = self._gateways.get(task_manager)
            if found is None:
                raise TaskManagerLost(f"TaskManager {task_manager}: {self._ended.get(task_manager, 'does not serve')}")
            return found

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
        incarnation = self._started.get(index, 0)
        try:
            return call(index, gateway)
        except TaskManagerLost:
            self._cluster.end_task_manager(index, incarnation)
            raise

    def await_loss(self, timeout_s: float) -> None:
        """After a `TaskManagerLost`: until the end that came with it has been noticed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._serving) < self.count or self._stopping, timeout_s)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._calls.shutdown(wait=False)
