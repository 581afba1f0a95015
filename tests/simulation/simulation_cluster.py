"""Processes of a simulation: a JobMaster, TaskManagers, tasks, and calls between them that get lost, late and doubled.

In the places of Spark and Flight; the code in the processes is real. A process that is killed stops where it is.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from simulation_runtime import Process, Runtime
from simulation_settings import Life
from simulation_slots import ExecutorSlots, Go, LifeInSlots

from holdfast.clock import Clock
from holdfast.errors import HoldfastError, SenderLost, TaskManagerLost
from holdfast.exchange.delivery import run_unit
from holdfast.exchange.local import LocalLinks
from holdfast.exchange.resident import Order, ResidentSender
from holdfast.exchange.task import UnitResult
from holdfast.graph.plan import Unit
from holdfast.graph.program import Program
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.processes.cluster import LevelRun, ProcessStarter
from holdfast.jobmaster.starting.start import ClusterContext, task_manager_settings
from holdfast.protocol.taskmanager import ExchangeRoute, ExchangeRoutes, JobMasterGateway
from holdfast.settings import TaskManagerConfig
from holdfast.spark.claims import SHARED, senders_that_fit
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.membership import Membership
from holdfast.taskmanager.taskmanager import TaskManager

ATTEMPTS_MAX = 3
"""Attempts at a task that was killed, as Spark's `spark.task.maxFailures`."""
CALL_TIMEOUT_S = 10.0


@dataclass
class Network:
    """How calls between processes go wrong."""

    runtime: Runtime
    rng: random.Random
    delay_s: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0

    def call(
        self, target: Process, what: str, do: Callable[[], Any], dead: Exception, timeout_s: float | None = None
    ) -> Any:
        """Have `do` run in the target; raises `dead` where that ends first, or a message is lost."""
        waiter = self.runtime.waiter()
        answers: list[tuple[Any, Exception | None]] = []
        lost = self.rng.random() < self.lost
        arrives = not lost or self.rng.random() < 0.5

        def serve() -> None:
            try:
                answers.append((do(), None))
            except HoldfastError as error:
                answers.append((None, error))
            except Exception as error:
                answers.append((None, HoldfastError(f"{what} failed: {type(error).__name__}: {error}")))
            self.runtime.later(self._delay_s(), answered)

        def answered() -> None:
            self.runtime.wake(waiter)

        def deliver() -> None:
            if target.alive and not target.deaf:
                self.runtime.spawn(serve, what, target)
            else:
                answered()

        self.runtime.later(self._delay_s(), deliver if arrives else answered)
        target.on_death.append(answered)
        self.runtime.block(timeout_s)
        target.on_death.remove(answered)
        if lost:
            self.runtime.note("lost", f"{what} at {target.name}{' after it came' if arrives else ''}")
        if lost or not answers:
            raise dead
        result, error = answers[0]
        if error is not None:
            raise error
        return result

    def stream(self, target: Process, what: str, do: Callable[[], Iterator[Any]], dead: Exception) -> Iterator[Any]:
        """Have `do` run in the target; gives each of its values as it comes. Raises `dead` where the stream breaks."""
        inbox: deque[Any] = deque()
        waiting: list[Any] = []
        breaks_after = self.rng.randint(0, 2) if self.rng.random() < self.lost else -1
        last_s = 0.0

        def put(item: Any) -> None:
            inbox.append(item)
            if waiting:
                self.runtime.wake(waiting.pop())

        def send(item: Any) -> None:
            nonlocal last_s
            last_s = max(last_s, self.runtime.now_s + self._delay_s())
            self.runtime.later(last_s - self.runtime.now_s, partial(put, item))

        def serve() -> None:
            try:
                for value in do():
                    send(value)
            except HoldfastError as error:
                send(error)
            else:
                send(StopIteration())

        def deliver() -> None:
            if target.alive and not target.deaf:
                self.runtime.spawn(serve, what, target)
            else:
                put(dead)

        died = partial(put, dead)
        target.on_death.append(died)
        self.runtime.later(self._delay_s(), deliver)
        while True:
            while not inbox:
                waiting.append(self.runtime.waiter())
                self.runtime.block()
            item = dead if breaks_after == 0 else inbox.popleft()
            breaks_after -= 1
            if isinstance(item, Exception):
                if died in target.on_death:
                    target.on_death.remove(died)
                if isinstance(item, StopIteration):
                    return
                raise item
            yield item

    def again(self, target: Process, what: str, do: Callable[[], Any]) -> None:
        """Now and then a message comes once more, late."""
        if self.rng.random() < self.doubled:
            self.runtime.note("doubled", f"{what} to {target.name}")
            arrives = partial(_deliver_again, self.runtime, target, what, do)
            self.runtime.later(self.rng.expovariate(0.5), arrives)

    def _delay_s(self) -> float:
        return self.rng.expovariate(1.0 / self.delay_s) if self.delay_s else 0.0


