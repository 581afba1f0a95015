"""TaskManagers and senders of a driver in waiting, which are started before the job has its epoch.

    WarmProcesses ─► cluster: start TaskManagers and senders ─► they register here, and heartbeats are answered here
          │ lead(master)
          ▼
    StartProcess of the execution machine ─► a process of that number and incarnation is there: its registration goes
      to the JobMaster, and so does its end from now on. Otherwise the cluster starts a new process.

A process does not know its epoch before it is deployed. Every start numbers its first incarnations by the same rules,
so warm processes fit. If a process ends while it waits, the takeover starts a new one.
"""

import threading
from collections.abc import Callable
from typing import Any, cast

from holdfast.execution import events as ev
from holdfast.execution.machine import Machine
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.batches.deployer import MasterSettings
from holdfast.jobmaster.processes.cluster import Cluster, ProcessStarter
from holdfast.jobmaster.server import JobMasterServer
from holdfast.ports import Endpoint
from holdfast.printable import logger
from holdfast.protocol.taskmanager import (
    Acknowledgement,
    BaseOffer,
    Decline,
    ExchangeRoute,
    JobMasterGateway,
    Registration,
    RestoreProgress,
    TaskManagerGateway,
)
from holdfast.storage.counted import Requests, note
from holdfast.storage.store import ObjectStore

log = logger(__name__)


class WarmProcesses:
    """The processes, their cluster, and the server to which they register. Implements `JobMasterGateway`."""

    def __init__(
        self,
        settings: MasterSettings,
        secret: str,
        endpoint: Endpoint,
        store: ObjectStore,
        make_cluster: Callable[[str, JobMasterGateway], Cluster],
    ) -> None:
        """Start the processes. Their requests while they wait are added to those of `store`. `make_cluster` takes the
        address at which they register, and the gateway that they call there."""
        self._store = store
        self._lock = threading.Lock()
        self._master: JobMasterGateway | None = None
        self._registered: dict[ProcessId, Registration] = {}
        self._starters: dict[ProcessId, ProcessStarter] = {}
        self._gateways: dict[ExchangeRoute, TaskManagerGateway] = {}
        self._server = JobMasterServer(self, secret, endpoint)
        self._cluster = make_cluster(self._server.address, self)
        first = first_processes(settings, self._cluster)
        self._waiting = set(first)
        for process in first:
            self._cluster.start(ProcessStarter(process, self._ended, self._explained, self._leaving))

    @property
    def is_led(self) -> bool:
        """True once a JobMaster has the cluster, which it then ends."""
        return self._master is not None

    @property
    def ready(self) -> int:
        """Number of processes that wait and can be called."""
        with self._lock:
            return len(self._registered.keys() & self._waiting)

    @property
    def wanted(self) -> int:
        """Number of processes that were started, and have not ended."""
        return len(self._waiting)

    def task_managers(self) -> list[ExchangeRoute]:
        """Routes of the TaskManagers that wait and can be called, by number."""
        with self._lock:
            found = [self._registered[each] for each in sorted(self._registered.keys() & self._waiting)]
        return [
            ExchangeRoute(each.process.number, each.process.incarnation, each.address)
            for each in found
            if each.process.role is Role.TASK_MANAGER
        ]

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        """Connect to a registered TaskManager, or return the connection that is there."""
        with self._lock:
            if route not in self._gateways:
                self._gateways[route] = self._cluster.gateway(route)
            return self._gateways[route]

    def lead(self, master: JobMasterGateway) -> Cluster:
        """Return the cluster for a JobMaster, which takes over a warm process whenever it starts one."""
        with self._lock:
            self._master = master
        return cast(Cluster, _WarmCluster(self._cluster, self))

    def adopt(self, start: ProcessStarter) -> bool:
        """Give a process to the JobMaster, if it is there."""
        with self._lock:
            if start.process not in self._waiting:
                return False
            self._waiting.remove(start.process)
            self._starters[start.process] = start
            registration = self._registered.get(start.process)
        if registration is not None:
            assert self._master is not None
            self._master.register(registration)
        return True

    def close(self) -> None:
        """End all processes, if the job was not taken over: their next heartbeat is answered with no."""
        with self._lock:
            self._waiting.clear()
        self._cluster.stop()
        self.close_server()

    def close_server(self) -> None:
        self._server.close()

    def _ended(self, process: ProcessId, reason: str) -> None:
        with self._lock:
            waits = process in self._waiting
            self._waiting.discard(process)
            self._registered.pop(process, None)
            starter = self._starters.get(process)
        if waits:
            log.warning("%s ended while this driver waited: %s; a takeover starts it anew", process.name, reason)
        if starter is not None:
            starter.ended(process, reason)

    def _leaving(self, process: ProcessId, reason: str) -> None:
        starter = self._starters.get(process)
        if starter is not None:
            starter.leaving(process, reason)

    def _explained(self, process: ProcessId, reason: str) -> None:
        starter = self._starters.get(process)
        if starter is not None:
            starter.explained(process, reason)

    # --- calls of the processes ---------------------------------------------------------------------------------------

    def _master_of(self, process: ProcessId) -> JobMasterGateway | None:
        """Return the JobMaster, unless the process still waits."""
        with self._lock:
            return None if process in self._waiting else self._master

    def register(self, registration: Registration) -> bool:
        with self._lock:
            if registration.process in self._waiting:
                return self._registered.setdefault(registration.process, registration).nonce == registration.nonce
        return self._master is not None and self._master.register(registration)

    def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
        master = self._master_of(process)
        if master is not None:
            return master.heartbeat(process, requests)
        note(self._store, requests)
        return process in self._waiting

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        return self._master is not None and self._master.acknowledge(acknowledgement)

    def decline(self, decline: Decline) -> bool:
        return self._master is not None and self._master.decline(decline)

    def offer(self, offer: BaseOffer) -> bool:
        return self._master is not None and self._master.offer(offer)

    def restoring(self, progress: RestoreProgress) -> bool:
        return self._master is not None and self._master.restoring(progress)


class _WarmCluster:
    """A cluster that starts only the processes that are not warm, and keeps the connections to those that are; other
    calls go to the cluster itself."""

    def __init__(self, cluster: Cluster, warm: WarmProcesses) -> None:
        self._cluster, self._warm = cluster, warm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def gateway(self, route: ExchangeRoute) -> TaskManagerGateway:
        return self._warm.gateway(route)

    def start(self, start: ProcessStarter) -> None:
        if not self._warm.adopt(start):
            self._cluster.start(start)


def first_processes(settings: MasterSettings, cluster: Cluster) -> list[ProcessId]:
    """Return the processes, with their incarnations, that the execution machine of a start begins with, in its
    order."""
    wanted = {Role.TASK_MANAGER: settings.layout.task_managers, Role.SENDER: cluster.residents}
    machine = Machine(settings.failover, settings.on_loss)
    commands = machine.handle(ev.Started(0.0, wanted, None, settings.layout.standby, settings.layout.parallelism))
    return [each.process for each in commands if isinstance(each, ev.StartProcess)]
