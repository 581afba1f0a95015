"""The HTTP server of the driver: threads that answer requests with a WSGI application."""

import ipaddress
import logging
import secrets
import socket
import threading
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from holdfast.errors import JobRefused
from holdfast.ui.pages import Application

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
"""Address that only programs on this machine can reach."""
STOP_S_MAX = 0.05
"""Bound in seconds on the wait of `close`; a lower value wakes the server more often."""
REQUEST_S_MAX = 30.0
"""Bound in seconds on how long a connection may be idle; a higher value keeps threads for slow clients."""


class HttpServer:
    """Serves `application` on `host`:`port` from construction until `close`. `setting` names the port in errors.

    Raises
    ------
    JobRefused
        The port is taken, or the address does not belong to this machine.
    """

    def __init__(self, application: Application, host: str, port: int, setting: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class OfFamily(_Server):
            address_family = family

        try:
            self._server = OfFamily((host, port), _Handler)
        except OSError as error:
            raise JobRefused(
                f"{setting}={port}: nothing can listen there on {host}: {error}; give another port, or 0 for any"
            ) from error
        self._server.set_app(application)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_S_MAX,), name="holdfast-http", daemon=True
        )
        self._thread.start()
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def is_loopback(host: str) -> bool:
    """True if only programs on this machine can reach an address."""
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
    # Connections that may wait to be accepted. A browser opens several at once, and with socketserver's five the system
    # resets some of them while the driver is busy.
    request_queue_size = 128


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug("%s %s", self.address_string(), format % arguments)

    def address_string(self) -> str:
        """Return the client's address as it is, without asking for its name."""
        return str(self.client_address[0])
