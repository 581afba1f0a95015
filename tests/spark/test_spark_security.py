"""A running job on Spark lets in nobody without its secret, and listens on no other address than Spark's."""

import msgspec
import psutil
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from spark_kit import new_job, newest
from test_spark_streams import numbers

import holdfast as hf
from holdfast.taskmanager.security import connect, new_secret
from waiting import until

ACTIONS = [
    *("deploy", "process", "commit", "undo", "release", "cut", "complete", "abort_checkpoint", "copy"),
    *("stop", "await_end", "register", "heartbeat", "acknowledge", "decline", "unknown"),
]


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    found = process.net_connections(kind="tcp")
    listening = [each.laddr for each in found if each.status == psutil.CONN_LISTEN]
    # gRPC listens on IPv4 addresses as IPv6 writes them.
    return {(address.ip.removeprefix("::ffff:"), address.port) for address in listening}


@pytest.fixture
def running(spark, tmp_path):
    """(query, addresses of the JobMaster and of the TaskManagers, sink)."""
    before = listening(psutil.Process())
    job, sink = new_job(spark, tmp_path, task_managers=2), hf.MemorySink()
    numbers(job, 80).key_by("k").aggregate(n=hf.count()).write(sink)
    query = job.start()
    job_master = query._master.parts.cluster._task_manager.job_master
    # Beside it there is the port to which drivers in waiting connect; nothing is sent over those connections.
    opened = {f"{host}:{port}" for host, port in listening(psutil.Process()) - before}
    assert len(opened) == 2 and job_master.partition("://")[2] in opened
    yield query, [job_master, *(each["address"] for each in query.taskManagers)], sink
    query.stop()


def drain(stream):
    return list(stream)


def put(client, options):
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"x"), pa.schema([("k", pa.int64())]), options)
    writer.write_batch(pa.record_batch([[1]], schema=pa.schema([("k", pa.int64())])))
    writer.close()


def exchange(client, options):
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"x"), options)
    writer.begin(pa.schema([("k", pa.int64())]))
    writer.done_writing()
    return reader.read_all()


CALLS = {
    **{
        f"action {name}": lambda client, options, name=name: drain(
            client.do_action((name, msgspec.msgpack.encode([1, []])), options)
        )
        for name in ACTIONS
    },
    "put": put,
    "get": lambda client, options: client.do_get(flight.Ticket(b"x"), options).read_all(),
    "exchange": exchange,
    "list": lambda client, options: drain(client.list_flights(b"", options)),
    "list actions": lambda client, options: drain(client.list_actions(options)),
    "info": lambda client, options: client.get_flight_info(flight.FlightDescriptor.for_path("x"), options),
    "schema": lambda client, options: client.get_schema(flight.FlightDescriptor.for_path("x"), options),
}
REFUSED = "failed to connect to all addresses|Could not finish writing before closing|Socket closed"
STRANGERS = {
    "without TLS": lambda address: flight.FlightClient(address.replace("+tls", "")),
    "without a certificate": lambda address: flight.FlightClient(address, disable_server_verification=True),
    "with another job's secret": lambda address: connect(address, new_secret()),
}


def test_every_call_without_the_secret_is_refused_and_changes_nothing(running):
    query, addresses, sink = running
    assert len(addresses) == 3
    for address in addresses:
        for given, stranger in STRANGERS.items():
            with stranger(address) as client:
                options = flight.FlightCallOptions(timeout=20)
                for name, call in CALLS.items():
                    with pytest.raises((flight.FlightError, OSError, pa.ArrowException), match=REFUSED):
                        call(client, options)
                        pytest.fail(f"{name} {given} was let in by {address}")
    query.processAllAvailable()
    assert newest(sink) == dict.fromkeys(range(8), 10)
    assert query.restarts == [] and query.isActive


def test_servers_listen_on_the_address_that_spark_uses_alone_and_until_the_query_ends(spark, running):
    query, addresses, _ = running
    host = spark.sparkContext.getConf().get("spark.driver.host")
    ports = {int(address.rpartition(":")[2]) for address in addresses}
    assert servers_at(ports) == {(host, port) for port in ports}
    query.stop()
    until(lambda: not servers_at(ports))


def servers_at(ports: set[int]) -> set[tuple[str, int]]:
    """Return the addresses with those ports at which this process and its children listen."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {(host, port) for process in processes for host, port in listening_of(process) if port in ports}


def listening_of(process: psutil.Process) -> set[tuple[str, int]]:
    try:
        return listening(process)
    except psutil.NoSuchProcess:
        return set()


def test_the_secret_is_neither_stored_nor_shown_and_no_part_of_it_names_a_spark_job(spark, running, tmp_path):
    query, _, _ = running
    query.processAllAvailable()
    secret = query._master.parts.cluster._secret
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    groups = [jobs.apply(index).jobGroup() for index in range(jobs.size())]
    names = [group.get() for group in groups if group.isDefined() and group.get().startswith("holdfast-test-")]
    assert names
    for start in range(len(secret) - 7):
        assert not any(secret[start : start + 8] in name for name in names)
    assert len(secret) == 64
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()
    shown = [str(query.status), str(query.lastProgress), str(query.taskManagers), repr(query)]
    shown += [str(value) for value in spark.sparkContext.getConf().getAll()]
    assert not any(secret in text for text in shown)