def _deliver_again(runtime: Runtime, target: Process, what: str, do: Callable[[], Any]) -> None:
    def serve() -> None:
        try:
            do()
        except HoldfastError as error:
            runtime.note("doubled", f"{what}: {type(error).__name__}")

    if target.alive:
        runtime.spawn(serve, what, target)


class RemoteTaskManager:
    """A TaskManager as others reach it: every method is a call to its process."""

    def __init__(self, network: Network, process: Process, task_manager: TaskManager) -> None:
        self._network = network
        self._process = process
        self._task_manager = task_manager

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = getattr(self._task_manager, method)
        lost = TaskManagerLost(f"{self._process.name} does not answer {method}")
        return lambda *arguments: self._network.call(self._process, method, lambda: call(*arguments), lost)

    def output(self, *arguments: Any) -> Iterator[pa.RecordBatch]:
        lost = TaskManagerLost(f"{self._process.name} does not answer output")
        do = lambda: list(self._task_manager.output(*arguments))  # noqa: E731
        return iter(self._network.call(self._process, "output", do, lost))


class RemoteSender:
    """A sender as the JobMaster reaches it: reports come late, and now and then twice, as do orders."""

    def __init__(self, network: Network, process: Process, sender: ResidentSender) -> None:
        self._network = network
        self._process = process
        self._sender = sender

    def run(self, order: Order) -> Iterator[UnitResult]:
        lost = SenderLost(f"{self._process.name} does not answer")
        self._network.again(self._process, "run", lambda: list(self._sender.run(order)))
        for result in self._network.stream(self._process, "run", lambda: self._sender.run(order), lost):
            yield result
            if self._network.rng.random() < self._network.doubled:
                yield result

    def cancel(self, attempt: int) -> None:
        lost = SenderLost(f"{self._process.name} does not answer cancel")
        self._network.call(self._process, "cancel", lambda: self._sender.cancel(attempt), lost, CALL_TIMEOUT_S)

    def split(self, attempt: int) -> str:
        lost = SenderLost(f"{self._process.name} does not answer split")
        told: str = self._network.call(
            self._process, "split", lambda: self._sender.split(attempt), lost, CALL_TIMEOUT_S
        )
        return told


class RemoteJobMaster:
    """The JobMaster as TaskManagers reach it."""

    REPEATED = ("acknowledge", "decline", "offer")

    def __init__(self, network: Network, process: Process, gateway: JobMasterGateway) -> None:
        self._network = network
        self._process = process
        self._gateway = gateway

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *arguments: self._call(method, arguments)

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        def do() -> Any:
            return getattr(self._gateway, method)(*arguments)

        if not self._process.alive:
            raise ConnectionRefusedError(f"{self._process.name} is gone")
        if method in self.REPEATED:
            self._network.again(self._process, method, do)
        lost = HoldfastError(f"{self._process.name} does not answer {method}")
        return self._network.call(self._process, method, do, lost, CALL_TIMEOUT_S)


@dataclass
class Hosted:
    process: Process
    start: ProcessStarter
    served: TaskManager | ResidentSender
    remote: RemoteTaskManager | RemoteSender


