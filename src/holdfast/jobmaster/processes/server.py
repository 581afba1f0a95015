"""The JobMaster's Flight server: registrations, heartbeats, acknowledgements and declines of TaskManagers and senders.

Only processes of the job can connect (`taskmanager/security.py`). The server binds only the given host. Each call is
handed to the gateway, on the caller's own thread.
"""

from collections.abc import Sequence

import msgspec

from holdfast.ids import ProcessId
from holdfast.protocol.taskmanager import Acknowledgement, Decline, JobMasterGateway, Registration
from holdfast.taskmanager.actions import ActionServer, Handler
from holdfast.taskmanager.remote import address, bind, shut_down

_decode = msgspec.msgpack.decode


class JobMasterServer:
    """Serves `gateway` from construction until `close`."""

    def __init__(
        self, gateway: JobMasterGateway, secret: str, host: str, port_range: Sequence[int] | None = None
    ) -> None:
        def make(location: str) -> ActionServer:
            return ActionServer("JobMaster", _actions(gateway), secret, location)

        self._server: ActionServer = bind(make, host, port_range, "JobMaster")
        self.port: int = self._server.port
        self.address = address(host, self.port)

    def close(self) -> None:
        """Refuse new calls, and wait a while for calls in progress."""
        shut_down(self._server, "JobMaster")


def _actions(gateway: JobMasterGateway) -> dict[str, Handler]:
    return {
        "register": lambda body: gateway.register(_decode(body, type=Registration)),
        "heartbeat": lambda body: gateway.heartbeat(_decode(body, type=ProcessId)),
        "acknowledge": lambda body: gateway.acknowledge(_decode(body, type=Acknowledgement)),
        "decline": lambda body: gateway.decline(_decode(body, type=Decline)),
    }
