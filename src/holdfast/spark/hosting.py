"""Hosting of long-running processes, each as a Spark job of a single task: their start, watch and end.

    start ──► Spark job ──► the process registers ──► watch: a call to it that lasts as long as the process
                 │                                       │ the connection breaks
                 └── the job ends ──► `ended` ◄──────────┘ then the rest of the job is cancelled

Spark alone does not report an end in time: after an executor's death it tries the task again once there is a slot, and
the job goes on until then. The connection to a process breaks as soon as the process dies. The cause of death comes
from Spark.
"""

import threading
import time
from pathlib import Path

from holdfast.errors import HoldfastError, SenderLost, TaskManagerLost
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.processes.cluster import ProcessStarter
from holdfast.printable import logger
from holdfast.spark.failures import cause_of_death, first_line
from holdfast.spark.host import SparkHost, SparkJob, TaskBody
from holdfast.spark.leaving import LeavingWatch, TellsWhoLeaves
from holdfast.taskmanager.client import ProcessClient

log = logger(__name__)

END_S_MAX = 3.0
"""Bound in seconds on the time that processes may take to end by themselves."""
CANCEL_S_MAX = 10.0
VERDICT_S_MAX = 0.1
"""Bound in seconds on the wait for Spark's report on a dead task before a failover begins. A higher value delays
failover."""
LATE_VERDICT_S_MAX = 5.0
"""Bound in seconds on the wait for a report that comes after the failover has begun."""
VERDICT_POLL_S = 0.02
SUBMIT_S_MAX = 2.0
"""Bound in seconds on a sender's wait until TaskManagers have asked Spark for slots. Spark grants slots in the order of
requests; with a lower value, senders may take the last slot from a TaskManager."""
KERNEL_COUNTERS = Path("/proc/vmstat")

_DUTIES = {Role.TASK_MANAGER: "", Role.SENDER: ": reads, runs Python steps, sends and stages"}
"""The descriptions of long-running processes' jobs in Spark's UI, which follow the process's name."""


