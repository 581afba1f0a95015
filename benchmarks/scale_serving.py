"""The process of the stand-ins (`scale_stand_ins`): takes calls over sockets, or over Flight as in a real job.

    sockets  a thread answers all calls, and works off checkpoints while none waits
    flight   Flight's threads answer in turn; a thread works off checkpoints

A message on a socket is its length in four bytes, and that many bytes. A call begins with a byte for its name.
"""

import contextlib
import multiprocessing
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import cloudpickle
import msgspec

from benchmarks.scale_stand_ins import StandIns
from holdfast.protocol.taskmanager import Acknowledgement
from holdfast.taskmanager.actions import ActionServer
from holdfast.taskmanager.jobmaster_client import JobMasterClient
from holdfast.taskmanager.remote import address, bind

CALLS = ("run", "cancel", "split", "deploy", "process", "commit", "undo", "cut", "complete", "abort_checkpoint")
HOST = "127.0.0.1"
TAKEN, WANTED_WHOLE = b"\1", b"\0"
"""The driver's answers to an acknowledgement."""

_length = struct.Struct(">I")


@dataclass(frozen=True)
class Place:
    """The facts that the process of the stand-ins is given at its start."""

    program: bytes
    epoch: int
    folder: str
    """Holds the manifests, and the socket."""
    secret: str
    job_master: str
    """The driver's Flight address; empty: sockets carry all calls."""

    @property
    def socket(self) -> str:
        return f"{self.folder}/socket"


def start(place: Place) -> tuple[Any, str]:
    """Start the process; returns it, and the address at which it serves."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(place, theirs), daemon=True)
    process.start()
    return process, ours.recv()


def _main(place: Place, started: Any) -> None:
    (_serve_flight if place.job_master else _serve_sockets)(place, started)


# --- sockets ----------------------------------------------------------------------------------------------------------


class Connection:
    """A side of a socket that carries messages. `spent_s` is the processor time that carrying took on this side."""

    def __init__(self, carrier: socket.socket) -> None:
        self.carrier = carrier
        self.spent_s = 0.0
        self._incoming = carrier.makefile("rb")

    @classmethod
    def to(cls, path: str) -> Self:
        made = socket.socket(socket.AF_UNIX)
        made.connect(path)
        return cls(made)

    def send(self, message: bytes) -> None:
        began_s = time.thread_time()
        self.carrier.sendall(_length.pack(len(message)) + message)
        self.spent_s += time.thread_time() - began_s

    def receive(self) -> bytes:
        """The next message. Raises `EOFError` if the other side has ended."""
        began_s = time.thread_time()
        head = self._incoming.read(_length.size)
        if len(head) < _length.size:
            raise EOFError
        found = self._incoming.read(_length.unpack(head)[0])
        self.spent_s += time.thread_time() - began_s
        return found


def _serve_sockets(place: Place, started: Any) -> None:
    """The first connection takes acknowledgements to the driver, all others bring calls."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place.socket)
    listening.listen(1000)
    started.send(place.socket)
    to_driver = Connection(listening.accept()[0])

    def acknowledge(acknowledgement: Acknowledgement) -> bool:
        to_driver.send(msgspec.msgpack.encode(acknowledgement))
        return to_driver.receive() == TAKEN

    stand_ins = StandIns(cloudpickle.loads(place.program), place.epoch, Path(place.folder), acknowledge)
    looking = selectors.DefaultSelector()
    looking.register(listening, selectors.EVENT_READ)
    driver = multiprocessing.parent_process()
    assert driver is not None
    looking.register(driver.sentinel, selectors.EVENT_READ)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            for key, _ in looking.select(0 if stand_ins.later else None):
                if key.fileobj == driver.sentinel:
                    return
                if key.data is None:
                    made = Connection(listening.accept()[0])
                    looking.register(made.carrier, selectors.EVENT_READ, made)
                else:
                    _answer(stand_ins, looking, key.data)
            if stand_ins.later:
                stand_ins.later.popleft()()


def _answer(stand_ins: StandIns, looking: selectors.BaseSelector, connection: Connection) -> None:
    try:
        message = connection.receive()
        for answer in stand_ins.answer(CALLS[message[0]], message[1:]):
            connection.send(answer)
    except (EOFError, ConnectionError):
        looking.unregister(connection.carrier)
        connection.carrier.close()


# --- Flight -----------------------------------------------------------------------------------------------------------


class _StandInServer(ActionServer):
    """Serves all stand-ins at a common address; the driver has a connection to it for each, as in a real job."""

    def __init__(self, stand_ins: StandIns, secret: str, location: str) -> None:
        self._stand_ins = stand_ins
        self._turn = threading.Lock()
        super().__init__("stand-ins", {}, secret, location)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        # A sender answers at once that it has taken an order, before the results.
        accepted = [msgspec.msgpack.encode(None)] if action.type == "run" else []
        with self._turn:
            return accepted + self._stand_ins.answer(action.type, action.body.to_pybytes())


def _serve_flight(place: Place, started: Any) -> None:
    client = JobMasterClient(place.job_master, place.secret)
    stand_ins = StandIns(cloudpickle.loads(place.program), place.epoch, Path(place.folder), client.acknowledge)
    server = bind(lambda location: _StandInServer(stand_ins, place.secret, location), HOST, None, "stand-ins")
    started.send(address(HOST, server.port))
    driver = multiprocessing.parent_process()
    while driver is not None and driver.is_alive():
        if stand_ins.later:
            stand_ins.later.popleft()()
        else:
            time.sleep(0.001)
