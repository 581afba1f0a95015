import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from holdfast.errors import HoldfastError, StaleCall, TaskManagerLost
from holdfast.exchange.connections import Connections
from holdfast.exchange.links import FlightLinks
from holdfast.exchange.unit_writer import FlightUnitWriter, UnitAttempt
from holdfast.functions.aggregates.declared import sum as sum_of
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import OperatorInput
from holdfast.graph.program import OperatorTarget
from holdfast.ids import ProcessId, Role
from holdfast.jobmaster.server import JobMasterServer
from holdfast.ports import Endpoint
from holdfast.protocol import taskmanager as said
from holdfast.protocol.streams import Streams
from holdfast.protocol.taskmanager import ExchangeRoute, OutputTicket, ProcessRequest
from holdfast.storage.copying import CopyOrder
from holdfast.taskmanager import remote
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.jobmaster_client import JobMasterClient
from holdfast.taskmanager.remote import address
from holdfast.taskmanager.security import connect, credentials, new_secret
from holdfast.taskmanager.server import TaskManagerServer
from taskmanager_kit import COUNT, HOOKS, INPUT, SECRET, NotingJobMaster, OneTaskManager, program, rows, streams_of
from waiting import until

SEVERAL = range(1000)


class Served(OneTaskManager):
    """A TaskManager behind its Flight server in this process, with a client."""

    def __init__(self, tmp_path: Path, **more: object) -> None:
        super().__init__(tmp_path, **more)
        self.server = TaskManagerServer(self.task_manager, SECRET, "127.0.0.1")
        self.address = address("127.0.0.1", self.server.port)
        self.route = ExchangeRoute(0, self.settings.process.incarnation, self.address)
        self.client = TaskManagerClient(self.route, SECRET)

    def sender(self, batch: int, secret: str = SECRET, attempt: str = "a", run: int = 1) -> FlightUnitWriter:
        return FlightUnitWriter(self.routes(self.address), Connections(secret), UnitAttempt(run, batch, 0, 0, attempt))

    def close(self) -> None:
        self.client.close()
        self.server.close()
        self.task_manager.close()


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path)
    served.client.deploy(served.deployment())
    yield served
    HOOKS.before = lambda context: None
    served.close()


def push(served: Served, batch: int, *keys: int):
    sender = served.sender(batch)
    assert len(sender.send(COUNT, rows(*keys))) == 0
    return streams_of(sender)


def test_a_batch_goes_through_push_process_pull_commit_and_cut_over_flight(served):
    streams = push(served, 0, *SEVERAL, *SEVERAL)
    result = served.client.process(ProcessRequest(1, 0, 0, 1, streams))
    assert sum(each.rows_in for each in result.subtasks) == 2000
    links = FlightLinks(served.routes(served.address), Connections(SECRET))
    pulled = pa.Table.from_batches([piece for subtask in (0, 1) for piece in links.output(1, 0, "count", subtask)])
    assert dict(zip(pulled["k"].to_pylist(), pulled["n"].to_pylist(), strict=True)) == dict.fromkeys(SEVERAL, 2)
    served.client.commit(1, 0)
    served.client.cut(1, 1, 0)
    served.acknowledged(1)
    served.client.complete(1, 1)
    served.client.abort_checkpoint(1, 2)
    stored = {each.name: each.size for each in served.store.list("dstl/")}
    assert len(served.client.copy(CopyOrder("memory://a-savepoint", {}, list(stored)))) == len(stored) > 0
    served.client.undo(2)
    assert served.client.commit(2, 0).metrics["lastCommittedBatch"] == 0


def test_an_empty_output_is_pulled_as_no_rows(served):
    served.client.process(ProcessRequest(1, 0, 0, 1, Streams()))
    assert sum(piece.num_rows for piece in served.client.output(1, 0, "count", 0)) == 0


def test_a_sender_without_rows_opens_no_stream(served):
    assert len(served.sender(0).finish()) == 0


