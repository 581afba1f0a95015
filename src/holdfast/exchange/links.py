"""How a task reaches the TaskManagers over Flight."""

from collections.abc import Iterator

import pyarrow as pa

from holdfast.exchange.sender import ExchangeSender, UnitAttempt
from holdfast.taskmanager.client import read_output
from holdfast.taskmanager.protocol import ExchangeRoutes


class FlightLinks:
    """Implements `exchange.task.Links`; connections are made when needed and closed with what needed them."""

    def __init__(self, routes: ExchangeRoutes, secret: str) -> None:
        self._routes = routes
        self._secret = secret
        self._by_task_manager = {route.task_manager: route for route in routes.routes}

    def open_sender(self, unit: UnitAttempt) -> ExchangeSender:
        return ExchangeSender(self._routes, self._secret, unit)

    def output(self, run: int, batch: int, operator: str, subtask: int) -> Iterator[pa.RecordBatch]:
        route = self._by_task_manager[self._routes.owners[subtask]]
        return read_output(route, self._secret, run, batch, operator, subtask)
