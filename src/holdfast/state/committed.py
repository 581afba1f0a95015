"""Rows of a table as of its last commit, read while a batch may be in flight on it.

    not in a batch    rows as they are
    in a batch        a row that the batch has touched as it was at the first touch (`transaction`), others as they are

A look-up during a batch touches the key's row, which does no harm: a row that is touched but not written is no change.
Only the thread that uses the table may call these functions.
"""

import numpy as np
import pyarrow as pa

from holdfast.ids import NO_BATCH
from holdfast.state.changes import stored_rows
from holdfast.state.rows import OldRows
from holdfast.state.table import StateTable


def rows_of_keys(table: StateTable, keys: pa.RecordBatch) -> pa.RecordBatch:
    """The committed rows of some keys that are present, in the stored schema. Raises as `lookup`."""
    alone = not table.in_batch
    if alone:
        table.begin(NO_BATCH)
    try:
        slots = np.unique(table.lookup(keys))
        old = _before_batch(table)
        chosen = np.isin(old.slots, slots) & old.present
        return _stored(table, old.take(np.flatnonzero(chosen).astype(np.int32)))
    finally:
        if alone:
            table.undo()


def all_rows(table: StateTable) -> pa.RecordBatch:
    """All committed rows in the stored schema: a copy of the table."""
    now = table.snapshot()
    if not table.in_batch:
        return now
    whole = StateTable(table.key_schema, table.value_schema, table.max_parallelism)
    for rows in (now, _stored(table, _before_batch(table))):
        whole.apply(rows, 0, table.max_parallelism)
    return whole.snapshot()


def _before_batch(table: StateTable) -> OldRows:
    return table._in_transaction("read").old_rows()


def _stored(table: StateTable, old: OldRows) -> pa.RecordBatch:
    """Old rows in the stored schema; those that were not there are marked as deleted."""
    copies = table._rows.with_keys(old).by_group(table.max_parallelism)
    return stored_rows(table.stored_schema(), table._rows, copies)
