"""The job's secret on every Flight call: clients send it, servers refuse calls without it.

The secret is made by the driver for one job and travels in Spark's task closures only. It is compared in
constant time and never logged. Everything else about a call is looked at after this check.
"""

import hmac
import secrets
from typing import Any

import pyarrow.flight as flight

SECRET_HEADER = "holdfast-secret"
SECRET_MIDDLEWARE = "holdfast-secret"

GRPC_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A channel of one's own, so that no back-off after an earlier TaskManager at this address delays a call.
    ("grpc.use_local_subchannel_pool", 1),
    # Also the time a connection attempt may take: a machine that does not answer is given up soon.
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.initial_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]


def new_secret() -> str:
    """A fresh secret for one job: 256 random bits, as text."""
    return secrets.token_hex(32)


class SecretServerFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses every call whose secret is missing or wrong, before any handler sees it."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        if len(secret) < 32:
            raise ValueError("a job's secret has at least 32 characters; make it with new_secret()")
        self._secret = secret.encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        given = headers.get(SECRET_HEADER, [])
        if len(given) != 1 or not hmac.compare_digest(str(given[0]).encode(), self._secret):
            raise flight.FlightUnauthenticatedError("refused: the call does not carry this job's secret")


class SecretClientFactory(flight.ClientMiddlewareFactory):  # type: ignore[misc]
    """Adds the secret to every call."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self._middleware = _SecretClient(secret)

    def start_call(self, info: Any) -> "_SecretClient":
        return self._middleware


class _SecretClient(flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, secret: str) -> None:
        super().__init__()
        self._headers = {SECRET_HEADER: secret}

    def sending_headers(self) -> dict[str, str]:
        return self._headers


def connect(address: str, secret: str) -> Any:
    """A Flight client for `address` ("grpc://host:port") that carries the secret. Connects at its first call."""
    return flight.FlightClient(address, middleware=[SecretClientFactory(secret)], generic_options=GRPC_OPTIONS)
