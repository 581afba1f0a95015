"""The HTTP servers of a running query: for its page with metrics and control, and for the metrics alone.

ui_port       page and JSON   guarded by the machine's name, or by a token outside of loopback
              /metrics        guarded in the same way
              control         only with ui_control, guarded by a token of its own
metrics_port  /metrics        guarded by the machine's name
"""

import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.observe.view import JobView
from holdfast.ports import Endpoint
from holdfast.printable import logger
from holdfast.ui.control import Controlled, RemoteControl, controlling
from holdfast.ui.pages import API, Access, Pages, guarded
from holdfast.ui.server import LOOPBACK, HttpServer, is_loopback, new_token

log = logger(__name__)

CONTROL = API + "control"
TOKEN_VARIABLE = "HOLDFAST_TOKEN"
"""The environment variable from which `holdfast` reads the token of a page or of its control."""


@dataclass(frozen=True)
class HttpSettings:
    """The ports at which a query serves its metrics and its page; None: not served. `control`: the token of its
    control, True for a new token, or False for no control."""

    metrics_port: int | None = None
    ui_port: int | None = None
    ui_host: str = LOOPBACK
    control: bool | str = field(default=False, repr=False)


class HttpUrls(NamedTuple):
    """URLs at which a start serves its metrics and its page; None if the job has no port for them."""

    metrics: str | None
    page: str | None
    control_token: str | None


def serve_http(
    settings: HttpSettings,
    view: Callable[[], JobView | None],
    query: Callable[[], Controlled | None],
    storage_options: Mapping[str, str],
    endpoint: Endpoint | None,
    closing: ExitStack,
) -> HttpUrls:
    """Start the servers that the settings name; they run until `closing` closes. Raises `JobRefused` if a port is
    taken."""
    metrics_url = page_url = token = None
    if settings.metrics_port is None and settings.ui_port is None:
        return HttpUrls(None, None, None)
    from holdfast.ui.prometheus import metrics_application

    metrics, where = metrics_application(view), endpoint or Endpoint(LOOPBACK)
    if settings.metrics_port is not None:
        access = Access(names=_names_of_this_machine(where.host))
        server = HttpServer(
            guarded(metrics, access), where.listens_on, settings.metrics_port, "metrics_port", where.port_range
        )
        closing.callback(server.close)
        metrics_url = f"{server.url}/metrics"
    if settings.ui_port is not None:
        page_token = None if is_loopback(settings.ui_host) else new_token()
        control = None
        if settings.control:
            token = new_token() if settings.control is True else settings.control
            control = RemoteControl(query, storage_options, token)
        pages = guarded(Pages(view, metrics), Access(page_token))
        server = HttpServer(
            controlling(pages, control, CONTROL), settings.ui_host, settings.ui_port, "ui_port", where.port_range
        )
        closing.callback(server.close)
        page_url = f"{server.url}/" + (f"?token={page_token}" if page_token else "")
        if settings.control is True:
            print(f"holdfast: {server.url}/ can be controlled with {TOKEN_VARIABLE}={token}", file=sys.stderr)
    return HttpUrls(metrics_url, page_url, token)


def _names_of_this_machine(host: str) -> tuple[str, ...]:
    """Return the names by which a program on another machine may ask for metrics: of the address and the machine."""
    return tuple(dict.fromkeys((host.lower(), socket.gethostname().lower(), socket.getfqdn().lower())))
