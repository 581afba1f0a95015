"""Writes the rows of an attempt at a unit of work to the subtasks that own their keys, on all TaskManagers.

    send(target, rows) ──► pending per target ──► divided by (TaskManager, subtask) ──► one link a TaskManager

Rows of a broadcast input are not divided: each subtask gets all of them.

Invariants: rows of one (operator, input, subtask) arrive in the order in which they were sent; only non-empty streams
exist; the totals that `finish` returns were computed from exactly the batches that were sent. A writer never waits for
a lost TaskManager: it raises `TaskManagerLost`, and the JobMaster decides; or it drops the rows, if the routes allow
that. Callers retry, and decide about rows with null keys.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import TaskManagerLost
from holdfast.exchange import partition
from holdfast.exchange.connections import Connections
from holdfast.exchange.dropping import DroppedRows
from holdfast.exchange.link import Link
from holdfast.exchange.parcels import Parcels
from holdfast.graph.program import OperatorTarget
from holdfast.ids import BatchNumber, RunNumber
from holdfast.protocol.streams import Sent
from holdfast.protocol.taskmanager import (
    ExchangeRoutes,
    ExchangeTag,
    SectionRows,
    StreamTag,
)
from holdfast.taskmanager.digest import Section, fold, of_sections

ROWS_PER_MESSAGE_MIN = 64 * 1024
"""Number of rows below which rows wait for more rows (until `finish`), since a message costs some 50 µs whatever its
size."""

WRITERS_IN_FULL_MAX = 16
"""Number of writers of a unit up to which each may let the full number of rows wait. If there are more writers, each
lets fewer rows wait, so that the memory of a unit does not grow with its targets. A higher value takes more memory, and
makes larger messages."""
ROWS_PER_MESSAGE_MAX = 256 * 1024
"""Number of rows above which a batch is cut, so that dividing the next rows overlaps with sending these."""


class UnitAttempt(NamedTuple):
    """Identity of work being sent: the fields of an `ExchangeTag` that do not depend on the TaskManager."""

    run: RunNumber
    batch: BatchNumber
    level: int
    unit: int
    attempt: str


class _Pending:
    """Rows for a target that wait until there are enough for a message."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0

    def take(self) -> pa.RecordBatch:
        batches, self.batches, self.rows = self.batches, [], 0
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class UnitWriter(ABC):
    """Divides rows by key, and keeps their order and totals, for every kind of connection."""

    def __init__(self, routes: ExchangeRoutes, unit: UnitAttempt) -> None:
        self._routes = routes
        self.unit = unit
        self._incarnations = {each.task_manager: each.incarnation for each in routes.routes}
        self._subtasks = sorted(range(routes.parallelism), key=lambda subtask: (routes.owners[subtask], subtask))
        place_of_subtask = np.empty(routes.parallelism, np.int64)
        place_of_subtask[self._subtasks] = np.arange(routes.parallelism)
        self._place_of_group = partition.places_of_groups(tuple(place_of_subtask.tolist()), routes.max_parallelism)
        self._pending: dict[OperatorTarget, _Pending] = {}
        self._totals: dict[int, dict[Section, tuple[int, int]]] = {}
        self.dropped = DroppedRows()
        self._waiting_divisor = 1

    def shares_memory_with(self, writers: int) -> None:
        """Let fewer rows wait where the same unit has many writers, this writer included."""
        self._waiting_divisor = -(-writers // WRITERS_IN_FULL_MAX)

    def send(self, target: OperatorTarget, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Send `rows` to the subtasks of `target` that own their keys, in order, but possibly later.

        Returns
        -------
        The numbers of the rows that were *not* sent because a key is null. The caller fails (`abort`) or sets
        them aside.

        Raises
        ------
        TaskManagerLost, StaleCall
            Possibly because of rows sent earlier. The caller gives up: `abort`.
        """
        null_rows = partition.null_keys(rows, target.key_columns)
        if len(null_rows):
            rows = partition.without(rows, null_rows)
        if rows.num_rows:
            pending = self._pending.setdefault(target, _Pending())
            pending.batches.append(rows)
            pending.rows += rows.num_rows
            if pending.rows * self._waiting_divisor >= ROWS_PER_MESSAGE_MIN:
                self._divide(target, pending.take())
        return null_rows

    def finish(self) -> Sent:
        """Send pending rows, and wait until every TaskManager has everything: `end` and `wait`."""
        self.end()
        return self.wait()

    def end(self) -> None:
        """Send pending rows, which are the last. Small messages wait for messages of other writers until one writer's
        `wait` is called."""
        for target, pending in self._pending.items():
            if pending.rows:
                self._divide(target, pending.take())
        self._end()

    def wait(self) -> Sent:
        """Wait, after `end`, until every TaskManager has everything.

        Returns
        -------
        An entry for each TaskManager that got rows; the rows count once the JobMaster names them to `process`.
        """
        self._wait()
        arrived = {number: each for number, each in sorted(self._totals.items()) if number not in self.dropped.gone}
        return Sent.of([(number, *of_sections(sections)) for number, sections in arrived.items()])

    def rows_by_subtask(self) -> list[tuple[str, int, int]]:
        """Rows for each (operator, subtask), sent or dropped; only if the routes allow rows to be dropped."""
        if not self._routes.drop:
            return []
        found: dict[tuple[str, int], int] = {}
        for sections in self._totals.values():
            for (operator, _, subtask), (rows, _) in sections.items():
                found[operator, subtask] = found.get((operator, subtask), 0) + rows
        return [(operator, subtask, rows) for (operator, subtask), rows in sorted(found.items())]

    @abstractmethod
    def abort(self) -> None:
        """Give up. Rows sent so far do not count."""

    @abstractmethod
    def _deliver(self, task_manager: int, tag: StreamTag, sections: list[SectionRows], rows: pa.RecordBatch) -> None:
        """Send a message: `rows`, whose parts belong to the subtasks of `sections`, in order."""

    @abstractmethod
    def _end(self) -> None:
        """Note that everything is delivered."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait until everything delivered has arrived."""

    def _divide(self, target: OperatorTarget, rows: pa.RecordBatch) -> None:
        for start in range(0, rows.num_rows, ROWS_PER_MESSAGE_MAX):
            piece = rows.slice(start, ROWS_PER_MESSAGE_MAX)
            if target.broadcast:
                self._send_everywhere(target, piece)
                continue
            division = partition.arrange(piece, target.key_columns, self._place_of_group, self._routes.parallelism)
            self._send_division(target, division.rows, division.bounds.tolist())

    def _send_everywhere(self, target: OperatorTarget, rows: pa.RecordBatch) -> None:
        """Send the same rows to every subtask."""
        for subtask in self._subtasks:
            sections = [SectionRows(subtask, rows.num_rows)]
            self._count(self._routes.owners[subtask], target, sections, rows)
            self._deliver_or_drop(self._routes.owners[subtask], target, sections, rows)

    def _send_division(self, target: OperatorTarget, rows: pa.RecordBatch, bounds: Sequence[int]) -> None:
        owners = self._routes.owners
        first = 0
        while first < len(self._subtasks):
            task_manager = owners[self._subtasks[first]]
            stop = first
            sections = []
            while stop < len(self._subtasks) and owners[self._subtasks[stop]] == task_manager:
                if bounds[stop + 1] > bounds[stop]:
                    sections.append(SectionRows(self._subtasks[stop], bounds[stop + 1] - bounds[stop]))
                stop += 1
            if sections:
                part = rows.slice(bounds[first], bounds[stop] - bounds[first])
                self._count(task_manager, target, sections, part)
                self._deliver_or_drop(task_manager, target, sections, part)
            first = stop

    def _deliver_or_drop(
        self, task_manager: int, target: OperatorTarget, sections: list[SectionRows], rows: pa.RecordBatch
    ) -> None:
        if task_manager not in self.dropped.gone:
            try:
                if task_manager not in self._incarnations:
                    raise TaskManagerLost(f"TaskManager {task_manager} does not serve")
                self._deliver(task_manager, self._tag(task_manager, target), sections, rows)
                return
            except TaskManagerLost as error:
                self._lost(task_manager, error)
        self.dropped.add(target.operator, task_manager, rows)

    def _lost(self, task_manager: int, error: TaskManagerLost) -> None:
        """Note that a TaskManager is lost, or raise the error if the routes do not allow rows to be dropped."""
        if not self._routes.drop:
            raise error
        self.dropped.gone[task_manager] = str(error)

    def _count(
        self, task_manager: int, target: OperatorTarget, sections: list[SectionRows], rows: pa.RecordBatch
    ) -> None:
        totals_of_sections = self._totals.setdefault(task_manager, {})
        start = 0
        for section in sections:
            key = (target.operator, target.input, section.subtask)
            before, digest = totals_of_sections.get(key, (0, 0))
            totals_of_sections[key] = before + section.rows, fold(digest, rows.slice(start, section.rows))
            start += section.rows

    def _tag(self, task_manager: int, target: OperatorTarget) -> StreamTag:
        unit = self.unit
        tag = ExchangeTag(
            job_id=self._routes.job_id,
            run=unit.run,
            batch=unit.batch,
            incarnation=self._incarnations[task_manager],
            level=unit.level,
            unit=unit.unit,
            attempt=unit.attempt,
        )
        return StreamTag(tag, target.operator, target.input)


class FlightUnitWriter(UnitWriter):
    """Sends over Flight, with a link for each TaskManager, which is opened when the first row goes there.

    `parcels`: those that it shares with the other writers of its thread.
    """

    def __init__(
        self, routes: ExchangeRoutes, connections: Connections, unit: UnitAttempt, parcels: Parcels | None = None
    ) -> None:
        super().__init__(routes, unit)
        self._connections = connections
        self._parcels = parcels or Parcels()
        self._route_of = {each.task_manager: each for each in routes.routes}
        self._links: dict[int, Link] = {}

    def abort(self) -> None:
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.abort()

    def __enter__(self) -> "FlightUnitWriter":
        return self

    def __exit__(self, *error: Any) -> None:
        self.abort()

    def _deliver(self, task_manager: int, tag: StreamTag, sections: list[SectionRows], rows: pa.RecordBatch) -> None:
        link = self._links.get(task_manager)
        if link is None:
            client = self._connections.client(self._route_of[task_manager])
            link = self._links[task_manager] = Link(client, self._parcels)
        link.send(tag, sections, rows)

    def _end(self) -> None:
        for link in self._links.values():
            link.end()

    def _wait(self) -> None:
        for task_manager, link in self._links.items():
            try:
                link.wait()
            except TaskManagerLost as error:
                self._lost(task_manager, error)
        self._links.clear()
