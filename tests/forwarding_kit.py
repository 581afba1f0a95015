"""A translation of addresses: connections to an address are passed on to another, at the same port."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def forwarded(port: int, outside: str, inside: str) -> Iterator[Callable[[], int]]:
    """Pass connections on from `outside` to `inside`; gives a function that counts them."""
    listener = socket.create_server((outside, port))
    counted: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                counted.append(near)
                try:
                    far = socket.create_connection((inside, port))
                except OSError:
                    near.close()
                    continue
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=pass_on, args=(source, target), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield lambda: len(counted)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def pass_on(source: socket.socket, target: socket.socket) -> None:
    with source, target, suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


def free_ports(count: int) -> int:
    """Return the first of so many ports in a row that are free."""
    for first in range(20_000, 32_000, count):
        with suppress(OSError):
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
            return first
    raise AssertionError("no free ports")
