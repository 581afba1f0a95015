"""Signs of the executor's coming removal, as a process on it sees them, for hosts on which Spark does not report it.

An executor that is decommissioned starts a thread that waits until its blocks have moved and its tasks have ended. The
executor is an ancestor of its Python workers, and Linux shows the names of its threads to processes of the same user.
"""

import os
import socket
import threading
from pathlib import Path

LOOK_S = 1.0
"""Seconds between two looks at the executor's threads. A higher value notices a removal later."""
ANCESTORS_MAX = 3
"""The worker's daemon, the executor, and a process between them."""
LEAVING_THREAD = "wait-for-blocks"
"""The beginning of the thread's name, of which Linux keeps 15 characters."""
PROCESSES = Path("/proc")


def await_end(stopped: threading.Event, looks: bool) -> str:
    """Wait until the process is asked to end; return an empty text.

    With `looks`, return before that with the reason once the executor is about to be removed.
    """
    if not looks:
        stopped.wait()
        return ""
    threads = AncestorThreads(os.getpid())
    while not stopped.wait(LOOK_S):
        executor = threads.leaving()
        if executor is not None:
            return f"executor {socket.gethostname()}/{executor} is to go: it was decommissioned"
    return ""


class AncestorThreads:
    """The threads of the processes above a process. Those whose names are known are not read again."""

    def __init__(self, process: int) -> None:
        self._known: dict[int, set[str]] = {}
        for _ in range(ANCESTORS_MAX):
            process = parent_of(process)
            if process > 1:
                self._known[process] = set()

    def leaving(self) -> int | None:
        """Return the process that is about to be removed; None if there is no sign of it."""
        for process in self._known:
            try:
                if self._has_sign(process):
                    return process
            except OSError:  # it has ended, or this system does not show it
                continue
        return None

    def _has_sign(self, process: int) -> bool:
        folder = PROCESSES / str(process) / "task"
        threads = {each.name for each in folder.iterdir()}
        unnamed = (PROCESSES / str(process) / "comm").read_text()  # a new thread has this name at first
        names = {each: name_of(folder / each) for each in threads - self._known[process]}
        self._known[process] = threads - {each for each, name in names.items() if name in ("", unnamed)}
        return any(name.startswith(LEAVING_THREAD) for name in names.values())


def name_of(thread: Path) -> str:
    """Return the name of a thread; empty if it has ended meanwhile."""
    try:
        return (thread / "comm").read_text()
    except OSError:
        return ""


def parent_of(process: int) -> int:
    """Return the id of a process's parent; 0 if the system does not show it."""
    try:
        status = (PROCESSES / str(process) / "stat").read_text()
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])
