"""Answers to HTTP requests, as a WSGI application: the page, its JSON, the metrics.

    GET /                 the page (one HTML file)
    GET /api/v1/<name>    JSON documents of `api.ENDPOINTS`
    GET /metrics          the metrics for Prometheus

Nothing can be changed here. On loopback only requests whose `Host` is this machine are answered, so that a page of
another site in the user's browser cannot read along (DNS rebinding). Elsewhere a token is asked for, in the query
(`?token=…`) or as a bearer token.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

import msgspec

from holdfast.observe.view import JobView
from holdfast.ui.api import ENDPOINTS

API = "/api/v1/"
OWN_HOSTS = ("127.0.0.1", "localhost", "[::1]")
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
"""Headers of every answer. The page loads nothing from other hosts, and no other site may frame it."""

Environment = Mapping[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Any, StartResponse], Iterable[bytes]]


class Pages:
    """WSGI application. `view` gives the job as it is now, or None before it has started. Without a `token` the
    requests must name this machine as their host."""

    def __init__(self, view: Callable[[], JobView | None], metrics: Application, token: str | None) -> None:
        self._view = view
        self._metrics = metrics
        self._token = token
        self._page = files("holdfast.ui").joinpath("page.html").read_bytes()

    def __call__(self, request: Environment, start_response: StartResponse) -> Iterable[bytes]:
        if request["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", TEXT, b"only GET is answered here\n")
        if not self._may_read(request):
            return _answer(start_response, "403 Forbidden", TEXT, self._forbidden())
        path = request["PATH_INFO"]
        if path == "/":
            return _answer(start_response, "200 OK", HTML, self._page)
        if path == "/metrics":
            return self._metrics(request, start_response)
        if path.startswith(API) and path.removeprefix(API) in ENDPOINTS:
            return self._document(path.removeprefix(API), start_response)
        known = ", ".join(["/", "/metrics", *(API + name for name in ENDPOINTS)])
        return _answer(start_response, "404 Not Found", TEXT, f"{path} is not here; there are {known}\n".encode())

    def _document(self, name: str, start_response: StartResponse) -> Iterable[bytes]:
        view = self._view()
        if view is None:
            return _answer(start_response, "503 Service Unavailable", JSON, b'{"error": "the job is starting"}')
        return _answer(start_response, "200 OK", JSON, msgspec.json.encode(ENDPOINTS[name](view)))

    def _may_read(self, request: Environment) -> bool:
        if self._token is None:
            host = request.get("HTTP_HOST", "")
            return host.rpartition(":")[0] in OWN_HOSTS or host in OWN_HOSTS
        given = parse_qs(request.get("QUERY_STRING", "")).get("token", [""])[0]
        bearer = request.get("HTTP_AUTHORIZATION", "").removeprefix("Bearer ")
        return any(hmac.compare_digest(each.encode(), self._token.encode()) for each in (given, bearer))

    def _forbidden(self) -> bytes:
        if self._token is None:
            return b"this page answers requests to 127.0.0.1 or localhost only\n"
        return b"give the token that query.uiUrl names: ?token=...\n"


def _answer(start_response: StartResponse, status: str, kind: str, body: bytes) -> Iterable[bytes]:
    start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS])
    return [body]
