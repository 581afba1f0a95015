"""The JobMaster's Flight server: registrations, heartbeats, acknowledgements and declines of TaskManagers and senders.

Every call carries the job's secret. The server binds the host it is given and nothing else. It decides
nothing: each call is handed to the gateway it was made with, on the caller's own thread.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow.flight as flight

from holdfast.ids import ProcessId
from holdfast.taskmanager.protocol import Acknowledgement, Decline, JobMasterGateway, Registration
from holdfast.taskmanager.remote import Call, address, bind, serving, shut_down
from holdfast.taskmanager.security import SECRET_MIDDLEWARE, SecretServerFactory

_decode = msgspec.msgpack.decode


class JobMasterServer:
    """Serves `gateway` from construction until `close`."""

    def __init__(
        self, gateway: JobMasterGateway, secret: str, host: str, port_range: Sequence[int] | None = None
    ) -> None:
        def make(location: str) -> _Server:
            return _Server(gateway, secret, location)

        self._server: _Server = bind(make, host, port_range, "JobMaster")
        self.port: int = self._server.port
        self.address = address(host, self.port)

    def close(self) -> None:
        """Refuse new calls, and wait a while for those under way."""
        shut_down(self._server, "JobMaster")


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self, gateway: JobMasterGateway, secret: str, location: str) -> None:
        self._handlers = _handlers(gateway)
        super().__init__(location, middleware={SECRET_MIDDLEWARE: SecretServerFactory(secret)})

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        with serving(f"JobMaster: {action.type}"):
            handler = self._handlers.get(action.type)
            if handler is None:
                raise flight.FlightServerError(f"no action {action.type!r}; known: {', '.join(sorted(self._handlers))}")
            call = _decode(action.body.to_pybytes(), type=Call)
            return [msgspec.msgpack.encode(handler(bytes(call.arguments)))]


def _handlers(gateway: JobMasterGateway) -> dict[str, Callable[[bytes], bool]]:
    return {
        "register": lambda body: gateway.register(_decode(body, type=Registration)),
        "heartbeat": lambda body: gateway.heartbeat(_decode(body, type=ProcessId)),
        "acknowledge": lambda body: gateway.acknowledge(_decode(body, type=Acknowledgement)),
        "decline": lambda body: gateway.decline(_decode(body, type=Decline)),
    }
