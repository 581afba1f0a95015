"""A sender over Flight: its server, and the JobMaster's side of it.

The server binds the host it is given and nothing else. Only processes that know the job's secret can connect; every
call names the incarnation that it is meant for.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow.flight as flight

from holdfast.errors import HoldfastError, SenderLost
from holdfast.exchange.resident import Order, ResidentSender
from holdfast.exchange.task import UnitResult
from holdfast.ids import ProcessId
from holdfast.ports import PortRange
from holdfast.storage.copying import CopyOrder
from holdfast.taskmanager.actions import ActionServer, Handler, Streamed
from holdfast.taskmanager.client import ProcessClient
from holdfast.taskmanager.executor_signs import await_end
from holdfast.taskmanager.remote import bind, calling, shut_down

SPLIT_S_MAX = 2.0
"""Seconds that a hanging sender may take to name the split that it reads. A process whose interpreter hangs does not
answer at all."""

_decode = msgspec.msgpack.decode


class ResidentServer:
    """Serves `sender` from construction until `close`."""

    def __init__(
        self,
        sender: ResidentSender,
        process: ProcessId,
        secret: str,
        host: str,
        port_range: PortRange | None = None,
    ) -> None:
        def make(location: str) -> ActionServer:
            return ActionServer(process.name, _actions(sender), secret, location, process)

        self._name = process.name
        self._server: ActionServer = bind(make, host, port_range, self._name)
        self.port: int = self._server.port

    def close(self) -> None:
        """Refuse new calls, and wait a while for calls in progress."""
        shut_down(self._server, self._name)


def _actions(sender: ResidentSender) -> dict[str, Handler]:
    return {
        "run": lambda body: Streamed(_accepted(sender.run(_decode(body, type=Order)))),
        "cancel": lambda body: sender.cancel(_decode(body, type=int)),
        "copy": lambda body: sender.copy(_decode(body, type=CopyOrder)),
        "split": lambda body: sender.split(_decode(body, type=int)),
        "stop": lambda body: sender.stop(),
        "await_end": lambda body: await_end(sender.stopped, _decode(body, type=bool)),
    }


def _accepted(results: Iterator[UnitResult]) -> Iterator[UnitResult | None]:
    """Yield a value at once, before the results: Flight's `do_action` does not return before the first value is there,
    and the JobMaster has to begin the orders of the other senders meanwhile."""
    yield None
    yield from results


class ResidentClient(ProcessClient):
    """`SenderGateway` over Flight. Safe for use from several threads."""

    def run(self, order: Order) -> Iterator[UnitResult]:
        with calling(self._lost):
            answer = self._flight.do_action(("run", self._body(order)), self._options)
        return self._reports(answer)

    def _reports(self, answer: Iterator[Any]) -> Iterator[UnitResult]:
        with calling(self._lost):
            next(answer)
            for result in answer:
                yield _decode(result.body.to_pybytes(), type=UnitResult)

    def cancel(self, attempt: int) -> None:
        self._call("cancel", attempt, type(None))

    def split(self, attempt: int) -> str:
        options = flight.FlightCallOptions(timeout=SPLIT_S_MAX)
        with calling(self._lost):
            [answer] = self._flight.do_action(("split", self._body(attempt)), options)
            return _decode(answer.body.to_pybytes(), type=str)

    def _lost(self, reason: str) -> HoldfastError:
        return SenderLost(f"{self.peer} at {self.address} cannot be reached: {reason}")
