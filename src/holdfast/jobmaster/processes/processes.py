"""The long-running processes of a role (TaskManagers or senders): the started, the serving and the ended ones.

Each start has an incarnation number of its own. A process is dead when the cluster says so: its Spark job has ended, or
its connection broke. A missing heartbeat is only a last resort after a long time, since a user's function may hold the
interpreter's lock for a while. This module starts and notices; it does not decide about losses.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.clock import Clock
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.processes.cluster import Cluster, ProcessStarter
from holdfast.printable import logger
from holdfast.protocol.taskmanager import Registration

log = logger(__name__)

HEARTBEAT_TIMEOUT_S = 30.0

G = TypeVar("G")


@dataclass(frozen=True)
class Serving(Generic[G]):
    """A process that has registered, and the connection to it."""

    process: ProcessId
    address: str
    nonce: str
    gateway: G
    executor: str = ""


class Processes(Generic[G]):
    """Processes of a role. Thread-safe. `lost(process, reason)` is called once for each incarnation that ends without
    having been asked to."""

    def __init__(
        self,
        role: Role,
        count: int,
        cluster: Cluster,
        clock: Clock,
        connect: Callable[[ProcessId, str], G],
        lost: Callable[[ProcessId, str], None],
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        self.count = count
        self._role = role
        self._cluster = cluster
        self._clock = clock
        self._connect = connect
        self._on_lost = lost
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._changed = threading.Condition()
        self._started: dict[int, ProcessId] = {}
        self._serving: dict[int, Serving[G]] = {}
        self._heard_s: dict[int, float] = {}
        self._dead: list[ProcessId] = []
        self._reasons: dict[int, str] = {}
        self._leaving: dict[ProcessId, str] = {}
        """Processes whose machine is about to be removed, with the reasons."""
        self._stopping = False

    def start(self, process: ProcessId) -> None:
        """Start a process under the given incarnation; return at once."""
        with self._changed:
            if self._stopping:
                return
            self._started[process.number] = process
            self._heard_s[process.number] = self._clock.monotonic()
        self._cluster.start(ProcessStarter(process, self._on_end, self._explained, self._on_leaving))

    def register(self, registration: Registration) -> bool:
        """Register a process. True for the first process that registers with the newest incarnation, even if it
        registers again; False: the process must end itself."""
        process = registration.process
        with self._changed:
            if self._started.get(process.number) != process:
                return False
            known = self._serving.get(process.number)
            if known is not None:
                return known.nonce == registration.nonce
            gateway = self._connect(process, registration.address)
            serving = Serving(process, registration.address, registration.nonce, gateway, registration.executor)
            self._serving[process.number] = serving
            self._heard_s[process.number] = self._clock.monotonic()
            self._reasons.pop(process.number, None)
            self._changed.notify_all()
        log.info("%s, serves at %s", process, registration.address)
        self._now_serves(serving)
        return True

    def _now_serves(self, serving: Serving[G]) -> None:
        """Hook for each process that has registered, called without the lock."""

    def heartbeat(self, process: ProcessId) -> bool:
        """Note a sign of life of a process; return True if the process is still wanted."""
        with self._changed:
            wanted = self._started.get(process.number) == process and not self._stopping
            if wanted:
                self._heard_s[process.number] = self._clock.monotonic()
            return wanted

    def check_heartbeats(self) -> None:
        """Handle processes that have been silent for too long."""
        if not self._cluster.heartbeats:
            return
        now_s = self._clock.monotonic()
        with self._changed:
            silent = [
                each.process
                for index, each in self._serving.items()
                if now_s - self._heard_s[index] > self._heartbeat_timeout_s
            ]
            for process in silent:
                self._heard_s[process.number] = now_s
        for process in silent:
            log.warning("%s has been silent for %.0f s; ending it", process.name, self._heartbeat_timeout_s)
            self._is_silent(process)

    def _is_silent(self, process: ProcessId) -> None:
        """End the process; its loss follows."""
        self._cluster.end(process)

    def give_up(self, process: ProcessId, reason: str) -> None:
        """Treat the process as lost from now on, even if it still works, and end it in the background."""
        self._on_end(process, reason)
        self._cluster.end(process)

    def _on_end(self, process: ProcessId, reason: str) -> None:
        with self._changed:
            if self._started.get(process.number) != process:
                return
            del self._started[process.number]
            self._serving.pop(process.number, None)
            self._dead.append(process)
            self._reasons[process.number] = reason
            self._leaving.pop(process, None)
            stopping = self._stopping
            self._changed.notify_all()
        if not stopping:
            log.info("%s, ended: %s", process, reason)
            self._on_lost(process, reason)

    def _on_leaving(self, process: ProcessId, reason: str) -> None:
        with self._changed:
            if self._started.get(process.number) != process or self._stopping:
                return
            self._leaving[process] = reason
        log.warning("%s is to leave: %s", process.name, reason)
        self._now_leaves(process, reason)

    def _now_leaves(self, process: ProcessId, reason: str) -> None:
        """Hook for each process whose machine is about to be removed, called without the lock."""

    def leaving(self) -> dict[ProcessId, str]:
        """The serving processes on machines that are about to be removed, with the reasons."""
        with self._changed:
            return dict(self._leaving)

    def _explained(self, process: ProcessId, reason: str) -> None:
        """Take the reason of an end that was reported before its reason was known."""
        log.info("%s had ended: %s", process, reason)

    def addresses(self) -> list[tuple[ProcessId, str]]:
        """The processes that serve now, in order of their numbers, and the address of each."""
        with self._changed:
            return [(each.process, each.address) for _, each in sorted(self._serving.items())]

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
