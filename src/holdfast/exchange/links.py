"""How a task reaches the TaskManagers over Flight."""

from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa

from holdfast.exchange.sender import ExchangeSender, UnitAttempt
from holdfast.taskmanager.client import TaskManagerClient
from holdfast.taskmanager.protocol import ExchangeRoutes


class FlightLinks:
    """Implements `exchange.task.Links` for one task: it pulls over one connection a TaskManager, closed at its end."""

    def __init__(self, routes: ExchangeRoutes, secret: str) -> None:
        self._routes = routes
        self._secret = secret
        self._route_of = {route.task_manager: route for route in routes.routes}
        self._clients: dict[int, TaskManagerClient] = {}

    def open_sender(self, unit: UnitAttempt) -> ExchangeSender:
        return ExchangeSender(self._routes, self._secret, unit)

    def output(self, run: int, batch: int, operator: str, subtask: int) -> Iterator[pa.RecordBatch]:
        owner = self._routes.owners[subtask]
        client = self._clients.get(owner)
        if client is None:
            client = self._clients[owner] = TaskManagerClient(self._route_of[owner], self._secret)
        return client.output(run, batch, operator, subtask)

    def __enter__(self) -> "FlightLinks":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for client in self._clients.values():
            client.close()
