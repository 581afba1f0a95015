"""The JobMaster as its TaskManagers and senders call it: `JobMasterGateway` over Flight.

A call without an answer raises an `OSError`: `ConnectionRefusedError` if no process listens at the address any more,
`TimeoutError` if no answer came in time, `ConnectionError` otherwise. The caller decides how to react.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow.flight as flight

from holdfast.ids import Incarnation, ProcessId
from holdfast.kernels.shelf import KernelName
from holdfast.protocol.taskmanager import Acknowledgement, BaseOffer, Decline, Registration, RestoreProgress
from holdfast.storage.counted import Requests
from holdfast.taskmanager.remote import CallBody, calling
from holdfast.taskmanager.security import connect

NO_INCARNATION = Incarnation(-1)
"""Calls about kernels concern no incarnation."""


class JobMasterClient:
    """Safe for use from several threads."""

    def __init__(self, address: str, secret: str, call_timeout_s: float = 10.0) -> None:
        self._address = address
        self._flight = connect(address, secret)
        self._options = flight.FlightCallOptions(timeout=call_timeout_s)

    def register(self, registration: Registration) -> bool:
        return bool(self._call("register", registration.process.incarnation, registration))

    def heartbeat(self, process: ProcessId, requests: Requests) -> bool:
        return bool(self._call("heartbeat", process.incarnation, (process, requests)))

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        return bool(self._call("acknowledge", acknowledgement.incarnation, acknowledgement))

    def decline(self, decline: Decline) -> bool:
        return bool(self._call("decline", decline.incarnation, decline))

    def offer(self, offer: BaseOffer) -> bool:
        return bool(self._call("offer", offer.process.incarnation, offer))

    def restoring(self, progress: RestoreProgress) -> bool:
        return bool(self._call("restoring", progress.process.incarnation, progress))

    def kernel(self, names: Sequence[KernelName]) -> tuple[int, bytes]:
        """Ask for the first of some compiled kernels that the JobMaster's machine has."""
        found: tuple[int, bytes] = self._call("kernel", NO_INCARNATION, list(names), tuple[int, bytes])
        return found

    def keep_kernel(self, name: KernelName, data: bytes) -> bool:
        """Give the JobMaster a kernel that was compiled here."""
        return bool(self._call("keep_kernel", NO_INCARNATION, (name, data)))

    def close(self) -> None:
        self._flight.close()

    def _call(self, action: str, incarnation: Incarnation, arguments: Any, answer: Any = bool) -> Any:
        body = msgspec.msgpack.encode(CallBody(incarnation, msgspec.Raw(msgspec.msgpack.encode(arguments))))
        with calling(self._unanswered):
            results = list(self._flight.do_action((action, body), self._options))
            return msgspec.msgpack.decode(results[0].body.to_pybytes(), type=answer)

    def _unanswered(self, reason: str) -> OSError:
        message = f"JobMaster at {self._address} does not answer: {reason}"
        if "refused" in reason.lower():
            return ConnectionRefusedError(message)
        if "deadline" in reason.lower() or "timed out" in reason.lower():
            return TimeoutError(message)
        return ConnectionError(message)