@dataclass
class SimulatedCluster:
    """Implements `jobmaster.processes.cluster.Cluster`, within the process of its JobMaster."""

    network: Network
    program: Program
    store: ObjectStore
    place: ClusterContext
    job_master: JobMasterGateway
    clock: Clock
    config: TaskManagerConfig
    master: Process
    life: Life
    heartbeats: bool = True
    hosted: dict[ProcessId, Hosted] = field(default_factory=dict)
    slots: ExecutorSlots | None = None
    _tasks: dict[int, list[Process]] = field(default_factory=dict)
    _asking: dict[ProcessId, tuple[ProcessStarter, Go]] = field(default_factory=dict)
    """Processes that wait for a slot."""

    def __post_init__(self) -> None:
        self.master.on_death.append(self._orphaned)
        self.residents = self.life.senders
        self.processes = self.life.task_managers + self.life.standby
        if isinstance(self.life, LifeInSlots):
            self.slots = ExecutorSlots(self.network.runtime, self.life.slots, self.processes + SHARED, self.residents)

    @property
    def senders(self) -> int:
        return self.residents or 1

    # --- TaskManagers -------------------------------------------------------------------------------------------------

    def start(self, start: ProcessStarter) -> None:
        begin = partial(self._launch, start) if self.slots is None else partial(self._ask, self.slots, start)
        self.network.runtime.later(self.network.rng.uniform(0.0, 0.3), begin)

    def _ask(self, slots: ExecutorSlots, start: ProcessStarter) -> None:
        """Start the process once it has a slot."""

        def go(executor: int) -> None:
            self._asking.pop(start.process, None)
            process = self._launch(start)
            if process is None:
                slots.release(executor)
            else:
                slots.hold(executor, process)

        self._asking[start.process] = start, go
        slots.ask(go, start.process.role is Role.TASK_MANAGER)

    def _launch(self, start: ProcessStarter) -> Process | None:
        if not self.master.alive:
            return None
        runtime = self.network.runtime
        kind = "tm" if start.process.role is Role.TASK_MANAGER else "sd"
        process = runtime.process(f"{kind}{start.process.number}.{self.place.epoch}.{start.process.incarnation}")
        process.on_death.append(partial(self._ended, process, start))
        runtime.spawn(partial(self._main, process, start), "main", process)
        return process

    def _main(self, process: Process, start: ProcessStarter) -> None:
        settings = msgspec.structs.replace(
            task_manager_settings(self.place, self.config, self.store.url),
            process=start.process,
            heartbeat_interval_s=2.0,
        )
        job_master: Any = RemoteJobMaster(self.network, self.master, self.job_master)
        if start.process.role is Role.SENDER:
            hosted = self._sender(process, start)
        else:
            task_manager = TaskManager(settings, self.store, job_master, self.clock)
            hosted = Hosted(process, start, task_manager, RemoteTaskManager(self.network, process, task_manager))
        self.hosted[start.process] = hosted
        stopped, upkeep = hosted.served.stopped, lambda: None
        reason = Membership(settings, stopped, job_master, self.clock, upkeep, self.store).keep("simulated")
        process.deaf = True
        if isinstance(hosted.served, TaskManager):
            hosted.served.close()
        self.network.runtime.note("ends", reason)
        self.network.runtime.sleep(self.network.rng.uniform(0.0, 1.0))
        process.kill()

    def _sender(self, process: Process, start: ProcessStarter) -> Hosted:
        sender = ResidentSender(self.program, RetryingStore(self.store), self)
        return Hosted(process, start, sender, RemoteSender(self.network, process, sender))

    def links(self, routes: ExchangeRoutes) -> LocalLinks:
        """Links to the TaskManagers that are there now."""
        task_managers = {id_.number: each.remote for id_, each in self.hosted.items() if id_.role is Role.TASK_MANAGER}
        return LocalLinks(routes, task_managers)  # type: ignore[arg-type]

    def _ended(self, process: Process, start: ProcessStarter) -> None:
        self.hosted.pop(start.process, None)
        if self.master.alive:
            ended = partial(start.ended, start.process, f"{process.name} ended")
            self.network.runtime.spawn(ended, "ended", self.master)

    def _orphaned(self) -> None:
        """The driver is gone: executors are ended with it, sooner or later."""
        for hosted in self.hosted.values():
            if self.network.rng.random() < 0.5:
                self.network.runtime.later(self.network.rng.expovariate(1.0), hosted.process.kill)

    def resize(self, processes: int, senders: int | None = None) -> None:
        self.residents = self.residents if senders is None else senders

    def residents_that_fit(self) -> int:
        if self.slots is None:
            return self.residents
        return senders_that_fit(self.slots.total, self.processes, self.residents, SHARED)

    def check(self) -> None:
        pass

    def end(self, process: ProcessId) -> None:
        found = self.hosted.get(process)
        if found is not None:
            self.network.runtime.later(self.network.rng.uniform(0.0, 0.2), found.process.kill)
        elif process in self._asking and self.slots is not None:
            start, go = self._asking.pop(process)
            if self.slots.withdraw(go):
                start.ended(process, "it has no slot, and was ended")

    def kill(self, index: int) -> None:
        """Whoever serves as TaskManager `index`."""
        for process, hosted in list(self.hosted.items()):
            if process.number == index and process.role is Role.TASK_MANAGER:
                hosted.process.kill()

    def sender(self, process: ProcessId, address: str) -> RemoteSender:
        return self.hosted[process].remote  # type: ignore[return-value]

    def gateway(self, route: ExchangeRoute) -> RemoteTaskManager:
        found = self.hosted.get(ProcessId(Role.TASK_MANAGER, route.task_manager, route.incarnation))
        if found is None:
            raise TaskManagerLost(f"TaskManager {route.task_manager} is gone")
        return found.remote  # type: ignore[return-value]

    # --- tasks --------------------------------------------------------------------------------------------------------

    def run_level(self, run: LevelRun) -> list[UnitResult]:
        return [self._run_unit(run, unit) for unit in run.units]

    def _run_unit(self, run: LevelRun, unit: Unit) -> UnitResult:
        runtime = self.network.runtime
        for _ in range(ATTEMPTS_MAX):
            process = runtime.process("task")
            tasks = self._tasks.setdefault(run.request.run, [])
            tasks.append(process)
            self._await_slot(process)
            links = self.links(run.routes)
            body = partial(run_unit, unit, run.request, self.program, links, RetryingStore(self.store))
            lost = TaskManagerLost(f"run {run.request.run} was cancelled")
            try:
                result: UnitResult = self.network.call(process, f"unit {unit.unit}", body, lost)
            except TaskManagerLost:
                if process not in tasks:
                    raise
                tasks.remove(process)
                process.kill()
            else:
                if self.slots is not None:
                    process.kill()
                return result
        raise HoldfastError(f"unit {unit.unit} of batch {run.request.batch} failed {ATTEMPTS_MAX} times")

    def _await_slot(self, process: Process) -> None:
        """Wait until the task has a slot, or was cancelled."""
        slots, runtime = self.slots, self.network.runtime
        if slots is None:
            return
        waiter = runtime.waiter()

        def end_wait() -> None:
            runtime.wake(waiter)

        def go(executor: int) -> None:
            slots.hold(executor, process)
            runtime.later(0.0, end_wait)

        def cancelled() -> None:
            if slots.withdraw(go):
                end_wait()

        process.on_death.append(cancelled)
        slots.ask(go, is_urgent=True)
        runtime.block()

    def cancel(self, run: int) -> None:
        """Some tasks go on for a while, though nobody waits for them any more."""
        for process in self._tasks.pop(run, []):
            if self.network.rng.random() < 0.5:
                process.kill()
            else:
                self.network.runtime.later(self.network.rng.expovariate(1.0), process.kill)
                for waits in process.on_death:
                    self.network.runtime.later(0.0, waits)

    def stop(self) -> None:
        for hosted in list(self.hosted.values()):
            hosted.served.stop()
            self.network.runtime.later(self.network.rng.uniform(1.0, 6.0), hosted.process.kill)
