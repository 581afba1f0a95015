import threading
from pathlib import Path

import msgspec
import pytest

from holdfast.clock import ManualClock
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.server import JobMasterServer
from holdfast.ports import Endpoint
from holdfast.protocol.taskmanager import ExchangeRoute
from holdfast.storage.counted import Requests
from holdfast.storage.store import open_store
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.main import run_task_manager
from taskmanager_kit import SECRET, NotingJobMaster, OneTaskManager
from waiting import until


class Running:
    """`run_task_manager` on a thread, with a JobMaster's server."""

    def __init__(self, tmp_path: Path, job_master: NotingJobMaster) -> None:
        self.job_master = job_master
        self.server = JobMasterServer(job_master, SECRET, Endpoint("127.0.0.1"))
        self.clock = ManualClock()
        self.world = OneTaskManager(tmp_path, job_master=job_master)
        self.settings = msgspec.structs.replace(
            self.world.settings, job_master=self.server.address, heartbeat_interval_s=0.01
        )
        self.reasons: list[str] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.reasons.append(run_task_manager(self.settings, open_store(self.settings.storage_url), clock=self.clock))

    def reason(self) -> str:
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.reasons[0]

    def client(self) -> TaskManagerClient:
        until(lambda: bool(self.job_master.registered))
        return TaskManagerClient(ExchangeRoute(0, 1, self.job_master.registered[0].address), SECRET)


@pytest.fixture
def running(tmp_path):
    running = Running(tmp_path, NotingJobMaster())
    yield running
    running.server.close()


def test_it_registers_sends_heartbeats_serves_and_ends_when_told(running):
    with running.client() as client:
        client.deploy(running.world.deployment())
        until(lambda: running.job_master.heartbeats > 3)
        client.undo(1)
        client.stop()
        assert running.reason() == "stopped"
    assert [each.process for each in running.job_master.registered] == [ProcessId(Role.TASK_MANAGER, 0, 1)]


def test_a_registration_whose_answer_was_lost_is_repeated_as_it_was(tmp_path):
    job_master = NotingJobMaster()
    job_master.unanswered = 2
    running = Running(tmp_path, job_master)
    until(lambda: job_master.heartbeats > 0)
    assert len(job_master.registered) == 3
    assert len(set(job_master.registered)) == 1
    job_master.wanted = False
    assert "does not want" in running.reason()
    running.server.close()


def test_it_ends_when_the_job_master_does_not_want_it(tmp_path):
    job_master = NotingJobMaster()
    job_master.wanted = False
    running = Running(tmp_path, job_master)
    assert "does not want" in running.reason()
    assert job_master.heartbeats == 0
    running.server.close()


def test_it_ends_when_a_later_heartbeat_is_answered_with_no(running):
    until(lambda: running.job_master.heartbeats > 0)
    running.job_master.wanted = False
    assert "does not want" in running.reason()


def test_it_ends_soon_after_the_job_masters_process_is_gone_and_deletes_nothing_but_its_local_files(running):
    with running.client() as client:
        client.deploy(running.world.deployment())
    running.world.store.put("journal/000000000001", b"whatever")
    running.server.close()
    assert "nobody listens" in running.reason() or "has not answered" in running.reason()
    assert [info.name for info in running.world.store.list("")] == ["journal/000000000001"]


def test_it_ends_when_the_job_master_is_silent_for_too_long(tmp_path):
    class Failing(NotingJobMaster):
        def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
            self.heartbeats += 1
            raise RuntimeError("a JobMaster in trouble")

    running = Running(tmp_path, Failing())
    until(lambda: running.job_master.heartbeats > 2)
    assert running.thread.is_alive()
    running.clock.advance(31.0)
    assert "has not answered for 31 s" in running.reason()
    running.server.close()
