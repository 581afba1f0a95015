"""Paths of units of work to the TaskManagers over Flight."""

from collections.abc import Iterator

import pyarrow as pa

from holdfast.exchange.connections import Connections
from holdfast.exchange.unit_writer import FlightUnitWriter, UnitAttempt
from holdfast.ids import BatchNumber, RunNumber
from holdfast.protocol.taskmanager import ExchangeRoutes


class FlightLinks:
    """Implements `exchange.task.Links` over connections that the caller owns."""

    def __init__(self, routes: ExchangeRoutes, connections: Connections) -> None:
        self._routes = routes
        self._connections = connections
        self._route_of = {route.task_manager: route for route in routes.routes}

    def open_writer(self, unit: UnitAttempt) -> FlightUnitWriter:
        return FlightUnitWriter(self._routes, self._connections, unit)

    def output(self, run: RunNumber, batch: BatchNumber, operator: str, subtask: int) -> Iterator[pa.RecordBatch]:
        route = self._route_of[self._routes.owners[subtask]]
        return self._connections.client(route).output(run, batch, operator, subtask)
