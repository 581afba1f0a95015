"""The server's side of `connect_epochs`: the function that Spark Connect calls for each epoch, in a process of its own.

This module is sent by value, and so imports only the standard library: the server's machine needs no Holdfast.
"""

import json
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONNECT_S_MAX = 10.0
"""Bound in seconds on a connection and its handshake."""
LINE_BYTES_MAX = 64 << 20
"""Bound on a message: some 200 bytes for each part of an epoch."""
SILENCE_S, ASKED_MAX = 10, 3
"""Seconds of silence after which the system asks whether the other machine is still there, and the number of questions
without an answer after which the connection breaks. A higher value notices later that the machine is gone."""


@dataclass(frozen=True)
class ProgramAddress:
    """The address at which the program takes calls, and the PEM texts that both sides show and require."""

    address: tuple[str, int]
    name: str
    authority: bytes
    certificate: bytes


class Forward:
    """The function for `foreachBatch`: has the program decide, and tasks store the rows.

    `storing` is pickled, for tasks only: it makes the function that stores parts.
    """

    def __init__(self, program: ProgramAddress, storing: bytes, columns: str, settings: dict[str, str]) -> None:
        self._program = program
        self._storing = storing
        self._columns = columns
        self._settings = settings

    def __call__(self, rows: Any, batch_id: int) -> None:
        with connected(self._program) as line, CallMessages(line) as messages:
            messages.send(batch_id)
            answer = messages.receive()
            if "store" in answer:
                for name, value in self._settings.items():
                    rows.sparkSession.conf.set(name, value)
                stored = rows.mapInArrow(storing(self._storing, answer["store"]), self._columns).collect()
                messages.send([row.asDict() for row in stored])
                answer = messages.receive()
            if "stored" not in answer:
                raise RuntimeError(answer.get("failed"))


def storing(pickled: bytes, words: list[Any]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Make the function of a task that stores a partition."""

    def store(batches: Iterable[Any]) -> Iterator[Any]:
        import cloudpickle  # executors have it, with Holdfast

        yield from cloudpickle.loads(pickled)(*words)(batches)

    return store


def connected(program: ProgramAddress) -> ssl.SSLSocket:
    """Connect to the program. Raises `RuntimeError` if it cannot be reached."""
    host, port = program.address
    try:
        line = socket.create_connection(program.address, CONNECT_S_MAX)
        watched = context_of(program, is_server=False).wrap_socket(line, server_hostname=program.name)
    except OSError as error:
        raise RuntimeError(
            f"Spark's server does not reach the program that runs the job, at {host} port {port} ({error}): the "
            "program has ended, or the network does not let the server connect to it"
        ) from None
    watch(watched)
    return watched


def watch(line: socket.socket) -> None:
    """Wait for the other side without a bound from now on, while the system notices that its machine is gone."""
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    counts = {"TCP_KEEPIDLE": SILENCE_S, "TCP_KEEPINTVL": SILENCE_S, "TCP_KEEPCNT": ASKED_MAX}
    for name, value in counts.items():
        if hasattr(socket, name):  # not on every system
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def context_of(program: ProgramAddress, is_server: bool) -> ssl.SSLContext:
    """Make the TLS context of a side that shows its certificate, and requires the other's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=program.authority.decode())
    with tempfile.TemporaryDirectory() as folder:  # Python loads a certificate only from a file
        own = Path(folder, "own.pem")
        own.write_bytes(program.certificate)
        context.load_cert_chain(own)
    return context


class CallMessages:
    """Messages in JSON over a connection, a line each."""

    def __init__(self, line: socket.socket) -> None:
        self._file = line.makefile("rwb")

    def send(self, message: Any) -> None:
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def receive(self) -> Any:
        """Wait for a message. Raises `ConnectionError` if the other side has gone."""
        received = self._file.readline(LINE_BYTES_MAX)
        if not received.endswith(b"\n"):
            raise ConnectionError("the other side ended the call before the epoch was stored")
        return json.loads(received)

    def __enter__(self) -> "CallMessages":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
