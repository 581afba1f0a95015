"""A connection from a driver in waiting to the leader. Nothing is sent over it: its end shows the leader's end.

When a process dies, the kernel ends its connections at once. A connection that ends for another reason is made again.
Only a machine that answers that no process listens there any more shows the end of the leader. No data is sent, so no
authentication is needed: whoever connects learns only that the leader lives, and can change nothing.
"""

import select
import socket
from contextlib import suppress

from holdfast.ports import Endpoint, joined, listening, parted

LINKS_MAX = 16
"""Bound on the connections that a leader holds. A driver in waiting that gets no connection relies on the heartbeat
alone."""
CONNECT_S_MAX = 0.3
"""Bound in seconds on an attempt to connect, during which the driver in waiting does nothing else."""


class LinkServer:
    """The leader's side: a listening socket, and the connections that were made to it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._listener = listening(endpoint, "the leader's link", LINKS_MAX)
        self._listener.setblocking(False)
        self._held: list[socket.socket] = []
        self.address = joined(endpoint.host, self._listener.getsockname()[1])

    def tend(self) -> None:
        """Accept new connections, and drop those that have ended."""
        self._held = [each for each in self._held if not _closed_if_ended(each)]
        with suppress(BlockingIOError):
            while len(self._held) < LINKS_MAX:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._held.append(connection)

    def close(self) -> None:
        for each in (self._listener, *self._held):
            each.close()


class LeaderLink:
    """A driver's connection to the leader. Made by `connect`."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self.address = address
        self._connection = connection

    def wait_for_end(self, seconds: float) -> bool:
        """Wait up to `seconds`; return True as soon as the connection has ended."""
        select.select([self._connection], [], [], seconds)
        return has_ended(self._connection)

    def close(self) -> None:
        self._connection.close()


class NobodyListens(Exception):
    """The machine answers, but no process listens at that address."""


def connect(address: str) -> LeaderLink | None:
    """Connect to a leader; None if that is not possible. Raises `NobodyListens`."""
    try:
        connection = socket.create_connection(parted(address), CONNECT_S_MAX)
    except ConnectionRefusedError as error:
        raise NobodyListens(address) from error
    except (OSError, ValueError):
        return None
    connection.setblocking(False)
    return LeaderLink(connection, address)


def has_ended(connection: socket.socket) -> bool:
    """True if the other side has ended a connection, over which nothing is ever sent."""
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _closed_if_ended(connection: socket.socket) -> bool:
    if not has_ended(connection):
        return False
    connection.close()
    return True
