"""Addresses at which a job's processes listen: a host name for others, an address to bind to, and a range of ports.

If addresses are translated (NAT), others reach a driver at another address than its machine has, so both are given.
Ports are not translated: others reach a process at the same port at which it listens.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from holdfast.errors import HoldfastError, SettingsError

PortRange = tuple[int, int]
"""First and last port, both included."""
ANY: PortRange = (0, 0)
"""The range that means any free port."""

T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """Address of a process that runs servers, as the process itself and as others see it."""

    host: str
    """Name or address at which others reach this process."""
    bind_host: str = ""
    """Address of this machine on which the process listens; empty: `host`."""
    port_range: PortRange = ANY

    @property
    def listens_on(self) -> str:
        return self.bind_host or self.host


def bare(host: str) -> str:
    """Return a host without the brackets that surround an IPv6 address in URLs and in Spark's settings."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def joined(host: str, port: int) -> str:
    """Join a host (a name, an IPv4 or an IPv6 address) and a port, as URLs have them."""
    host = bare(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parted(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of an address or URL. Raises `ValueError`."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return bare(host), int(port)


def check_port_range(ports: object) -> None:
    """Raise `SettingsError` if the value is not a `port_range`."""
    allowed = "two whole numbers, first <= last, from 1 to 65535, or (0, 0) for any free port"
    try:
        first, last = cast(PortRange, ports)
        fits = (first, last) == ANY or 1 <= first <= last <= 65535
    except (TypeError, ValueError) as error:
        raise SettingsError(f"port_range={ports!r} is not understood; allowed: {allowed}") from error
    if not fits:
        raise SettingsError(f"port_range={ports!r} is not allowed; allowed: {allowed}")


def listen(
    make: Callable[[int], T],
    ports: PortRange | None,
    host: str,
    what: str,
    failures: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """Make a server at the first free port of a range. `make` raises one of `failures` if a port is taken.

    Raises
    ------
    HoldfastError
        No port of the range is free.
    """
    if ports is None or ports == ANY:
        return make(0)
    reason: object = "the range is empty"
    for port in range(ports[0], ports[1] + 1):
        try:
            return make(port)
        except failures as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    raise HoldfastError(f"{what}: no free port from {ports[0]} to {ports[1]} on {host} ({reason}); widen port_range")


def listening(endpoint: Endpoint, what: str, backlog: int) -> socket.socket:
    """Listen at an endpoint, for connections without Flight. Raises as `listen` does, and `OSError`."""
    host = bare(endpoint.listens_on)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET

    def make(port: int) -> socket.socket:
        return socket.create_server((host, port), family=family, backlog=backlog)

    return listen(make, endpoint.port_range, host, what)
