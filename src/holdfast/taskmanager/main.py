"""The body of the long-running Spark task that is a TaskManager, without Spark: serve until told, or left alone.

    serve ──► register ──► heartbeat every second ──► end: stop was called, or
                  │                                    the JobMaster does not want this incarnation, or
                  └── refused: end at once             the JobMaster is gone (refused twice running; silent too long)

Ending deletes what is on the local disk, and nothing in the store.
"""

import logging
import uuid
from collections.abc import Callable

from holdfast.clock import Clock, SystemClock
from holdfast.errors import HoldfastError
from holdfast.failpoints import hit
from holdfast.storage.store import ObjectStore, open_store
from holdfast.taskmanager.garbage import GarbageCollection
from holdfast.taskmanager.jobmaster_client import JobMasterClient
from holdfast.taskmanager.malloc import keep_freed_memory
from holdfast.taskmanager.protocol import Registration
from holdfast.taskmanager.remote import address
from holdfast.taskmanager.server import TaskManagerServer
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.taskmanager import TaskManager

_log = logging.getLogger(__name__)

REFUSED_IN_A_ROW_MAX = 2


def run_task_manager(
    settings: TaskManagerSettings, store: ObjectStore | None = None, clock: Clock | None = None
) -> str:
    """Run one TaskManager in this process until its end; returns the reason.

    `store` stands in for the one that the settings name.

    Raises
    ------
    HoldfastError
        If no port is free, or the storage cannot be opened.
    """
    keep_freed_memory()
    clock = clock or SystemClock()
    job_master = JobMasterClient(settings.job_master, settings.secret)
    task_manager = TaskManager(
        settings, store or open_store(settings.storage_url, settings.storage_options), job_master, clock
    )
    try:
        server = TaskManagerServer(task_manager, settings.secret, settings.bind_host, settings.port_range)
        try:
            reachable_at = address(settings.advertised_host or settings.bind_host, server.port)
            with GarbageCollection(clock) as garbage:
                reason = Membership(settings, task_manager, job_master, clock, garbage.tick).keep(reachable_at)
        finally:
            server.close()
    finally:
        task_manager.close()
        job_master.close()
    _log.info("TaskManager %d, incarnation %d, ends: %s", settings.task_manager, settings.incarnation, reason)
    return reason


class Membership:
    """Registration and heartbeats; says when and why to end. `upkeep` is called between any two of them."""

    def __init__(
        self,
        settings: TaskManagerSettings,
        task_manager: TaskManager,
        job_master: JobMasterClient,
        clock: Clock,
        upkeep: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._task_manager = task_manager
        self._job_master = job_master
        self._clock = clock
        self._upkeep = upkeep
        self._answered_s = clock.monotonic()
        self._refused = 0

    def keep(self, reachable_at: str) -> str:
        """Blocks until the end; the reason for it."""
        index, incarnation = self._settings.task_manager, self._settings.incarnation
        registration = Registration(index, incarnation, reachable_at, uuid.uuid4().hex)
        hit("taskmanager.register.before")
        registered = False
        while not self._task_manager.stopped.is_set():
            try:
                if registered:
                    wanted = self._job_master.heartbeat(index, incarnation)
                else:
                    wanted = registered = self._job_master.register(registration)
                if not wanted:
                    return "the JobMaster does not want this incarnation"
                self._answered_s = self._clock.monotonic()
                self._refused = 0
            except (HoldfastError, OSError) as error:
                gone = self._gone(error)
                if gone is not None:
                    return gone
            self._upkeep()
            self._task_manager.stopped.wait(self._settings.heartbeat_interval_s)
        return "stopped"

    def _gone(self, error: Exception) -> str | None:
        self._refused = self._refused + 1 if isinstance(error, ConnectionRefusedError) else 0
        if self._refused >= REFUSED_IN_A_ROW_MAX:
            return f"nobody listens at the JobMaster's address any more ({error})"
        silent_s = self._clock.monotonic() - self._answered_s
        if silent_s > self._settings.job_master_silence_s_max:
            return f"the JobMaster has not answered for {silent_s:.0f} s ({error})"
        _log.warning("TaskManager %d: a heartbeat was not answered: %s", self._settings.task_manager, error)
        return None
