"""A cluster inside this process: TaskManagers as objects, units of work one after the other. No Spark, no network."""

import threading
from collections.abc import Iterator, Mapping

import pyarrow as pa

from holdfast.clock import Clock
from holdfast.errors import TaskManagerLost
from holdfast.exchange.local import LocalSender
from holdfast.exchange.sender import UnitAttempt
from holdfast.exchange.task import UnitResult, run_unit
from holdfast.graph.program import Program
from holdfast.jobmaster.cluster import LevelRun, StartTaskManager
from holdfast.jobmaster.start import Gateway, Place
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.protocol import ExchangeRoute, ExchangeRoutes, TaskManagerGateway
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.taskmanager import TaskManager


class LocalCluster:
    """Implements `jobmaster.cluster.Cluster`. `kill` ends a TaskManager as SIGKILL would: at once, deleting nothing."""

    senders = 1

    def __init__(self, program: Program, store: ObjectStore, place: Place, gateway: Gateway, clock: Clock) -> None:
        self._program = program
        self._store = store
        self._place = place
        self._gateway = gateway
        self._clock = clock
        self._lock = threading.Lock()
        self._hosted: dict[int, tuple[TaskManager, StartTaskManager]] = {}

    def start_task_manager(self, start: StartTaskManager) -> None:
        settings = TaskManagerSettings(
            job_id=self._place.job.job_id,
            epoch=self._place.epoch,
            task_manager=start.task_manager,
            incarnation=start.incarnation,
            job_master="",
            secret=self._place.secret,
            bind_host="",
            storage_url=self._store.url,
        )
        with self._lock:
            task_manager = TaskManager(settings, self._store, self._gateway, self._clock)
            self._hosted[start.task_manager] = (task_manager, start)
        self._gateway.register(start.task_manager, start.incarnation, "in process")

    def end_task_manager(self, task_manager: int, incarnation: int) -> None:
        self.kill(task_manager)

    def kill(self, task_manager: int) -> None:
        with self._lock:
            found = self._hosted.pop(task_manager, None)
        if found is not None:
            found[0].close()
            found[1].ended(task_manager, found[1].incarnation, "killed")

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        return self._hosted[route.task_manager][0]

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        hosted = {index: task_manager for index, (task_manager, _) in self._hosted.items()}
        links = _LocalLinks(run.routes, hosted)
        results = [run_unit(unit, run.request, self._program, links, self._store) for unit in run.units]
        if any(result.failure is not None and result.failure.kind == "Aborted" for result in results):
            for task_manager in list(self._hosted):
                self.kill(task_manager)
            raise TaskManagerLost("the script aborts")
        return results

    def cancel(self, run: int) -> None:
        """Units run on the caller's thread: there is nothing to cancel."""

    def stop(self) -> None:
        with self._lock:
            hosted, self._hosted = self._hosted, {}
        for task_manager, _ in hosted.values():
            task_manager.close()


class _LocalLinks:
    def __init__(self, routes: ExchangeRoutes, task_managers: Mapping[int, TaskManager]) -> None:
        self._routes = routes
        self._task_managers = task_managers

    def open_sender(self, unit: UnitAttempt) -> LocalSender:
        return LocalSender(self._routes, self._task_managers, unit)

    def output(self, run: int, batch: int, operator: str, subtask: int) -> Iterator[pa.RecordBatch]:
        owner = self._routes.owners[subtask]
        if owner not in self._task_managers:
            raise TaskManagerLost(f"TaskManager {owner} is gone")
        return self._task_managers[owner].output(run, batch, operator, subtask)
