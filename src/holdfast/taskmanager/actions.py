"""A Flight server of actions: the common part of JobMaster, TaskManagers and senders as servers.

Only processes that know the job's secret can connect (`security.py`). An action's body names the incarnation that the
call is meant for, and its arguments. The answer is a single value, or a stream of values, each sent as soon as it is
there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow.flight as flight

from holdfast.errors import StaleCall
from holdfast.ids import Incarnation, ProcessId
from holdfast.taskmanager.remote import CallBody, serving
from holdfast.taskmanager.security import server_options
from holdfast.taskmanager.strangers import StrangerGuard

Handler = Callable[[bytes], Any]
"""Function that answers a call, given the bytes of its arguments."""


class Streamed:
    """Wraps a handler's answer that consists of several values."""

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = values


class ActionServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves `actions` from construction on. Without a `process` it does not look at incarnations."""

    def __init__(
        self, name: str, actions: Mapping[str, Handler], secret: str, location: str, process: ProcessId | None = None
    ) -> None:
        self._name = name
        self._actions = actions
        self._process = process
        super().__init__(location, **server_options(secret))
        self.strangers = StrangerGuard(self.port)

    def shutdown(self) -> None:
        """End the server; waits for calls under way."""
        self.strangers.close()
        super().shutdown()

    def do_action(self, context: Any, action: Any) -> Iterable[bytes]:
        self.strangers.know(context)
        with serving(f"{self._name}: {action.type}"):
            handler = self._actions.get(action.type)
            if handler is None:
                raise flight.FlightServerError(f"no action {action.type!r}; known: {', '.join(sorted(self._actions))}")
            call = msgspec.msgpack.decode(action.body.to_pybytes(), type=CallBody)
            self.check_incarnation(call.incarnation)
            answer = handler(bytes(call.arguments))
            return self._stream(action.type, answer) if isinstance(answer, Streamed) else [_encode(answer)]

    def _stream(self, action: str, answer: Streamed) -> Iterator[bytes]:
        with serving(f"{self._name}: {action}"):
            for value in answer.values:
                yield _encode(value)

    def check_incarnation(self, incarnation: Incarnation) -> None:
        """Raises `StaleCall` for a call that is meant for another incarnation."""
        if self._process is not None and incarnation != self._process.incarnation:
            raise StaleCall(
                f"{self._name}: the call is for incarnation {incarnation}, this is incarnation "
                f"{self._process.incarnation}"
            )


_encode = msgspec.msgpack.encode
