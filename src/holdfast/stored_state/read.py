"""`hf.read_state`: an operator's state as an Arrow table, without Spark and without the job."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.stored_state.live import reader_of
from holdfast.stored_state.opened import LATEST, open_checkpoint, open_storage
from holdfast.stored_state.rows import StateScan, scan


def read_state(
    storage: str,
    operator: str,
    state: str | None = None,
    *,
    checkpoint: int | str = LATEST,
    key: Mapping[str, Any] | None = None,
    live: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> pa.Table:
    """Read an operator's state from a checkpoint of a job's storage, also while the job runs.

    Parameters
    ----------
    storage, storage_options
        As given to `Job`.
    operator
        Name of the operator.
    state
        Name of a map or list state, or `"timers"`; None: all states of a single value, or the accumulators of
        aggregates.
    checkpoint
        Number of a retained checkpoint's record, or `"latest"`.
    key
        A value for each key column, to read only the rows of that key. None: all rows.
    live
        True: read the key from the TaskManager that owns it, as `query.read_state` does. The query of this storage must
        run in this program, and `checkpoint` is left out.

    Returns
    -------
    A table with the key columns, the state's columns, and `key_group`. Expired entries that were not removed yet are
    included; `written_at` shows their age.

    Raises
    ------
    HoldfastError
        There is no checkpoint, operator or state of that name, or the running job let go of the checkpoint during the
        read.
    StorageError, CorruptObject
        An object cannot be read.
    """
    if live:
        if key is None or checkpoint != LATEST:
            raise HoldfastError("read_state(live=True) reads a key as it is now: give a key, and no checkpoint")
        return reader_of(storage)(operator, state, key)
    store = open_storage(storage, storage_options)
    found = scan(open_checkpoint(store, checkpoint), operator, state, storage_options)
    if key is not None:
        return rows_of_key(found, key, found.read(found.range_of(key), store))
    return pa.Table.from_batches([found.read(each, store) for each in found.ranges()], found.schema)


def rows_of_key(found: StateScan, key: Mapping[str, Any], rows: pa.RecordBatch) -> pa.Table:
    """Select the rows of a key."""
    wanted = found.key_row(key)
    chosen = pa.Table.from_batches([rows], found.schema)
    for name in found.key_columns:
        chosen = chosen.filter(pc.equal(chosen.column(name), wanted.column(name)[0]))
    return chosen
