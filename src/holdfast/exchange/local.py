"""Rows to and from TaskManagers in this process, for the testing kit. No threads, no network."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from holdfast.errors import TaskManagerLost
from holdfast.exchange.unit_writer import UnitAttempt, UnitWriter
from holdfast.ids import BatchNumber, RunNumber
from holdfast.protocol.taskmanager import ExchangeRoutes, SectionRows, StreamTag
from holdfast.taskmanager.taskmanager import TaskManager


class LocalUnitWriter(UnitWriter):
    """Hands rows to TaskManagers in this process, for the testing kit."""

    def __init__(self, routes: ExchangeRoutes, task_managers: Mapping[int, TaskManager], unit: UnitAttempt) -> None:
        super().__init__(routes, unit)
        self._task_managers = task_managers

    def abort(self) -> None:
        self._pending.clear()

    def _deliver(self, task_manager: int, tag: StreamTag, sections: list[SectionRows], rows: pa.RecordBatch) -> None:
        parts = []
        start = 0
        for section in sections:
            parts.append((tag.operator, tag.input, section.subtask, rows.slice(start, section.rows)))
            start += section.rows
        if task_manager not in self._task_managers:
            raise TaskManagerLost(f"TaskManager {task_manager} is gone")
        self._task_managers[task_manager].receive(tag.exchange, iter(parts))

    def _end(self) -> None:
        self._pending.clear()

    def _wait(self) -> None:
        """Do nothing: each delivery has arrived at once."""


class LocalLinks:
    """Implements `exchange.task.Links`."""

    def __init__(self, routes: ExchangeRoutes, task_managers: Mapping[int, TaskManager]) -> None:
        self._routes = routes
        self._task_managers = task_managers

    def open_writer(self, unit: UnitAttempt) -> LocalUnitWriter:
        return LocalUnitWriter(self._routes, self._task_managers, unit)

    def expect(self, run: RunNumber, batch: BatchNumber, outputs: Sequence[tuple[str, int]]) -> None:
        """Do nothing: in one process, outputs need no shared call."""

    def output(self, run: RunNumber, batch: BatchNumber, operator: str, subtask: int) -> Iterator[pa.RecordBatch]:
        owner = self._routes.owners[subtask]
        if owner not in self._task_managers:
            raise TaskManagerLost(f"TaskManager {owner} is gone")
        return self._task_managers[owner].output(run, batch, operator, subtask)
