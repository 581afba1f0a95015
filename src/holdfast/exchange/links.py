"""Paths of units of work to the TaskManagers over Flight."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from holdfast.exchange.connections import Connections
from holdfast.exchange.parcels import Parcels
from holdfast.exchange.unit_writer import FlightUnitWriter, UnitAttempt
from holdfast.ids import BatchNumber, RunNumber
from holdfast.protocol.parcels import OutputsRequest, SmallOutput
from holdfast.protocol.taskmanager import ExchangeRoutes

_Output = tuple[RunNumber, BatchNumber, str, int]
"""Run, batch, operator and subtask."""


class FlightLinks:
    """Implements `exchange.task.Links` over connections that the caller owns. Used by a single thread."""

    def __init__(self, routes: ExchangeRoutes, connections: Connections) -> None:
        self._routes = routes
        self._connections = connections
        self._route_of = {route.task_manager: route for route in routes.routes}
        self._parcels = Parcels()
        self._expected: dict[int, OutputsRequest] = {}
        """The expected outputs of each TaskManager that were not requested yet."""
        self._fetched: dict[_Output, SmallOutput] = {}

    def open_writer(self, unit: UnitAttempt) -> FlightUnitWriter:
        return FlightUnitWriter(self._routes, self._connections, unit, self._parcels)

    def expect(self, run: RunNumber, batch: BatchNumber, outputs: Sequence[tuple[str, int]]) -> None:
        """Note outputs for which `output` will be called: the first request to a TaskManager fetches all small ones."""
        for operator, subtask in outputs:
            asked = self._expected.setdefault(self._routes.owners[subtask], OutputsRequest(run, batch, []))
            asked.outputs.append((operator, subtask))

    def output(self, run: RunNumber, batch: BatchNumber, operator: str, subtask: int) -> Iterator[pa.RecordBatch]:
        owner = self._routes.owners[subtask]
        client = self._connections.client(self._route_of[owner])
        asked = self._expected.pop(owner, None)
        if asked is not None and len(asked.outputs) > 1:
            found = client.outputs(asked)
            fetched = zip(asked.outputs, found, strict=True)
            self._fetched.update(((run, batch, *which), rows) for which, rows in fetched if rows is not None)
        rows = self._fetched.pop((run, batch, operator, subtask), None)
        return client.output(run, batch, operator, subtask) if rows is None else iter(rows)
