"""Sending rows to TaskManagers in this process: what the testing kit runs jobs with. No threads, no network."""

from collections.abc import Mapping

import pyarrow as pa

from holdfast.exchange.sender import Sender, UnitAttempt
from holdfast.taskmanager.protocol import ExchangeRoutes, SectionRows, StreamTag
from holdfast.taskmanager.taskmanager import TaskManager


class LocalSender(Sender):
    """Hands rows to TaskManagers in this process: the testing kit."""

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
        self._task_managers[task_manager].receive(tag.exchange, iter(parts))

    def _close(self) -> None:
        self._pending.clear()