class Hosting:
    """All processes of a job's start. Thread-safe."""

    def __init__(self, host: SparkHost, name: str, group: str, secret: str) -> None:
        self._host = host
        self._name = name
        self._group = group
        self._secret = secret
        self._starts: dict[ProcessId, ProcessStarter] = {}
        self._threads: dict[ProcessId, threading.Thread] = {}
        self._clients: dict[ProcessId, ProcessClient] = {}
        self._kills_before: dict[ProcessId, int] = {}
        self._words: dict[ProcessId, str] = {}
        """The last report of each process about its end, or Spark's report about it."""
        self._leaving: LeavingWatch | None = None
        if isinstance(host, TellsWhoLeaves):
            self._leaving = LeavingWatch(host, self._live, self._group_of, self._leaves)

    def _live(self) -> list[ProcessId]:
        return [process for process, thread in list(self._threads.items()) if thread.is_alive()]

    def _leaves(self, process: ProcessId, reason: str) -> None:
        self._starts[process].leaving(process, reason)

    def start(self, start: ProcessStarter, settings: bytes, body: TaskBody) -> None:
        """Start a process and return at once; `start.ended` is called when the process is over, perhaps by several
        threads."""
        self._starts[start.process] = start
        self._kills_before[start.process] = out_of_memory_kills()
        # PySpark's InheritableThread is not used: it asks the SparkContext, which may be stopped by now, before `_stay`
        # runs.
        thread = threading.Thread(
            target=self._stay, args=(start, settings, body), name=f"holdfast-{start.process.name}", daemon=True
        )
        self._threads[start.process] = thread
        thread.start()

    def _stay(self, start: ProcessStarter, settings: bytes, body: TaskBody) -> None:
        """Run a Spark job of a single task while the process lives."""
        reason = "its Spark task returned"
        try:
            description = f"{self._name}: {start.process}{_DUTIES[start.process.role]}"
            self._await_task_managers(start.process)
            with self._host.described(SparkJob(self._group_of(start.process), description, start.process.role)):
                words = self._host.run([settings], body)
            if words:
                self._words[start.process] = reason = words[0].decode()
        except Exception as error:
            self._words[start.process] = reason = first_line(error)
        finally:
            start.ended(start.process, self._cause(start.process, reason))

    def _await_task_managers(self, process: ProcessId) -> None:
        """Delay the start of a sender until the TaskManagers started along with it have asked Spark for slots."""
        if process.role is not Role.SENDER:
            return
        deadline_s = time.monotonic() + SUBMIT_S_MAX
        started = [each for each in list(self._threads) if each.role is Role.TASK_MANAGER]
        waiting = [each for each in started if self._threads[each].is_alive()]
        for each in waiting:
            while not self._host.has_begun(self._group_of(each)) and time.monotonic() < deadline_s:
                time.sleep(VERDICT_POLL_S)

    def watch(self, client: ProcessClient) -> None:
        """Watch a registered process: its death is noticed because its connection breaks."""
        self._clients[client.peer] = client
        self._host.registered(self._group_of(client.peer))
        threading.Thread(target=self._watch, args=(client,), name=f"watch-{client.peer.name}", daemon=True).start()

    def _watch(self, client: ProcessClient) -> None:
        process = client.peer
        try:
            leaves = client.await_end(looks=self._leaving is None)
            if leaves:
                self._leaves(process, leaves)
                client.await_end()
        except (SenderLost, TaskManagerLost) as error:
            known = self._ended(process, str(error))
            if not known and self._await_verdict(process, LATE_VERDICT_S_MAX):
                self._starts[process].explained(process, self._cause(process, str(error)))
            self._cancel(process)
        except HoldfastError as error:
            log.warning("%s is not watched: %s", process, error)

    def end(self, process: ProcessId) -> None:
        """Cancel the Spark job of a process that does not answer; `ended` is called with Spark's report about it.

        A sender is also asked to end: Spark takes up to 4 s to kill the Python worker of a cancelled task, and a
        TaskManager may wait for the slot.
        """
        if process.role is Role.SENDER:
            threading.Thread(target=self._ask_to_end, args=(process,), daemon=True).start()
        self._ended(process, "it did not answer, and was ended")
        self._cancel(process)

    def _ended(self, process: ProcessId, otherwise: str) -> bool:
        """Report the end of a process; return True if Spark has reported on it by then."""
        known = self._await_verdict(process, VERDICT_S_MAX)
        self._starts[process].ended(process, self._cause(process, otherwise))
        return known

    def _cancel(self, process: ProcessId) -> None:
        thread = self._threads.get(process)
        if thread is not None and thread.is_alive():
            self._host.cancel(self._group_of(process))

    def _await_verdict(self, process: ProcessId, seconds: float) -> bool:
        """Wait for Spark's report on a process that has just died; return True once the report is there."""
        deadline_s = time.monotonic() + seconds
        thread = self._threads.get(process)
        while thread is not None and thread.is_alive() and not self._host.has_ended():
            if self._host.failure(self._group_of(process)) is not None:
                return True
            if time.monotonic() >= deadline_s:
                return False
            thread.join(VERDICT_POLL_S)
        return True

    def _cause(self, process: ProcessId, otherwise: str) -> str:
        if self._host.has_ended():
            return "the Spark session was stopped"
        failed = self._host.failure(self._group_of(process))
        reason = self._words.get(process, otherwise) if failed is None else cause_of_death(failed)
        kills = out_of_memory_kills() - self._kills_before[process]
        if kills > 0:
            reason += (
                f". The kernel of the driver's machine ended {kills} process(es) meanwhile for lack of memory: give "
                "the machine or container more, or lower TaskManagerConfig(memory=…) or the number of TaskManagers"
            )
        return reason

    def stop(self) -> None:
        """End all processes. Processes that answer end by themselves; the Spark jobs of the others are cancelled."""
        if self._leaving is not None:
            self._leaving.close()
        hosting = {process: thread for process, thread in self._threads.items() if thread.is_alive()}
        asked = [threading.Thread(target=self._ask_to_end, args=(process,), daemon=True) for process in hosting]
        for each in asked:
            each.start()
        deadline_s = time.monotonic() + END_S_MAX
        for each in [*asked, *hosting.values()]:
            each.join(max(0.0, deadline_s - time.monotonic()))
        for process in hosting:
            self._cancel(process)
        for thread in hosting.values():
            thread.join(CANCEL_S_MAX)
        for client in self._clients.values():
            client.close()

    def _ask_to_end(self, process: ProcessId) -> None:
        served = self._clients.get(process)
        if served is None:
            return
        try:
            with ProcessClient(process, served.address, self._secret, END_S_MAX) as client:
                client.stop()
        except HoldfastError as error:
            log.info("%s was not told to end: %s", process.name, error)

    def _group_of(self, process: ProcessId) -> str:
        return f"{self._group}-{process.role.value.lower()}-{process.number}-{process.incarnation}"


def out_of_memory_kills() -> int:
    """Return the number of processes that this machine's kernel has ended for lack of memory; 0 if the kernel does not
    count them."""
    try:
        lines = KERNEL_COUNTERS.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
