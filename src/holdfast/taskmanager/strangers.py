"""Connections to a Flight port that have not shown the job's secret: bounded in number and time.

gRPC waits two minutes for a handshake and accepts connections without a bound, so anyone who reaches a port could use
up all open files of its process by opening connections and sending nothing. A connection has shown the secret once one
of its calls has reached a handler (`security.py`). All other connections are strangers:

    accepted ──► a call arrives: known, left alone
         └── no call for LOOKS_MAX looks, or more than STRANGERS_MAX of them: the oldest are shut down

gRPC keeps its sockets to itself, so they are found among the process's own files.
"""

import ipaddress
import os
import resource
import socket
import stat
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from holdfast.printable import logger

log = logger(__name__)

FILES_MAX = 1 << 16
"""The number of open files up to which a process raises its soft limit, where the hard limit allows it."""
STRANGERS_MAX = 256
"""Bound on connections that have not shown the secret. A higher value takes more open files while a port is flooded."""
LOOK_S = 1.0
"""Time in seconds between two looks at the connections."""
RESTING_LOOK_S = 4.0
"""Time in seconds between two looks at connections that stay the same. A higher value finds a flood later, and costs a
quiet process less."""
LOOKS_MAX = 10
"""Bound on the looks that see a connection without a call; then it is shut down. Processes of a job connect with their
first call. The bound counts looks instead of seconds, so that a process that was suspended does not close good
connections."""
PEERS_KEPT_MAX = 1024
"""Bound on the cache of parsed peer names, since each call names its peer."""
OWN_FILES = Path("/proc/self/fd")

Peer = tuple[str, int]


class StrangerGuard:
    """Watches the connections to a port of this process until `close`."""

    def __init__(self, port: int) -> None:
        raise_file_limit()
        self._port = port
        self._known: set[Peer] = set()
        self._looks: dict[Peer, int] = {}
        """The strangers of the last look, oldest first, with the number of looks that saw each before."""
        self._sockets: frozenset[int] = frozenset()
        """The sockets of this process at the last look. If they are unchanged, and there was no stranger, there is none
        now; to inspect each socket would take a quiet process a quarter of its processor time."""
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="holdfast-strangers", daemon=True).start()

    def know(self, context: Any) -> None:
        """Note that the connection of a call has shown the secret. `context`: Flight's, of the call."""
        self._known.add(peer_of(context.peer()))

    def close(self) -> None:
        """End the watch."""
        self._closed.set()

    def _watch(self) -> None:
        pause_s = LOOK_S
        while not self._closed.wait(pause_s):
            before = self._sockets
            try:
                self.look()
                rests = self._sockets == before and not self._looks
                pause_s = min(RESTING_LOOK_S, 2 * pause_s) if rests else LOOK_S
            except Exception:
                log.exception("the connections to port %d could not be looked at; they are looked at again", self._port)

    def look(self) -> int:
        """Shut down strangers that are too old or too many; return their number."""
        sockets = own_sockets()
        if sockets == self._sockets and not self._looks:
            return 0
        self._sockets = sockets
        before = set(self._known)
        connections = connections_to(self._port)
        try:
            self._known -= before - connections.keys()
            strangers = {peer: self._looks.get(peer, 0) + 1 for peer in connections if peer not in self._known}
            self._looks = dict(sorted(strangers.items(), key=lambda each: -each[1]))
            surplus = len(strangers) - STRANGERS_MAX
            ended = [
                peer for place, (peer, looks) in enumerate(self._looks.items()) if place < surplus or looks > LOOKS_MAX
            ]
            for peer in ended:
                with suppress(OSError):
                    connections[peer].shutdown(socket.SHUT_RDWR)
        finally:
            for each in connections.values():
                each.close()
        if ended:
            log.debug("%d connections to port %d without the job's secret were shut down", len(ended), self._port)
        return len(ended)


def raise_file_limit() -> None:
    """Let this process open as many files as the machine allows, up to `FILES_MAX`, as Java does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def own_sockets() -> frozenset[int]:
    """The sockets of this process, by the numbers that the system gives each of them once."""
    found = set()
    with os.scandir(OWN_FILES) as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                status = descriptor.stat()
                if stat.S_ISSOCK(status.st_mode):
                    found.add(status.st_ino)
    return frozenset(found)


def connections_to(port: int) -> dict[Peer, socket.socket]:
    """Connections of this process that were accepted at a port, by their peer, as duplicates that the caller closes."""
    found: dict[Peer, socket.socket] = {}
    for entry in list(OWN_FILES.iterdir()):
        duplicate = _accepted(int(entry.name), port)
        if duplicate is not None:
            with suppress(OSError):
                host, peer_port = duplicate.getpeername()[:2]
                if found.setdefault((_normal(host), peer_port), duplicate) is duplicate:
                    continue
            duplicate.close()  # its other end is gone, or it is a duplicate of a duplicate made here
    return found


def _accepted(descriptor: int, port: int) -> socket.socket | None:
    """A duplicate of a descriptor, if that is a TCP socket bound to the port; the original may be closed meanwhile."""
    try:
        if not str((OWN_FILES / str(descriptor)).readlink()).startswith("socket:"):
            return None
        made = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    with suppress(OSError):  # the other end may have closed it
        if made.family in (socket.AF_INET, socket.AF_INET6) and made.getsockname()[1] == port:
            return made
    made.close()
    return None


@lru_cache(PEERS_KEPT_MAX)
def peer_of(text: str) -> Peer:
    """The peer that gRPC names, for example `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return _normal(host.strip("[]")), int(port)


def _normal(host: str) -> str:
    """The usual form of an address; a socket of both families shows addresses of IPv4 as addresses of IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
