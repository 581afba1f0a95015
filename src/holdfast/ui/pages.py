"""Answers to HTTP requests, as WSGI applications: the page, its JSON, the metrics.

    GET /                  the page (one HTML file)
    GET /api/v1/<name>     JSON documents of `api.ENDPOINTS`
    GET /metrics           the metrics for Prometheus

Nothing can be changed here; `control.py` does that, if the job allows it. `guarded` decides who may read. On loopback
only requests whose `Host` is this machine are answered, so that a page of another site in the user's browser cannot
read the pages (DNS rebinding). On other addresses a token is required, in the query (`?token=…`) or as a bearer token.
"""

import hmac
import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from holdfast.observe.view import JobView
from holdfast.ui.api import ENDPOINTS

API = "/api/v1/"
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
"""The headers of every answer. The page loads nothing from other hosts, and other sites cannot embed it in a frame."""
KEPT_S = 0.2
"""Seconds for which a JSON document is reused. A higher value costs the driver less when many readers ask, and shows
older figures."""

Environment = Mapping[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Any, StartResponse], Iterable[bytes]]


@dataclass(frozen=True)
class Access:
    """Decides who may read: holders of `token`; without a token, requests that name this machine as their host.

    `names`: host names for this machine that requests may use, besides its addresses and localhost.
    """

    token: str | None = None
    names: tuple[str, ...] = ()

    def may_read(self, request: Environment) -> bool:
        if self.token is None:
            return self._names_this_machine(request.get("HTTP_HOST", ""))
        given = parse_qs(request.get("QUERY_STRING", "")).get("token", [""])[0]
        return is_token(given, self.token) or is_token(bearer(request), self.token)

    def _names_this_machine(self, host: str) -> bool:
        """Return True for an address or a known name. A rebound name of another site is neither."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in ("localhost", *self.names)
        return True

    @property
    def refusal(self) -> bytes:
        if self.token is None:
            known = " or ".join(("localhost", *self.names))
            return f"this address answers requests to an IP address or to {known} only\n".encode()
        return b"give the token that query.uiUrl names: ?token=...\n"


def is_token(given: str, token: str) -> bool:
    """Compare a token in constant time, which reveals nothing about it."""
    return hmac.compare_digest(given.encode(), token.encode())


def bearer(request: Environment) -> str:
    """Return the bearer token of a request; empty if it has none."""
    return str(request.get("HTTP_AUTHORIZATION", "")).removeprefix("Bearer ")


def guarded(application: Application, access: Access) -> Application:
    """Pass on only requests that read and that `access` allows; each answer gets `HEADERS`."""

    def answered(request: Environment, start_response: StartResponse) -> Iterable[bytes]:
        def with_headers(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*headers, *HEADERS], *more)

        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return answer(with_headers, "405 Method Not Allowed", TEXT, b"only GET is answered here\n")
        if not access.may_read(request):
            return answer(with_headers, "403 Forbidden", TEXT, access.refusal)
        return application(request, with_headers)

    return answered


class Pages:
    """A WSGI application. `view` returns the job as it is now, or None before it has started."""

    def __init__(self, view: Callable[[], JobView | None], metrics: Application) -> None:
        self._view = view
        self._metrics = metrics
        self._page = files("holdfast.ui").joinpath("page.html").read_bytes()
        self._making = threading.Lock()
        self._made: dict[str, tuple[float, bytes]] = {}

    def __call__(self, request: Environment, start_response: StartResponse) -> Iterable[bytes]:
        path = request["PATH_INFO"]
        if path == "/":
            return answer(start_response, "200 OK", HTML, self._page)
        if path == "/metrics":
            return self._metrics(request, start_response)
        if path.startswith(API) and path.removeprefix(API) in ENDPOINTS:
            return self._document(path.removeprefix(API), start_response)
        known = ", ".join(["/", "/metrics", *(API + name for name in ENDPOINTS)])
        return answer(start_response, "404 Not Found", TEXT, f"there is no such page; there are {known}\n".encode())

    def _document(self, name: str, start_response: StartResponse) -> Iterable[bytes]:
        with self._making:  # so that many readers cost no more than a single reader
            made_s, body = self._made.get(name, (0.0, b""))
            if time.monotonic() - made_s > KEPT_S:
                view = self._view()
                if view is None:
                    return answer(start_response, "503 Service Unavailable", JSON, b'{"error": "the job is starting"}')
                body = msgspec.json.encode(ENDPOINTS[name](view))
                self._made[name] = time.monotonic(), body
        return answer(start_response, "200 OK", JSON, body)


def answer(start_response: StartResponse, status: str, kind: str, body: bytes) -> Iterable[bytes]:
    """Start an answer, and return its body."""
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]
