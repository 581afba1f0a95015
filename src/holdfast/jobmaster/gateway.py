"""The calls of processes to the JobMaster: registrations, heartbeats, acknowledgements and declines."""

from typing import Any

from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.batches.following import Following
from holdfast.jobmaster.checkpoints.control import Control
from holdfast.jobmaster.processes.processes import Processes
from holdfast.jobmaster.processes.senders import Senders
from holdfast.jobmaster.processes.taskmanagers import TaskManagers
from holdfast.printable import logger
from holdfast.protocol.taskmanager import Acknowledgement, BaseOffer, Decline, Registration, RestoreProgress
from holdfast.storage.counted import Requests, note
from holdfast.storage.store import ObjectStore

log = logger(__name__)


class MasterGateway:
    """Implements `JobMasterGateway`. The cluster needs this gateway, and the parts behind the gateway need the cluster:
    so `open` brings these parts later, before the first process is started."""

    def __init__(self, job: str, standby: int, store: ObjectStore) -> None:
        self._job = job
        self._store = store
        self._standby = standby
        self._weak_point: str | None = None

    def open(self, task_managers: TaskManagers, senders: Senders, control: Control, following: Following) -> None:
        self._task_managers, self._senders, self._control, self._following = task_managers, senders, control, following

    def register(self, registration: Registration) -> bool:
        accepted = self.processes(registration.process).register(registration)
        self.look_at_placement()
        return accepted

    def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
        note(self._store, requests, by_senders=process.role is Role.SENDER)
        return self.processes(process).heartbeat(process)

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        return self._control.acknowledge(acknowledgement)

    def decline(self, decline: Decline) -> bool:
        return self._control.decline(decline)

    def offer(self, offer: BaseOffer) -> bool:
        return self._following.offered(offer)

    def restoring(self, progress: RestoreProgress) -> bool:
        return self._task_managers.restoring(progress)

    def processes(self, process: ProcessId) -> Processes[Any]:
        """The processes of the same role."""
        return self._senders if process.role is Role.SENDER else self._task_managers

    def look_at_placement(self) -> None:
        """Warn of an executor whose loss the standbys could not make up for: once all standbys serve, and after each
        change."""
        if self._standby == 0 or self._task_managers.standby < self._standby:
            return
        found = self._task_managers.weak_point()
        if found is not None and found != self._weak_point:
            log.warning("%s: %s", self._job, found)
        self._weak_point = found
