"""Membership of a long-running process (a TaskManager or a sender) in its job, from registration to end.

serve ──► register ──► heartbeats, now and then ──► end: the process was told to stop, or
              │                                     the JobMaster does not want this incarnation, or
              └── refused: end at once              the JobMaster is gone (refused twice running; silent too long)
"""

import math
import os
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.failpoints import hit
from holdfast.ids import Role
from holdfast.printable import logger
from holdfast.protocol.taskmanager import Reception, Registration
from holdfast.storage.counted import untold
from holdfast.storage.store import ObjectStore
from holdfast.taskmanager.settings import ProcessSettings

_log = logger(__name__)

REFUSED_IN_A_ROW_MAX = 2
RETRY_S = 1.0
"""Time until the next heartbeat after one that was not answered. With a lower value, a process notices sooner that the
JobMaster is gone, but may mistake a slow JobMaster for a lost one."""


class Membership:
    """Registers, sends heartbeats, and decides when and why the process must end.

    `stopped` is set when the process is told to end; `upkeep` is called between two heartbeats. The requests of `store`
    are reported if it is counted.
    """

    def __init__(
        self,
        settings: ProcessSettings,
        stopped: threading.Event,
        job_master: Reception,
        clock: Clock,
        upkeep: Callable[[], None],
        store: ObjectStore,
    ) -> None:
        self._settings = settings
        self._stopped = stopped
        self._job_master = job_master
        self._clock = clock
        self._upkeep = upkeep
        self._store = store
        self._untold: Counter[str] = Counter()
        """Requests that no answered heartbeat has told."""
        self._answered_s = clock.monotonic()
        self._refused = 0
        self._pause_s_max = RETRY_S

    def keep(self, reachable_at: str) -> str:
        """Block until the process has to end; returns the reason."""
        process = self._settings.process
        # All Python workers of a Spark executor are children of the same process.
        executor = f"{socket.gethostname()}/{os.getppid()}"
        registration = Registration(process, reachable_at, uuid.uuid4().hex, executor)
        if process.role is Role.TASK_MANAGER:
            hit("taskmanager.register.before")
        else:
            hit("sender.register.before")
        registered = False
        while not self._stopped.is_set():
            try:
                if registered:
                    self._untold.update(untold(self._store))
                    wanted = self._job_master.heartbeat(process, dict(self._untold))
                    self._untold.clear()
                else:
                    wanted = registered = self._job_master.register(registration)
                if not wanted:
                    return "the JobMaster does not want this incarnation"
                self._answered_s = self._clock.monotonic()
                self._refused = 0
                self._pause_s_max = math.inf
            except (HoldfastError, OSError) as error:
                gone = self._gone(error)
                if gone is not None:
                    return gone
            self._upkeep()
            self._stopped.wait(min(self._settings.heartbeat_interval_s, self._pause_s_max))
        return "stopped"

    def _gone(self, error: Exception) -> str | None:
        self._pause_s_max = RETRY_S
        self._refused = self._refused + 1 if isinstance(error, ConnectionRefusedError) else 0
        if self._refused >= REFUSED_IN_A_ROW_MAX:
            return f"nobody listens at the JobMaster's address any more ({error})"
        silent_s = self._clock.monotonic() - self._answered_s
        if silent_s > self._settings.job_master_silence_s_max:
            return f"the JobMaster has not answered for {silent_s:.0f} s ({error})"
        _log.warning("%s: a heartbeat was not answered: %s", self._settings.process.name, error)
        return None
