"""Tables that every subtask loads in full: all rows of all subtasks, read once for a TaskManager.

    handles of all subtasks ──► objects, many at a time ──► decoded rows ──► the last row of each key

An object of such a table is small, and there are as many as there were TaskManagers or subtasks, so the store's time to
answer decides how long reading takes. Downloads therefore run side by side (`downloads`), and only the rows of an
object are kept. Rows of different handles are in different key groups, so their order does not matter; within a handle
the order is that of a restore. These tables are always in memory, so none has files of a base store.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CorruptObject
from holdfast.formats.handles import ROWS, MaterializedPart, TableHandle
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.local import Copy
from holdfast.recovery.restore import read_range
from holdfast.recovery.spans import StoredRange
from holdfast.state.changes import DELETED, last_of_each_key
from holdfast.storage.reading import read_schema

BATCHES_MAX = 256
"""Number of decoded batches that wait to be joined. A higher value joins less often and takes more memory: a batch of a
few rows takes some kilobytes."""

TableName = tuple[str, str]
"""Operator and table."""


def read_whole(handles: Sequence[TableHandle], fetch: ObjectCache) -> dict[TableName, pa.RecordBatch]:
    """Return all rows of the tables to which the handles belong, in their stored schemas. `fetch` expects the handles'
    ranges.

    Raises
    ------
    StorageError
        An object is missing or cannot be fetched.
    CorruptObject
        An object is damaged.
    """
    names = dict.fromkeys((each.operator, each.table) for each in handles)
    return {name: _rows([each for each in handles if (each.operator, each.table) == name], fetch) for name in names}


def _rows(handles: Sequence[TableHandle], fetch: ObjectCache) -> pa.RecordBatch:
    owners = {each: handle for handle in handles for each in handle.ranges()}

    def decoded(each: StoredRange, copy: Copy) -> list[pa.RecordBatch]:
        return _of_range(owners[each], each, copy)

    schema = read_schema(f"the table {handles[-1].operator}.{handles[-1].table}", handles[-1].schema)
    joined = [pa.RecordBatch.from_pylist([], schema)]
    waiting: list[pa.RecordBatch] = []
    for batches in fetch.ahead(list(owners), decoded):
        waiting += batches
        if len(waiting) > BATCHES_MAX:
            joined.append(_joined(waiting))
            waiting = []
    merged = last_of_each_key(_joined([*joined, *waiting]))
    return merged.filter(pc.invert(merged.column(DELETED)))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows in a single batch. A piece that is older than the widening of a column has the narrower type."""
    tables = [pa.Table.from_batches([each]) for each in batches]
    rows = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    found = rows.to_batches()
    if len(found) > 1:
        raise CorruptObject("a list state holds more than 2 GB of text or bytes in a column: keep less in it")
    return found[0] if found else batches[0]


def _of_range(handle: TableHandle, each: StoredRange, copy: Copy) -> list[pa.RecordBatch]:
    if isinstance(each, MaterializedPart) and each.kind != ROWS:
        raise CorruptObject(
            f"{each.object}: holds files of the table {handle.operator}.{handle.table}, expected rows: every subtask "
            "reads this table whole"
        )
    return read_range(handle, each, copy)
