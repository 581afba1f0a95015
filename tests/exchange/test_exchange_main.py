"""A sender as a process: it registers under its incarnation, works, and ends when it is told to, or is not wanted."""

import threading
from collections.abc import Iterator

import msgspec
import pytest

import holdfast as hf
from holdfast.exchange.main import run_sender
from holdfast.exchange.resident import Order, OrderCommon
from holdfast.exchange.resident_server import ResidentClient
from holdfast.exchange.task import LevelRequest
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.plan import Unit
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.server import JobMasterServer
from holdfast.ports import Endpoint
from holdfast.protocol.taskmanager import Acknowledgement, Decline, ExchangeRoutes, Registration
from holdfast.sources.base import SplitRead
from holdfast.storage.counted import Requests
from holdfast.storage.store import open_store
from holdfast.taskmanager.security import new_secret
from holdfast.taskmanager.settings import ProcessSettings
from waiting import until

SECRET = new_secret()
SENDER = ProcessId(Role.SENDER, 3, 8)
END_S_MAX = 30.0


class Noting:
    """A JobMaster that notes who registers."""

    def __init__(self) -> None:
        self.registered: list[Registration] = []
        self.heartbeats = 0
        self.wanted = True

    def register(self, registration: Registration) -> bool:
        self.registered.append(registration)
        return self.wanted

    def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
        self.heartbeats += 1
        return self.wanted

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        raise AssertionError("senders have no state")

    def decline(self, decline: Decline) -> bool:
        raise AssertionError("senders have no state")


class Running:
    """`run_sender` on a thread, with the server of a JobMaster."""

    def __init__(self) -> None:
        self.job_master = Noting()
        self.server = JobMasterServer(self.job_master, SECRET, Endpoint("127.0.0.1"))
        self.reasons: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        job = hf.Job(None, name="main", storage="memory://main")
        job.read(hf.SequenceSource(12, name="numbers")).write(hf.NoopSink(name="out"))
        program = build_program(job.declared, without_spark, None)
        settings = ProcessSettings(
            "job", 1, SENDER, self.server.address, SECRET, "127.0.0.1", job.storage, heartbeat_interval_s=0.01
        )
        self.reasons.append(run_sender(settings, program, open_store(job.storage)))

    def client(self) -> ResidentClient:
        until(lambda: self.job_master.heartbeats > 0)
        [registration] = self.job_master.registered
        assert registration.process == SENDER
        return ResidentClient(SENDER, registration.address, SECRET)

    def reason(self) -> str:
        self._thread.join(END_S_MAX)
        [reason] = self.reasons
        return reason


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.server.close()


def test_it_registers_works_and_ends_when_told(running: Running):
    common = OrderCommon(LevelRequest("job", 1, 1, 1, 0), ExchangeRoutes("job", [], [], 8))
    units = [Unit(0, 0, reads=[SplitRead("0", 0, 12, 12)])]
    with running.client() as client:
        [result] = client.run(Order(msgspec.Raw(msgspec.msgpack.encode(common)), 1, units))
        assert (result.rows, result.failure) == (12, None)
        client.stop()
        assert running.reason() == "stopped"


def test_it_ends_when_the_job_master_does_not_want_its_incarnation_any_more(running: Running):
    with running.client():
        running.job_master.wanted = False
        assert "does not want" in running.reason()


def test_it_ends_soon_after_the_job_masters_process_is_gone(running: Running):
    with running.client():
        running.server.close()
        assert "nobody listens" in running.reason() or "has not answered" in running.reason()
