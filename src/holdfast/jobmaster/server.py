"""The JobMaster's Flight server: registrations, heartbeats, acknowledgements and declines of TaskManagers and senders.

It also gives them the compiled kernels of its machine, and takes those that they compile.

Only processes of the job can connect (`taskmanager/security.py`). The server binds only the address it is given.
Each call is handed to the gateway, on the caller's own thread.
"""

import msgspec

from holdfast.ids import ProcessId
from holdfast.kernels.shelf import SHELF, KernelName
from holdfast.ports import Endpoint
from holdfast.protocol.taskmanager import (
    Acknowledgement,
    BaseOffer,
    Decline,
    JobMasterGateway,
    Registration,
    RestoreProgress,
)
from holdfast.storage.counted import Requests
from holdfast.taskmanager.actions import ActionServer, Handler
from holdfast.taskmanager.remote import address, bind, shut_down

_decode = msgspec.msgpack.decode


class JobMasterServer:
    """Serves `gateway` from construction until `close`."""

    def __init__(self, gateway: JobMasterGateway, secret: str, endpoint: Endpoint) -> None:
        def make(location: str) -> ActionServer:
            return ActionServer("JobMaster", _actions(gateway), secret, location)

        self._server: ActionServer = bind(make, endpoint.listens_on, endpoint.port_range, "JobMaster")
        self.port: int = self._server.port
        self.address = address(endpoint.host, self.port)

    def close(self) -> None:
        """Refuse new calls, and wait a while for calls in progress."""
        shut_down(self._server, "JobMaster")


def _actions(gateway: JobMasterGateway) -> dict[str, Handler]:
    return {
        "register": lambda body: gateway.register(_decode(body, type=Registration)),
        "heartbeat": lambda body: gateway.heartbeat(*_decode(body, type=tuple[ProcessId, Requests])),
        "acknowledge": lambda body: gateway.acknowledge(_decode(body, type=Acknowledgement)),
        "decline": lambda body: gateway.decline(_decode(body, type=Decline)),
        "offer": lambda body: gateway.offer(_decode(body, type=BaseOffer)),
        "restoring": lambda body: gateway.restoring(_decode(body, type=RestoreProgress)),
        "kernel": lambda body: _kernel(_decode(body, type=list[KernelName])),
        "keep_kernel": lambda body: SHELF.take(*_decode(body, type=tuple[KernelName, bytes])),
    }


def _kernel(names: list[KernelName]) -> tuple[int, bytes]:
    """Return the position in `names` of the first kernel that this machine has, and the kernel."""
    found = SHELF.find_first(names)
    return (-1, b"") if found is None else (names.index(found[0]), found[1])
