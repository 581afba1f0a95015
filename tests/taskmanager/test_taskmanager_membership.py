"""The heartbeats of a process, and the requests that they tell the JobMaster of."""

import threading

from holdfast.clock import ManualClock
from holdfast.ids import ProcessId, Role
from holdfast.storage.counted import Requests, counted
from holdfast.storage.store import open_store
from holdfast.taskmanager.membership import Membership
from holdfast.taskmanager.settings import ProcessSettings
from taskmanager_kit import NotingJobMaster


def test_requests_are_told_with_the_next_heartbeat_that_is_answered() -> None:
    store, stopped = counted(open_store("memory://membership")), threading.Event()

    class Told(NotingJobMaster):
        def __init__(self) -> None:
            super().__init__()
            self.told: list[Requests] = []

        def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
            self.heartbeats += 1
            if self.heartbeats == 1:
                store.put("a", b"12")
                raise TimeoutError("the answer is lost")
            self.told.append(requests)
            if self.heartbeats == 3:
                stopped.set()
            return True

    store.put("b", b"345")
    job_master = Told()
    process = ProcessId(Role.SENDER, 0, 1)
    settings = ProcessSettings("job", 1, process, "", "secret", "", store.url, heartbeat_interval_s=0.001)
    reason = Membership(settings, stopped, job_master, ManualClock(), lambda: None, store).keep("here")
    assert reason == "stopped"
    assert job_master.told == [{"storePuts": 2, "storePutBytes": 5}, {}]
