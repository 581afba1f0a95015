"""The HTTP server of the driver under strangers: bounded connections, threads and times, and quiet logs."""

import logging
import socket
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.ui import server as http
from holdfast.ui.pages import TEXT, Access, answer, guarded
from holdfast.ui.server import HttpServer
from waiting import until


def hello(request: Any, start_response: Any) -> Iterable[bytes]:
    return answer(start_response, "200 OK", TEXT, b"hello")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer(guarded(hello, Access()), "127.0.0.1", 0, "ui_port")
    yield made
    made.close()


def connect(server: HttpServer) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=20)
    made.sendall(b"GET / HTTP/1.1\r\n")
    return made


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=20) as found:
        body: bytes = found.read()
    return body


def test_idle_connections_take_a_bounded_number_of_threads_and_keep_nobody_out(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 8)
    before = threading.active_count()
    with ExitStack() as held:
        connections = [held.enter_context(connect(server)) for _ in range(50)]
        until(lambda: connections[41].recv(1) == b"")  # the oldest were closed
        until(lambda: threading.active_count() - before <= 9)  # a thread ends a little after its connection
        assert fetch(server.url) == b"hello"


def test_a_connection_ends_after_a_time_however_slowly_it_sends(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTION_S_MAX", 0.2)
    slow = connect(server)
    assert slow.recv(1) == b""
    slow.close()


def test_strangers_write_nothing_to_standard_error_and_tokens_stay_out_of_the_log(
    server: HttpServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "holdfast")
    garbage = connect(server)
    garbage.sendall(b"\x00\xff: \x1b]0;owned\x07\r\n\r\n")
    garbage.close()
    assert fetch(f"{server.url}/?token=secret-token") == b"hello"
    until(lambda: any("200" in each.getMessage() or "GET /" in each.getMessage() for each in caplog.records))
    assert capfd.readouterr().err == ""
    assert "secret-token" not in caplog.text and "\x1b" not in caplog.text


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("127.0.0.1:4050", True),
        ("127.0.0.2:4050", True),
        ("localhost", True),
        ("[::1]:4050", True),
        ("driver.example:4050", True),
        ("attacker.example", False),
        ("localhost.attacker.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_requests_name_the_machine_by_its_address_or_by_a_known_name(host: str, may: bool) -> None:
    assert Access(names=("driver.example",)).may_read({"HTTP_HOST": host}) is may
