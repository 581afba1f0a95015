"""Answers to reads of state while the job runs: rows as the last committed batch left them, even with a batch in
flight."""

import threading
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.ids import BatchNumber
from holdfast.protocol.live_reads import StateRead, StateRows, packed, unpacked
from holdfast.state.committed import all_rows, rows_of_keys
from holdfast.state.table import StateTable
from holdfast.taskmanager.hosting import Hosted

WAIT_S_MAX = 5.0
"""Bound in seconds for which a read waits while subtasks process or restore. With a higher value, a read waits for
longer calls of users' functions."""
SCANNED_ROWS_MAX = 200_000
"""Greatest number of rows of a table that a read scans for the rows of a key, if the key is only a part of the table's
key: entries of maps and lists, timers, panes of windows. With a higher value, a read stops the batches of a TaskManager
for longer."""


def answer(
    read: StateRead, task_manager: int, work: threading.Lock, state: Callable[[], tuple[Hosted, BatchNumber]]
) -> StateRows:
    """Answer a read under the lock of batches. `state` gives the subtasks and the last committed batch.

    Raises
    ------
    HoldfastError
        As in `read_rows`, or because the lock was not free within `WAIT_S_MAX`.
    """
    if not work.acquire(timeout=WAIT_S_MAX):
        raise HoldfastError(
            f"TaskManager {task_manager}: processes or restores for more than {WAIT_S_MAX:g} s; ask again, or read a "
            "checkpoint: hf.read_state(storage, …)"
        )
    try:
        return read_rows(*state(), read)
    finally:
        work.release()


def read_rows(hosted: Hosted, committed: BatchNumber, read: StateRead) -> StateRows:
    """Read committed rows of a key; the caller holds the lock of the tables meanwhile.

    Raises
    ------
    HoldfastError
        The subtask or table is not here, the table is too large to be scanned, or a commit failed half way.
    """
    subtask = hosted.subtasks.get((read.operator, read.subtask))
    if subtask is None:
        raise HoldfastError(f"operator {read.operator!r}, subtask {read.subtask}: is not here any more; ask again")
    table = subtask.table_at(committed, read.table)
    return StateRows(committed, packed(_rows(table, unpacked(read.key), read)))


def _rows(table: StateTable, key: pa.RecordBatch, read: StateRead) -> pa.RecordBatch:
    if key.schema.names == table.key_schema.names:
        return rows_of_keys(table, key)
    if len(table) > SCANNED_ROWS_MAX:
        raise HoldfastError(
            f"operator {read.operator!r}, table {read.table!r}: a live read would search {len(table):,} rows for those "
            f"of the key, at most {SCANNED_ROWS_MAX:,} are allowed; read a checkpoint instead: "
            "hf.read_state(storage, operator, state, key=…)"
        )
    rows = all_rows(table)
    for name, wanted in zip(key.schema.names, key.columns, strict=True):
        found = rows.column(name)
        same = pc.equal(found, wanted[0]) if wanted[0].is_valid else pc.is_null(found)
        rows = rows.filter(same)
    return rows
