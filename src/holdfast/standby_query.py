"""Handle of a driver in waiting: its status says `Standby` until it leads, and then it is an ordinary query."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from holdfast.errors import HoldfastError, QueryFailed, StorageError
from holdfast.ids import Epoch
from holdfast.jobmaster.master import JobMaster
from holdfast.jobmaster.savepoints.savepoints import Savepoint
from holdfast.jobmaster.starting.start import Overtaken, Start, check_start, start_job, warm_processes
from holdfast.jobmaster.starting.warm import WarmProcesses
from holdfast.jobmaster.starting.warm_following import WarmFollowing
from holdfast.journal.codec import StoredJob
from holdfast.leadership.rules import StandbyPhase
from holdfast.leadership.watcher import Waiting, Watcher
from holdfast.printable import logger
from holdfast.quantities import Duration
from holdfast.query import Query
from holdfast.start_options import StartOptions

log = logger(__name__)

CLAIMS_FAILED_MAX = 10
"""Takeovers in a row that may fail because of the store; after them the driver in waiting ends with the last error."""


def wait_to_lead(
    start: Start, job: StoredJob, options: StartOptions, on_lead: Callable[[JobMaster], None]
) -> "StandbyQuery":
    """Check the job against its storage now, start its processes, and then watch its leader.

    It raises the errors of a start: code and schemas that do not fit the newest checkpoint are refused at once.
    """
    start = start.counted()
    check_start(start, job)
    return StandbyQuery(start, job, options, on_lead)


class StandbyQuery(Query):
    """A driver in waiting. Until it leads, calls that need a job running in this driver raise `HoldfastError`."""

    def __init__(
        self, start: Start, job: StoredJob, options: StartOptions, on_lead: Callable[[JobMaster], None]
    ) -> None:
        self._start, self._job, self._on_lead = start, job, on_lead
        self._waiting_id = str(uuid4())
        self._leads: JobMaster | None = None
        self._error: Exception | None = None
        self._claims_failed = 0
        self._on_end: Callable[[], None] = lambda: None
        self._drawing: threading.Thread | None = None
        self._decided = threading.Event()
        """Set when this driver leads, or no longer waits."""
        self._warm = warm_processes(start, job)
        waiting = Waiting(job.job_id, options.takeover_after_s, options.on_leader_stop == "promote")
        self._watcher = Watcher(start.store, waiting, start.clock, self._claim)
        self._following = self._followed_by(self._warm)
        self._thread = threading.Thread(target=self._run, name="holdfast-standby", daemon=True)
        self._thread.start()

    # --- until it leads -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self._watcher.run():
                log.info("%s: no longer waits: %s", self.name, self._watcher.rules.why or "it was stopped")
        except Exception as error:
            self._error = error
            log.error("%s: a driver in waiting ends: %s", self.name, error)
        finally:
            if self._following is not None:
                self._following.close()
            if self._leads is None:
                self._close_warm()
            self._decided.set()

    def _claim(self, epoch: Epoch) -> bool:
        """Take over from an epoch. Returns False if another driver leads, or if the store prevented the takeover."""
        warm = self._warm if self._warm is not None and not self._warm.is_led else None
        try:
            master = start_job(replace(self._start, leader=epoch, warm=warm), self._job)
        except Overtaken:
            return False
        except StorageError as error:
            self._claims_failed += 1
            if self._claims_failed >= CLAIMS_FAILED_MAX:
                raise
            log.warning("%s: takeover %d did not go through: %s", self.name, self._claims_failed, error)
            return False
        self._leads = master
        self._on_lead(master)
        return True

    def _followed_by(self, warm: WarmProcesses | None) -> WarmFollowing | None:
        """Have the TaskManagers that wait follow the leader's logs, if there are logs."""
        if warm is None or not self._start.settings.changelog.enabled:
            return None
        return WarmFollowing(self._start, self._job, warm, lambda: self._watcher.record)

    def _close_warm(self) -> None:
        if self._warm is None or self._warm.is_led:
            return
        try:
            self._warm.close()
        except Exception:
            log.exception("%s: processes of a driver in waiting could not be ended", self.name)

    @property
    def _master(self) -> JobMaster:
        if self._leads is None:
            raise HoldfastError(
                f"job {self.name!r}: this driver {'waits' if self.isActive else 'waited'} for the end of another that "
                "leads, and runs nothing; ask the driver that leads, or look at query.status"
            )
        return self._leads

    # --- the query ----------------------------------------------------------------------------------------------------

    @property
    def isStandby(self) -> bool:
        """True while this driver waits."""
        return self._leads is None and not self._decided.is_set()

    @property
    def id(self) -> str:
        return self._job.job_id

    @property
    def runId(self) -> str:
        return self._waiting_id if self._leads is None else self._leads.run_id

    @property
    def name(self) -> str:
        return self._start.settings.name

    @property
    def isActive(self) -> bool:
        return self.isStandby if self._leads is None else self._leads.active

    def __repr__(self) -> str:
        return super().__repr__() if self._leads is not None else f"<Query {self.name!r}: {self.status['message']}>"

    @property
    def status(self) -> dict[str, Any]:
        """The status of a query. While this driver waits, `message` begins with `Standby`, and `standby` describes the
        leader and the waiting: `leaderEpoch`, `leaderBeats`, `checkpoint` (number of the leader's newest record),
        `silentSeconds`, `takesOverAfterSeconds`, `isConnected`, `processesReady`, `processes`, `requests` (of this
        driver and its processes to stores, while it waits), and `followed` (number of the record whose state all
        TaskManagers that wait have, at the least; None: some have none yet)."""
        if self._leads is not None:
            return super().status
        watched = self._watcher.status()
        warm = self._warm
        watched["processesReady"] = 0 if warm is None else warm.ready
        watched["processes"] = 0 if warm is None else warm.wanted
        watched["requests"] = self._start.requests
        watched["followed"] = None if self._following is None else self._following.followed
        return {
            "message": self._message(watched),
            "isDataAvailable": False,
            "isTriggerActive": False,
            "splitsBehind": [],
            "keptSettings": {},
            "standbyTaskManagers": 0,
            "exactlyOnce": True,
            "standby": watched,
        }

    def _message(self, watched: dict[str, Any]) -> str:
        if not self.isStandby:
            return f"Standby has ended: {self._error or self._watcher.rules.why or 'it was stopped'}"
        if self._watcher.rules.phase is StandbyPhase.CLAIMING:
            return f"Standby: takes over, since {self._watcher.rules.why}"
        epoch = watched["leaderEpoch"]
        leader = "looks for a leader" if epoch is None else f"watches the leader, epoch {epoch}"
        return (
            f"Standby: {leader}, heard {watched['silentSeconds']:.1f} s ago; takes over after "
            f"{watched['takesOverAfterSeconds']:g} s; {watched['processesReady']} of {watched['processes']} processes "
            "are ready"
        )

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return None if self._leads is None else super().lastProgress

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [] if self._leads is None else super().recentProgress

    @property
    def metricsUrl(self) -> str | None:
        return None if self._leads is None else super().metricsUrl

    @property
    def uiUrl(self) -> str | None:
        """URL of the page when this driver leads; None before that."""
        return None if self._leads is None else super().uiUrl

    def draw_progress(self) -> None:
        """Draw nothing: a driver in waiting writes a line to its log when it takes over."""

    def _repr_html_(self) -> str:
        return repr(self) if self._leads is None else super()._repr_html_()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        began_s = time.monotonic()
        if not self._decided.wait(timeout):
            return False
        if self._leads is not None:
            left_s = None if timeout is None else max(0.0, timeout - (time.monotonic() - began_s))
            return super().awaitTermination(left_s)
        if self._error is not None:
            raise self._failed() from self._error
        return True

    def await_lead(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until this driver leads. Returns False if it does not lead, or no longer
        waits."""
        self._decided.wait(timeout)
        return self._leads is not None

    def exception(self) -> QueryFailed | None:
        if self._leads is not None:
            return super().exception()
        return None if self._error is None else self._failed()

    def stop(
        self,
        *,
        with_savepoint: str | None = None,
        timeout: Duration | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Savepoint | None:
        """Stop waiting. If this driver already leads, end its query, with the arguments `with_savepoint`, `timeout` and
        `storage_options` of `Query.stop`."""
        self._watcher.stop()
        self._thread.join()
        if self._leads is None:
            return None
        return super().stop(with_savepoint=with_savepoint, timeout=timeout, storage_options=storage_options)

    def _failure(self) -> Exception | None:
        return self._error if self._leads is None else self._leads.error