def test_rows_of_two_inputs_with_different_schemas_travel_in_one_attempt(served):
    other = OperatorTarget("count", 1, ("key", "text"))
    sender = served.sender(0)
    sender.send(COUNT, rows(1, 2))
    sender.send(other, pa.record_batch({"key": [1, 2], "text": ["a", None]}).slice(0, 1))
    [stream] = streams_of(sender)
    assert stream.rows == 3
    [attempt] = served.task_manager._inputs._attempts.values()
    assert {section[:2] for section in attempt.sections} == {("count", 0), ("count", 1)}


def test_rows_with_null_keys_are_named_and_not_sent(served):
    sender = served.sender(0)
    batch = pa.record_batch([pa.array([None, 5, None], pa.int64())], schema=INPUT)
    assert sender.send(COUNT, batch).tolist() == [0, 2]
    [stream] = streams_of(sender)
    assert stream.rows == 1


def test_errors_come_back_as_the_class_and_words_they_were_raised_with(served):
    with pytest.raises(StaleCall, match=r"^operator 'count', subtask 0: the output of batch 9 is not held here"):
        list(served.client.output(1, 9, "count", 0))
    served.client.undo(3)
    with pytest.raises(StaleCall, match="commit of run 2 is refused"):
        served.client.commit(2, 0)
    with pytest.raises(HoldfastError, match="KeyError: 'anything'"):
        HOOKS.before = lambda context: {}["anything"]
        served.client.process(ProcessRequest(3, 0, 0, 1, Streams()))


def test_rows_that_an_operator_sets_aside_come_back_with_the_result(tmp_path):
    served = Served(tmp_path, parallelism=1)
    spec = AggregateSpec("count", OperatorInput(INPUT, ("k",)), {"n": sum_of("k")}, bad_records="dead_letter")
    served.client.deploy(served.deployment(shipped=program(spec)))
    streams = push(served, 0, 2**63 - 1, 2**63 - 1, 1)
    [result] = served.client.process(ProcessRequest(1, 0, 0, 1, streams)).subtasks
    assert (result.rows_in, result.rows_out, len(result.bad)) == (3, 2, 1)
    assert result.bad[0].operator == "count"
    served.close()


def test_very_long_errors_keep_beginning_and_end(served):
    def before(context):
        raise HoldfastError("begin " + "é" * 20_000 + " end")

    HOOKS.before = before
    with pytest.raises(HoldfastError, match=r"(?s)^begin .* \[…\] .* end$"):
        served.client.process(ProcessRequest(1, 0, 0, 1, Streams()))


def test_calls_and_streams_for_another_incarnation_are_refused(served):
    other = ExchangeRoute(0, 7, served.address)
    with TaskManagerClient(other, SECRET) as client:
        with pytest.raises(StaleCall, match="incarnation 7"):
            client.commit(1, 0)
        with pytest.raises(StaleCall, match="incarnation 7"):
            list(client.output(1, 0, "count", 0))
    sender = FlightUnitWriter(
        msgspec.structs.replace(served.routes(), routes=[other]), Connections(SECRET), UnitAttempt(1, 0, 0, 0, "a")
    )
    sender.send(COUNT, rows(1))
    with pytest.raises(StaleCall, match="incarnation"):
        sender.finish()


def test_a_stream_of_an_older_run_is_refused(served):
    served.client.undo(2)
    sender = served.sender(0, run=1)
    sender.send(COUNT, rows(1))
    with pytest.raises(StaleCall, match="run 2 has begun"):
        sender.finish()


def test_a_sender_that_gives_up_counts_for_nothing(served):
    with served.sender(0) as sender:
        sender.send(COUNT, rows(*range(100_000)))
    streams = push(served, 0, 1)
    assert served.client.process(ProcessRequest(1, 0, 0, 1, Streams())).subtasks[0].rows_in == 0
    assert streams != []


