"""Errors and bodies on a Flight connection: errors travel by the name of their class, bodies as msgpack.

An error of `holdfast.errors` raised by a handler is raised again by the caller as the same class with the same message.
Any other error of a handler becomes `HoldfastError`, or `StorageError` if it reports a full disk. If a connection does
not answer, the caller's function `lost` makes the error. Nothing is unpickled here.
"""

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast import errors
from holdfast.errors import USER_ERRORS, HoldfastError, class_abroad, described
from holdfast.ids import Incarnation
from holdfast.ports import PortRange, joined, listen
from holdfast.printable import logger

_log = logger(__name__)

MESSAGE_CHARACTERS_MAX = 2000
"""Bound on the message of an error: gRPC carries errors in trailers of at most 8 KB."""

SHUTDOWN_S_MAX = 5.0

CALLS_END_S_MAX = 2.0
"""Bound in seconds on the wait of a program's end for calls that have no answer yet. A call to a process that neither
answers nor ends holds the end up for so long."""


class RemoteError(msgspec.Struct, frozen=True):
    """An error as it crosses the connection."""

    error: str
    message: str


class CallBody(msgspec.Struct, frozen=True):
    """The body of an action: the incarnation for which it is meant, and the arguments."""

    incarnation: Incarnation
    arguments: msgspec.Raw = msgspec.Raw(b"\x90")


def address(host: str, port: int) -> str:
    """The Flight address of a host (a name, an IPv4 or an IPv6 address) and port."""
    return f"grpc+tls://{joined(host, port)}"


@contextmanager
def serving(what: str) -> Iterator[None]:
    """Turn the errors of the handler inside into Flight errors that name the class."""
    try:
        yield
    except HoldfastError as error:
        raise _flight_error(type(error).__name__, str(error)) from error
    except flight.FlightError:
        raise
    except USER_ERRORS as error:
        _log.exception("%s failed", what)
        raise _flight_error(class_abroad(error) or "HoldfastError", f"{what} failed: {described(error)}") from error


def _flight_error(name: str, message: str) -> Exception:
    if len(message) > MESSAGE_CHARACTERS_MAX:
        half = MESSAGE_CHARACTERS_MAX // 2
        message = f"{message[:half]} […] {message[-half:]}"
    body = msgspec.msgpack.encode(RemoteError(name, message))
    error: Exception = flight.FlightServerError(message[:200], extra_info=body)
    return error


LostError = Callable[[str], Exception]
"""Makes the error for a connection that does not answer, from the reason."""


class RunningCalls:
    """Counts the calls of this process that have no answer yet. Thread-safe.

    A call may fail just when the program ends. PyArrow then asks an interpreter that no longer exists for its lock, and
    the process dies by a segmentation fault. So the program's end waits for the calls, and no call begins after that.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._over = False

    @contextmanager
    def one(self, lost: LostError) -> Iterator[None]:
        """Count a call while it runs. Raises the error of `lost` once the program ends."""
        with self._changed:
            if self._over:
                raise lost("the program ends")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self, seconds: float = CALLS_END_S_MAX) -> bool:
        """Let no further call begin, and wait for those that run; False if some still run after `seconds`."""
        with self._changed:
            self._over = True
            return self._changed.wait_for(lambda: self._running == 0, seconds)


_running_calls = RunningCalls()
atexit.register(_running_calls.end)


@contextmanager
def calling(lost: LostError) -> Iterator[None]:
    """Turn Flight errors of the client's call inside back into errors of `holdfast.errors`, or into those of `lost`."""
    try:
        with _running_calls.one(lost):
            yield
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        # An error that the other side sent is complete. Its Flight error would add nothing as a cause.
        raise remote_error(error, lost) from (None if getattr(error, "extra_info", b"") else error)


def remote_error(error: BaseException, lost: LostError) -> Exception:
    """The error with which a call failed."""
    body = getattr(error, "extra_info", b"")
    if not body:
        return lost(_first_line(error))
    remote = msgspec.msgpack.decode(body, type=RemoteError)
    kind = getattr(errors, remote.error, HoldfastError)
    made = kind(remote.message)
    return made if isinstance(made, HoldfastError) else HoldfastError(remote.message)


def _first_line(error: BaseException) -> str:
    text = str(error).split(". gRPC client debug context")[0].split(". Detail: ")[0]
    return text.splitlines()[0] if text else type(error).__name__


def bind(make: Callable[[str], Any], host: str, port_range: PortRange | None, what: str) -> Any:
    """Start a Flight server on `host` at the first free port of `[first, last]` (any free port without a range).

    Raises
    ------
    HoldfastError
        If no port of the range is free, naming the range.
    """
    failures = (pa.ArrowException, flight.FlightError, OSError)
    return listen(lambda port: make(address(host, port)), port_range, host, what, failures)


def shut_down(server: Any, what: str) -> None:
    """End a Flight server: no new calls; waits for running calls, but not forever.

    A call that hangs (in a user's function, or on a stream whose sender has stopped) ends only with the process.
    """
    ending = threading.Thread(target=server.shutdown, name="shutdown", daemon=True)
    ending.start()
    ending.join(SHUTDOWN_S_MAX)
    if ending.is_alive():
        _log.warning("%s: calls are still under way %.0f s after its end; they are left behind", what, SHUTDOWN_S_MAX)
