"""Keeps state within `TaskManagerConfig(memory=…)`: a clear failure instead of a process that is killed.

    memory ─┬─ a quarter: exchanged rows; further rows lie in local files (`buffers`)
            └─ three quarters: tables, caches, the undo of the batch in flight ──past it──► StateTooLarge
                               the rest of these: undo of committed batches; the oldest is given up

Memory is measured after a batch was processed, before it is committed. A single batch can go past the bound by the rows
that it touches, and so batches are bounded too. Objects of user code are not counted. Neither are bytes that wait to be
uploaded, which have a bound of their own.
"""

from collections.abc import Iterable, Sequence

from holdfast.errors import StateTooLarge
from holdfast.settings import RocksDBState, StateBackend
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.taskmanager.subtask import Subtask


class StateSize:
    """The memory that the state of a deployment takes while a batch is in flight.

    A level changes only its own subtasks, so that only these are measured again, whatever the number of levels.
    """

    def __init__(self, settings: TaskManagerSettings, backend: StateBackend) -> None:
        self._settings, self._backend = settings, backend
        self._measured: dict[tuple[str, int], tuple[int, int]] = {}
        self._tables = self._undo = 0

    def check(self, changed: Iterable[Subtask]) -> None:
        """Measure subtasks anew, and check the size of all. Raises `StateTooLarge`."""
        for each in changed:
            before = self._measured.get((each.name, each.subtask), (0, 0))
            now = self._measured[each.name, each.subtask] = each.memory_bytes, each.undo_in_flight_bytes
            self._tables += now[0] - before[0]
            self._undo += now[1] - before[1]
        settings, tables, undo = self._settings, self._tables, self._undo
        allowed = settings.state_memory_bytes_max
        if tables + undo > allowed:
            raise StateTooLarge(
                f"TaskManager {settings.process.number}: its state takes {tables + undo:,} bytes of memory, {tables:,} "
                f"in tables and caches and {undo:,} to undo the batch; of TaskManagerConfig(memory=…), "
                f"{settings.memory_bytes:,} bytes, {allowed:,} are for that. {_advice(self._backend)}"
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
    """Drop the oldest undo if it does not fit beside the tables; the largest first. Called between batches."""
    tables = [table for each in subtasks for table in each.tables]
    free = settings.state_memory_bytes_max - sum(each.memory_bytes for each in subtasks)
    surplus = sum(table.undo_bytes for table in tables) - free
    for table in sorted(tables, key=lambda table: -table.undo_bytes):
        if surplus <= 0:
            return
        before = table.undo_bytes
        table.shrink_undo(max(0, before - surplus))
        surplus -= before - table.undo_bytes