RAW_CALLS = {
    "every action": lambda client, options: [
        _refused(lambda kind=kind: list(client.do_action((kind, b""), options)))
        for kind in ("deploy", "process", "commit", "undo", "release", "cut", "stop", "unknown", "")
    ],
    "actions listed": lambda client, options: _refused(lambda: list(client.list_actions(options))),
    "flights listed": lambda client, options: _refused(lambda: list(client.list_flights(b"", options))),
    "flight info": lambda client, options: _refused(
        lambda: client.get_flight_info(flight.FlightDescriptor.for_command(b""), options)
    ),
    "schema": lambda client, options: _refused(
        lambda: client.get_schema(flight.FlightDescriptor.for_command(b""), options)
    ),
    "pull": lambda client, options: _refused(
        lambda: client.do_get(
            flight.Ticket(msgspec.msgpack.encode(OutputTicket(1, 1, 0, "count", 0))), options
        ).read_all()
    ),
    "push": lambda client, options: _refused(lambda: _raw_put(client, options)),
    "exchange": lambda client, options: _refused(lambda: _raw_exchange(client, options)),
    "handshake": lambda client, options: _refused(lambda: client.authenticate_basic_token("user", "password", options)),
}


def _refused(call) -> None:
    """No connection comes about. A handshake of gRPC's own notices as it writes."""
    with pytest.raises((flight.FlightError, OSError, pa.ArrowException), match=NO_CONNECTION):
        call()


NO_CONNECTION = "failed to connect to all addresses|Could not finish writing before closing|Socket closed"


def _raw_put(client, options) -> None:
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"x"), INPUT, options)
    writer.write_batch(rows(1))
    writer.close()


def _raw_exchange(client, options) -> None:
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"x"), options)
    writer.begin(INPUT)
    writer.done_writing()
    reader.read_chunk()


def _plain(port: int) -> flight.FlightClient:
    return flight.FlightClient(f"grpc://127.0.0.1:{port}")


def _without_certificate(port: int) -> flight.FlightClient:
    return flight.FlightClient(address("127.0.0.1", port), disable_server_verification=True)


def _of_another_job(port: int) -> flight.FlightClient:
    own, there = credentials(new_secret()), address("127.0.0.1", port)
    named = {"cert_chain": own.certificate, "private_key": own.key}
    return flight.FlightClient(there, disable_server_verification=True, **named)


STRANGERS = {
    "without TLS": _plain,
    "without a certificate": _without_certificate,
    "with another job's secret": lambda port: connect(address("127.0.0.1", port), new_secret()),
    "with another job's certificate, trusting anyone": _of_another_job,
}


@pytest.mark.whole
@pytest.mark.parametrize("call", RAW_CALLS.values(), ids=RAW_CALLS.keys())
@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS.keys())
@pytest.mark.parametrize("server", ["TaskManager", "JobMaster"])
def test_every_raw_flight_call_without_the_secret_is_refused(server, stranger, call, tmp_path):
    world = OneTaskManager(tmp_path)
    serving = (
        TaskManagerServer(world.task_manager, SECRET, "127.0.0.1")
        if server == "TaskManager"
        else JobMasterServer(world.job_master, SECRET, Endpoint("127.0.0.1"))
    )
    with stranger(serving.port) as client:
        call(client, flight.FlightCallOptions(timeout=20))
    serving.close()
    world.task_manager.close()


def test_to_clients_with_a_wrong_secret_a_task_manager_is_no_more(served):
    with TaskManagerClient(served.route, new_secret()) as client, pytest.raises(TaskManagerLost, match="reached"):
        client.undo(1)
    sender = served.sender(0, secret=new_secret())
    sender.send(COUNT, rows(1))
    with pytest.raises(TaskManagerLost, match="cannot be reached"):
        sender.finish()


