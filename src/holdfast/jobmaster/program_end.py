"""The end of the program: running queries are named, and end while threads and pools of threads still work.

Python shuts down its pools of threads before it calls the functions of `atexit`. A query that ran on until then would
fail in the middle of a batch, with errors that do not name the cause.
"""

import concurrent.futures.thread  # noqa: F401  (registers the end of the pools: see the last line)
import sys
import threading
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


def _end_queries() -> None:
    for each in [each for each in _waiting if each.isStandby]:
        each.stop()
    for master in [each for each in _started if each.active]:
        log.warning("%s: %s", master.job.settings.name, INTERRUPTED if _is_interrupted() else RUNS_STILL)
        master.stop(END_S_MAX)


def _is_interrupted() -> bool:
    """True if Ctrl-C ends the program. Python notes the error whose traceback it has printed last."""
    return getattr(sys, "last_type", None) is KeyboardInterrupt


# The function registered last is called first, so this call comes before the end of the pools, which
# `concurrent.futures` registers in the same way. Python has no public call that runs so early.
threading._register_atexit(_end_queries)  # type: ignore[attr-defined]
