"""The processes of the demonstration: start the driver, kill it or a TaskManager, see that nothing is left.

Every process that was ever seen below a driver is remembered: after a driver's death its JVM and Python workers
must end by themselves, and at the end all are looked for.
"""

import subprocess
import sys
from pathlib import Path

import psutil

from examples.flights.driver import Status

LEFT_OVER_S_MAX = 20.0
LOG_LINES = 30


class DriverFailed(Exception):
    """The driver process ended by itself with an error, whose words it repeats."""


class Driver:
    """A driver process, with its JVM and Python workers below it."""

    def __init__(self, folder: Path, rows_per_batch: int, number: int, seen: set[psutil.Process]) -> None:
        self._status = folder / f"status-{number}.json"
        self._log = folder / f"driver-{number}.log"
        self._seen = seen
        arguments = [str(folder), str(self._status), str(rows_per_batch)]
        command = [sys.executable, "-m", "examples.flights.driver", *arguments]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C reaches the demonstration alone, which then ends all processes.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._tree = psutil.Process(self._process.pid)
        seen.add(self._tree)

    def status(self) -> Status:
        return Status.read(self._status)

    def ended(self) -> bool:
        """True if the driver has come to its end. Raises `DriverFailed` if it ended with an error."""
        code = self._process.poll()
        if code:
            words = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise DriverFailed(f"the driver process ended with exit code {code}; its last words:\n" + "\n".join(words))
        return code is not None

    def kill(self) -> int:
        """SIGKILL to the driver process alone."""
        self.remember()
        self._process.kill()
        self._process.wait()
        return self._process.pid

    def kill_task_manager(self, address: str) -> int | None:
        """SIGKILL to the Python worker that serves at an address; None if nobody serves there any more."""
        port = int(address.rsplit(":", 1)[1])
        for process in self.remember():
            if _listens(process, port):
                process.kill()
                return process.pid
        return None

    def remember(self) -> list[psutil.Process]:
        """Remember the processes that run below the driver now."""
        try:
            below = self._tree.children(recursive=True)
        except psutil.NoSuchProcess:
            below = []
        self._seen.update(below)
        return below


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        connections = process.net_connections("tcp")
    except psutil.Error:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)


def left_over(seen: set[psutil.Process]) -> list[str]:
    """Wait for all to end by themselves; the command lines of those that did not, which are killed."""
    _, alive = psutil.wait_procs(list(seen), timeout=LEFT_OVER_S_MAX)
    names = []
    for process in alive:
        try:
            names.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return names


def end_all(seen: set[psutil.Process]) -> None:
    """Kill whatever is left, when the demonstration is broken off."""
    for process in list(seen):
        for each in (*_children(process), process):
            _kill(each)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