def test_a_client_of_the_job_does_not_talk_to_a_server_of_another_one(tmp_path):
    world = OneTaskManager(tmp_path)
    other = JobMasterServer(world.job_master, new_secret(), Endpoint("127.0.0.1"))
    client = JobMasterClient(other.address, SECRET)
    with pytest.raises(ConnectionError):
        client.heartbeat(ME, {})
    client.close()
    other.close()
    world.task_manager.close()


def test_a_secret_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="32 characters"):
        credentials("short")


def test_nothing_of_the_secret_is_in_what_crosses_the_connection():
    mine = credentials(SECRET)
    assert credentials(SECRET) is mine
    for part in mine[:2]:
        assert SECRET.encode() not in part and SECRET.encode().hex().encode() not in part


BODY_BYTES = 100_000_000
SERVE = """
import sys
from unittest.mock import Mock
from holdfast.jobmaster.server import Endpoint, JobMasterServer
server = JobMasterServer(Mock(), sys.argv[1], Endpoint("127.0.0.1"))
print(server.port, flush=True)
sys.stdin.read()
"""


def test_the_bodies_of_strangers_take_no_memory():
    """gRPC reads the body of a call as a whole before it looks at anything: it must not come that far."""
    command = [sys.executable, "-c", SERVE, SECRET]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        before, body = high_water_mark(process.pid), b"x" * BODY_BYTES
        for stranger in STRANGERS.values():
            with stranger(port) as client:
                _refused(lambda client=client: list(client.do_action(("register", body))))
                _refused(lambda client=client: client.do_get(flight.Ticket(body)).read_all())
        assert high_water_mark(process.pid) - before < BODY_BYTES / 10
        process.stdin.close()


