"""Connections to a Flight port without the job's secret: they end, and calls of the job go on."""

import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow.flight as flight
import pytest

from holdfast.ids import Incarnation
from holdfast.taskmanager import security, strangers
from holdfast.taskmanager.actions import ActionServer
from holdfast.taskmanager.remote import CallBody, address
from holdfast.taskmanager.strangers import LOOKS_MAX, StrangerGuard, connections_to, peer_of
from waiting import until

SECRET = security.new_secret()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ActionServer]:
    monkeypatch.setattr(strangers, "LOOK_S", 3600.0)  # the tests look themselves
    made = ActionServer("test", {"echo": lambda body: 7}, SECRET, address("127.0.0.1", 0))
    yield made
    made.shutdown()


@pytest.fixture
def stranger(server: ActionServer) -> Iterator[Callable[[], socket.socket]]:
    with ExitStack() as held:

        def connect() -> socket.socket:
            made = held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            until(lambda: made.getsockname() in peers(server))
            return made

        yield connect


def peers(server: ActionServer) -> list[Any]:
    found = connections_to(server.port)
    for each in found.values():
        each.close()
    return list(found)


def call(client: Any) -> Any:
    body = msgspec.msgpack.encode(CallBody(Incarnation(0)))
    (answer,) = client.do_action(flight.Action("echo", body))
    return msgspec.msgpack.decode(answer.body.to_pybytes())


def is_shut(connection: socket.socket) -> bool:
    connection.settimeout(5)
    try:
        while connection.recv(1000):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_connection_that_never_calls_is_shut_down_and_callers_stay(
    server: ActionServer, stranger: Callable[[], socket.socket]
) -> None:
    client = security.connect(address("127.0.0.1", server.port), SECRET)
    assert call(client) == 7
    silent = stranger()
    assert [server.strangers.look() for _ in range(LOOKS_MAX)] == [0] * LOOKS_MAX
    assert server.strangers.look() == 1 and is_shut(silent)
    until(lambda: len(peers(server)) == 1)
    (known,) = peers(server)
    assert call(client) == 7 and peers(server) == [known]


def test_of_too_many_strangers_the_oldest_are_shut_down(
    server: ActionServer, stranger: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "STRANGERS_MAX", 2)
    first = stranger()
    assert server.strangers.look() == 0
    later = [stranger() for _ in range(2)]
    assert server.strangers.look() == 1 and is_shut(first)
    until(lambda: sorted(peers(server)) == sorted(each.getsockname() for each in later))


def test_a_client_with_another_secret_is_a_stranger(server: ActionServer) -> None:
    with pytest.raises(flight.FlightError):
        call(security.connect(address("127.0.0.1", server.port), security.new_secret()))
    assert server.strangers._known == set()


def test_a_process_opens_as_many_files_as_its_hard_limit_allows() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1000), hard))
        StrangerGuard(1).close()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, strangers.FILES_MAX)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("ipv6:[::ffff:127.0.0.1]:4711", ("127.0.0.1", 4711)),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", ("fe80::1", 4711)),
    ],
)
def test_peers_are_the_same_however_they_are_written(text: str, peer: tuple[str, int]) -> None:
    guard = SimpleNamespace(_known=set())
    StrangerGuard.know(guard, SimpleNamespace(peer=lambda: text))  # type: ignore[arg-type]
    assert guard._known == {peer} == {peer_of(text)}


def test_connections_are_looked_at_one_by_one_only_where_sockets_changed_or_a_stranger_is_there(
    server: ActionServer, stranger: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.strangers.look()
    looked = []
    monkeypatch.setattr(strangers, "connections_to", lambda port: looked.append(port) or connections_to(port))
    server.strangers.look()
    assert looked == []
    stranger()
    for number in range(1, 4):
        server.strangers.look()
        assert looked == [server.port] * number
