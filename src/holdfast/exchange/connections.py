"""A process's connections to TaskManagers: a single connection to each, shared by all rows sent and pulled.

Their number is bounded by the number of TaskManagers: a connection to an incarnation that is no longer in the routes is
closed. Opening a connection costs a millisecond, a call over an open one a third of that.
"""

import threading

from holdfast.protocol.taskmanager import ExchangeRoute, ExchangeRoutes
from holdfast.taskmanager.client import TaskManagerClient


class Connections:
    """Connections by route. Safe for use from several threads."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._lock = threading.Lock()
        self._clients: dict[ExchangeRoute, TaskManagerClient] = {}

    def client(self, route: ExchangeRoute) -> TaskManagerClient:
        """The connection along a route; it is opened by its first call."""
        with self._lock:
            found = self._clients.get(route)
            if found is None:
                found = self._clients[route] = TaskManagerClient(route, self._secret)
            return found

    def keep_only(self, routes: ExchangeRoutes) -> None:
        """Close the connections along routes that these routes do not contain."""
        with self._lock:
            gone = [route for route in self._clients if route not in routes.routes]
            clients = [self._clients.pop(route) for route in gone]
        for client in clients:
            client.close()

    def close(self) -> None:
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def __enter__(self) -> "Connections":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._clients)