def high_water_mark(pid: int) -> int:
    """The most memory that a process ever held, in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_servers_bind_the_given_host_alone_and_a_free_port_of_the_range(tmp_path):
    world = OneTaskManager(tmp_path)
    first = TaskManagerServer(world.task_manager, SECRET, "127.0.0.1")
    taken = first.port
    second = TaskManagerServer(world.task_manager, SECRET, "127.0.0.1", (taken, min(taken + 50, 65535)))
    assert second.port > taken
    with pytest.raises(HoldfastError, match=rf"no free port from {taken} to {taken}.*port_range"):
        TaskManagerServer(world.task_manager, SECRET, "127.0.0.1", (taken, taken))
    with (
        TaskManagerClient(ExchangeRoute(0, 1, address("127.0.0.2", taken)), SECRET) as elsewhere,
        pytest.raises(TaskManagerLost),
    ):
        elsewhere.undo(1)
    first.close()
    second.close()
    world.task_manager.close()


ME = ProcessId(Role.TASK_MANAGER, 0, 1)


def test_the_job_master_is_called_over_flight():
    job_master = NotingJobMaster()
    server = JobMasterServer(job_master, SECRET, Endpoint("127.0.0.1"))
    client = JobMasterClient(server.address, SECRET)
    assert client.register(said.Registration(ME, "grpc://here:1", "this")) is True
    assert client.heartbeat(ME, {}) is True
    acknowledgement = said.Acknowledgement(1, 0, 1, 5, "manifest", ["manifest"], ["manifest"])
    assert client.acknowledge(acknowledgement) is True
    assert client.decline(said.Decline(2, 0, 1, "because")) is True
    assert job_master.registered == [said.Registration(ME, "grpc://here:1", "this")]
    assert (job_master.acknowledgements, job_master.declines) == ([acknowledgement], [said.Decline(2, 0, 1, "because")])
    job_master.wanted = False
    assert client.heartbeat(ME, {}) is False
    server.close()
    with pytest.raises(OSError, match="does not answer"):
        client.heartbeat(ME, {})
    client.close()


SERVER = """
import sys
from pathlib import Path
from test_taskmanager_flight import Served
served = Served(Path(sys.argv[1]))
served.task_manager.deploy(served.deployment())
print(served.address, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process(tmp_path):
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as started:
        yield started
        started.kill()


@pytest.mark.kill
def test_a_task_manager_killed_while_rows_are_sent_is_lost_at_once_and_so_is_every_later_call(process, tmp_path):
    at = process.stdout.readline().strip()
    world = OneTaskManager(tmp_path)
    sender = FlightUnitWriter(world.routes(at), Connections(SECRET), UnitAttempt(1, 0, 0, 0, "a"))
    batch = rows(*range(200_000))

    def send_until_it_fails():
        for number in range(10_000):
            if number == 5:
                process.send_signal(signal.SIGKILL)
            sender.send(COUNT, batch)

    with pytest.raises(TaskManagerLost, match="TaskManager 0"):
        send_until_it_fails()
    sender.abort()
    with (
        TaskManagerClient(ExchangeRoute(0, 1, at), SECRET) as client,
        pytest.raises(TaskManagerLost, match="cannot be reached"),
    ):
        client.commit(1, 0)
    another = FlightUnitWriter(world.routes(at), Connections(SECRET), UnitAttempt(1, 0, 0, 0, "b"))
    another.send(COUNT, batch)
    with pytest.raises(TaskManagerLost):
        another.finish()


@pytest.mark.kill
def test_giving_up_does_not_wait_for_a_task_manager_that_takes_nothing_more(process, tmp_path):
    at = process.stdout.readline().strip()
    sender = FlightUnitWriter(OneTaskManager(tmp_path).routes(at), Connections(SECRET), UnitAttempt(1, 0, 0, 0, "a"))
    sender.send(COUNT, rows(*range(100_000)))
    process.send_signal(signal.SIGSTOP)
    batch = rows(*range(500_000))

    ended = threading.Event()

    def send_much():
        with contextlib.suppress(TaskManagerLost):
            while not ended.is_set():
                sender.send(COUNT, batch)

    sending = threading.Thread(target=send_much, daemon=True)
    sending.start()
    until(lambda: sender._links[0]._messages.full())
    ended.set()
    sender.abort()
    sending.join(60)
    assert not sending.is_alive()
    process.send_signal(signal.SIGCONT)
    process.kill()


def test_closing_a_server_does_not_wait_for_ever_for_a_call_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SHUTDOWN_S_MAX", 0.1)
    served = Served(tmp_path)
    served.client.deploy(served.deployment())
    begun, go_on = threading.Event(), threading.Event()

    def before(context):
        begun.set()
        assert go_on.wait(60)

    HOOKS.before = before
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(served.client.process, ProcessRequest(1, 0, 0, 1, Streams()))
        assert begun.wait(60)
        served.server.close()
        assert not hanging.done()
        go_on.set()
        assert len(hanging.result(60).subtasks) == 2
    HOOKS.before = lambda context: None
    served.client.close()
    served.task_manager.close()


@pytest.mark.kill
def test_a_task_manager_killed_while_its_output_is_pulled_is_lost_at_once(process, tmp_path):
    at = process.stdout.readline().strip()
    world = OneTaskManager(tmp_path)
    sender = FlightUnitWriter(world.routes(at), Connections(SECRET), UnitAttempt(1, 0, 0, 0, "a"))
    sender.send(COUNT, rows(*range(2_000_000)))
    with TaskManagerClient(ExchangeRoute(0, 1, at), SECRET) as client:
        client.process(ProcessRequest(1, 0, 0, 1, streams_of(sender)))
        output = client.output(1, 0, "count", 0)
        assert next(output).num_rows > 0
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        with pytest.raises(TaskManagerLost):
            list(output)


def test_a_program_is_unpickled_only_after_the_secret_was_checked(tmp_path):
    served = Served(tmp_path)
    with TaskManagerClient(served.route, new_secret()) as client, pytest.raises(TaskManagerLost):
        client.deploy(served.deployment(shipped=b"not even a pickle"))
    with pytest.raises(HoldfastError, match="Unpickling"):
        served.client.deploy(served.deployment(shipped=b"not even a pickle"))
    served.client.deploy(served.deployment(shipped=program()))
    served.close()
