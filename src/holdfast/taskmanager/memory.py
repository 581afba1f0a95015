"""The bound `TaskManagerConfig(memory=…)` on state: a clear error instead of a killed process.

    memory ─┬─ a quarter: exchanged rows; further rows lie in local files (`buffers`)
            └─ three quarters: tables, caches, the undo of the batch in flight ──past it──► StateTooLarge
                               the rest of these: undo of committed batches; the oldest is given up

Memory is measured after a batch was processed, before it is committed. A large batch is taken in pieces and measured
after each, so it can exceed the bound only by a piece. Values that row functions hold as Python objects until the batch
ends are measured as they come. Other objects of user code are not counted. Neither are bytes that wait to be uploaded,
which have a bound of their own.
"""

import threading
from collections.abc import Collection, Sequence
from functools import partial

from holdfast.errors import StateTooLarge
from holdfast.functions.operator import BatchRoom
from holdfast.settings import RocksDBState, StateBackend
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.subtask import Subtask

PIECES = 8
"""Divisor: an operator takes rows of 1/8 of the memory for state at a time. A higher value makes more and smaller
pieces, which take less memory."""


class StateSize:
    """The memory that the state of a deployment takes while a batch is in flight.

    A level changes only its own subtasks, so that only these are measured again, whatever the number of levels.
    """

    def __init__(self, settings: TaskManagerSettings, backend: StateBackend) -> None:
        self._settings, self._backend = settings, backend
        self._measured: dict[tuple[str, int], tuple[int, int]] = {}
        self._tables = self._undo = 0
        self._lock = threading.Lock()

    def room(self, subtask: Subtask) -> BatchRoom:
        """Return the memory that a subtask may use in a batch: it takes the rows in pieces, and is measured after each
        piece."""
        return BatchRoom(self._settings.state_memory_bytes_max // PIECES, partial(self._check_in_batch, subtask))

    def _check_in_batch(self, subtask: Subtask) -> None:
        subtask.measure_added()
        self.check([subtask])

    def check(self, changed: Collection[Subtask]) -> None:
        """Measure the `changed` subtasks again, and check the total size. Any thread may call it. Raises
        `StateTooLarge`."""
        with self._lock:
            for each in changed:
                before = self._measured.get((each.name, each.subtask), (0, 0))
                now = self._measured[each.name, each.subtask] = each.memory_bytes, each.undo_in_flight_bytes
                self._tables += now[0] - before[0]
                self._undo += now[1] - before[1]
            settings, tables, undo = self._settings, self._tables, self._undo
        allowed = settings.state_memory_bytes_max
        if tables + undo > allowed:
            copies = next((_about_copies(each) for each in changed if each.copies_of_a_row > 1), "")
            raise StateTooLarge(
                f"TaskManager {settings.process.number}: its state takes {tables + undo:,} bytes of memory, {tables:,} "
                f"in tables and caches and {undo:,} to undo the batch; of TaskManagerConfig(memory=…), "
                f"{settings.memory_bytes:,} bytes, {allowed:,} are for that. {copies}{_advice(self._backend)}"
            )


def _about_copies(subtask: Subtask) -> str:
    return (
        f"Operator {subtask.name!r} keeps each row {subtask.copies_of_a_row:,} times, once for each window that has "
        "it: a longer slide keeps fewer. "
    )


def _advice(backend: StateBackend) -> str:
    if not isinstance(backend, RocksDBState):
        return (
            "Give it more memory, use more TaskManagers or RocksDBState(cache_max_entries=…), or make batches smaller "
            "(max_rows_per_batch)"
        )
    lower = f"keep fewer rows in memory (cache_max_entries={backend.cache_max_entries:,} now), " * bool(
        backend.cache_max_entries
    )
    return (
        f"RocksDB's own memory keeps within its part: rows of the batch and of the cache are the rest. So {lower}make "
        "batches smaller (max_rows_per_batch), give it more memory, or use more TaskManagers"
    )


def give_up_undo(settings: TaskManagerSettings, subtasks: Sequence[Subtask]) -> None:
    """Drop the oldest undo, first of the subtasks with the most, if undo does not fit beside the tables. Called between
    batches."""
    tables = [table for each in subtasks for table in each.tables]
    free = settings.state_memory_bytes_max - sum(each.memory_bytes for each in subtasks)
    surplus = sum(table.undo_bytes for table in tables) - free
    for table in sorted(tables, key=lambda table: -table.undo_bytes):
        if surplus <= 0:
            return
        before = table.undo_bytes
        table.shrink_undo(max(0, before - surplus))
        surplus -= before - table.undo_bytes
