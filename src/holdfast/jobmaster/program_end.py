"""The end of the program: the log names running queries, and they end while threads and thread pools still work.

Python shuts down its pools of threads before it calls the functions of `atexit`. A query still running at that time
would fail in the middle of a batch, with errors that do not name the cause.

By SIGTERM, a machine, a scheduler or a person announces the end of a program. Queries then take a last checkpoint, so
that the next start repeats nothing. If the program has its own handler of SIGTERM, that handler stays.
"""

import concurrent.futures.thread  # noqa: F401  (registers the end of the pools: see the last line)
import os
import signal
import sys
import threading
import time
from concurrent.futures import wait as wait_for
from typing import Protocol
from weakref import WeakSet

from holdfast.jobmaster.master import JobMaster
from holdfast.printable import logger

log = logger(__name__)

END_S_MAX = 10.0
"""Bound in seconds on the wait for a query to end. A query that takes longer counts as killed; nothing is lost."""

RUNS_STILL = (
    "the program ends while the query still runs, and the query ends with it; its next start goes on from its last "
    "checkpoint. Call query.awaitTermination() to wait for its end, or query.stop() to end it"
)
INTERRUPTED = (
    "interrupted by Ctrl-C: the query is stopped in order, and nothing is lost. Start the program again on the same "
    "storage to go on from the last checkpoint"
)

CHECKPOINT_S_MAX = 5.0
"""Bound in seconds on the wait for the last checkpoints after SIGTERM. Kubernetes kills a program 30 s after SIGTERM,
others sooner. A higher value lets larger checkpoints complete; without them the next start repeats some batches."""
TERMINATED = "SIGTERM: the query takes a last checkpoint and is stopped; its next start goes on from there"

_started: "WeakSet[JobMaster]" = WeakSet()


class Waits(Protocol):
    """A start that waits for the end of another driver."""

    @property
    def isStandby(self) -> bool: ...

    def stop(self) -> object: ...


_waiting: "WeakSet[Waits]" = WeakSet()


def stop_with_program(waiting: Waits) -> None:
    """Remember a driver in waiting, whose processes and server end while threads still work."""
    _waiting.add(waiting)


def end_with_program(master: JobMaster) -> None:
    """Remember a query that was started, until it has ended or the program does."""
    _started.add(master)
    is_main = threading.current_thread() is threading.main_thread()  # Python sets handlers in no other thread
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _end_queries() -> None:
    for each in [each for each in _waiting if each.isStandby]:
        each.stop()
    for master in [each for each in _started if each.active]:
        log.warning("%s: %s", master.job.settings.name, INTERRUPTED if _is_interrupted() else RUNS_STILL)
        master.stop(END_S_MAX)


def _on_sigterm(number: int, frame: object) -> None:
    """Stop the queries on a thread of its own, since this one may hold any lock; then the signal ends the program."""
    signal.signal(number, signal.SIG_DFL)
    # Not a daemon thread: a program that stops waiting for the query then waits for this thread, and ends by the
    # signal.
    threading.Thread(target=_stop_as_planned, args=(number,), name="holdfast-sigterm").start()


def _stop_as_planned(number: int) -> None:
    """Take last checkpoints, side by side, and stop the queries; then end the program as the signal would have."""
    try:
        masters = [each for each in _started if each.active]
        for master in masters:
            log.warning("%s: %s", master.job.settings.name, TERMINATED)
        wait_for([master.trigger_checkpoint() for master in masters], CHECKPOINT_S_MAX)
        until_s = time.monotonic() + END_S_MAX
        for master in masters:
            master.stop(max(0.0, until_s - time.monotonic()))
    finally:
        os.kill(os.getpid(), number)


def _is_interrupted() -> bool:
    """True if Ctrl-C ends the program: Python remembers the type of the error whose traceback it printed last."""
    return getattr(sys, "last_type", None) is KeyboardInterrupt


# The function registered last is called first, so this call comes before the end of the pools, which
# `concurrent.futures` registers in the same way. Python has no public call that runs so early.
threading._register_atexit(_end_queries)  # type: ignore[attr-defined]
