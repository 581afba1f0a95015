"""The body of the long-running Spark task that is a TaskManager, without Spark: it serves until its membership ends.

At its end it deletes its files on the local disk, and nothing in the store.
"""

from holdfast.clock import Clock, SystemClock
from holdfast.graph.program import Program
from holdfast.kernels.shelf import SHELF
from holdfast.printable import logger
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.jobmaster_client import JobMasterClient
from holdfast.taskmanager.membership import Membership
from holdfast.taskmanager.process_memory import GarbageCollection, keep_freed_memory
from holdfast.taskmanager.remote import address
from holdfast.taskmanager.server import TaskManagerServer
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.taskmanager import TaskManager
from holdfast.taskmanager.warming import warm

_log = logger(__name__)


def run_task_manager(
    settings: TaskManagerSettings,
    store: ObjectStore,
    clock: Clock | None = None,
    program: Program | None = None,
) -> str:
    """Run a TaskManager in this process until its end; returns the reason.

    `store` is the job's storage, without retries. With a `program`, the process is warm when it registers.

    Raises
    ------
    HoldfastError
        If no port is free.
    """
    keep_freed_memory(settings.memory_bytes)
    clock = clock or SystemClock()
    job_master = JobMasterClient(settings.job_master, settings.secret)
    SHELF.ask(job_master)
    if program is not None:
        warm(program, store)
    task_manager = TaskManager(settings, store, job_master, clock)
    try:
        server = TaskManagerServer(task_manager, settings.secret, settings.bind_host, settings.port_range)
        try:
            reachable_at = address(settings.advertised_host or settings.bind_host, server.port)
            with GarbageCollection(clock) as garbage:
                stopped, beside = task_manager.stopped, task_manager.beside
                membership = Membership(settings, stopped, job_master, clock, garbage.tick, beside)
                reason = membership.keep(reachable_at)
        finally:
            task_manager.stopped.set()  # callers that wait for the end are answered
            server.close()
    finally:
        task_manager.close()
        SHELF.ask(None)
        job_master.close()
    _log.info("%s, ends: %s", settings.process, reason)
    return reason
