"""The HTTP server of the driver: threads that answer requests with a WSGI application, within bounds.

    accept ──► a thread reads the request ──► the application answers ──► closed
                  └── more than CONNECTIONS_MAX, or longer than CONNECTION_S_MAX: the oldest connection is closed

Each connection carries a single request. Somebody who holds connections open therefore takes a few threads and files of
the driver, but never all of them, and cannot keep out a reader of the page: a new connection closes the oldest.
"""

import ipaddress
import secrets
import socket
import threading
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from holdfast.errors import HoldfastError, JobRefused
from holdfast.ports import ANY, PortRange, bare, joined, listen
from holdfast.printable import logger
from holdfast.ui.pages import Application

log = logger(__name__)

LOOPBACK = "127.0.0.1"
"""The address that only programs on this machine can reach."""
STOP_S_MAX = 0.05
"""Bound in seconds on the wait in `close`. A lower value wakes the server more often."""
CONNECTIONS_MAX = 64
"""Bound on simultaneous connections, each of which has a thread. A higher value serves more readers of the page."""
CONNECTION_S_MAX = 30.0
"""Bound in seconds on the duration of a connection: its request, and its answer to a slow reader."""


class HttpServer:
    """Serves `application` on `host`:`port` from construction until `close`. `setting` names the port in errors.

    Port 0 is the first free port of `ports`.

    Raises
    ------
    JobRefused
        The port is taken, or the address does not belong to this machine.
    """

    def __init__(self, application: Application, host: str, port: int, setting: str, ports: PortRange = ANY) -> None:
        host = bare(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class OfFamily(_Server):
            address_family = family

        try:
            among = (port, port) if port else ports
            self._server = listen(lambda each: OfFamily((host, each), _Handler), among, host, setting)
        except (OSError, HoldfastError) as error:
            raise JobRefused(
                f"{setting}={port}: nothing can listen there on {host}: {error}; give another port, or 0 for any"
            ) from error
        self._server.set_app(application)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_S_MAX,), name="holdfast-http", daemon=True
        )
        self._thread.start()
        self.url = f"http://{joined(host, self._server.server_port)}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def is_loopback(host: str) -> bool:
    """Return True if only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """Make a token that cannot be guessed, for a page that other machines can reach."""
    return secrets.token_urlsafe(24)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    # Connections that may wait to be accepted. A browser opens several at once. With socketserver's default of five,
    # the system would reset some of them while the driver is busy.
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        self._since_s: dict[socket.socket, float] = {}
        """The connections that are open, oldest first, with the time at which each was accepted."""
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Pass an accepted connection to a thread. If there are too many, the oldest connection is closed first."""
        with self._lock:
            for oldest in list(self._since_s)[: max(0, len(self._since_s) - CONNECTIONS_MAX + 1)]:
                self._end(oldest)
            self._since_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections that took too long. The serving loop calls this between requests, every `STOP_S_MAX`."""
        with self._lock:
            for connection, since_s in list(self._since_s.items()):
                if time.monotonic() - since_s < CONNECTION_S_MAX:
                    return
                self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """Wake the thread of a connection: its next read or write sees the end, and the thread closes the socket."""
        self._since_s.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a connection. Strangers can provoke it, so it is no warning, and is not printed to stderr."""
        log.debug("a request from %s failed", client_address[0], exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_S_MAX

    def log_message(self, format: str, *arguments: object) -> None:
        """Log a request without its query, which may contain a token."""
        line = (format % arguments).encode("unicode_escape").decode()
        log.debug("%s %s", self.address_string(), line.partition("?")[0])

    def get_stderr(self) -> Any:
        """Return the stream for the application's errors: the log, since standard error belongs to the user."""
        return _ErrorLog()

    def address_string(self) -> str:
        """Return the client's address, without a lookup of its name."""
        return str(self.client_address[0])


class _ErrorLog:
    """A text stream whose lines go to the log."""

    def write(self, text: str) -> None:
        if text.strip():
            log.debug("%s", text.rstrip())

    def flush(self) -> None:
        """Do nothing, since nothing is buffered."""
