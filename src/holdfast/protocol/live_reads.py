"""Reads of state from the TaskManager that owns it, while the job runs."""

import msgspec
import pyarrow as pa

from holdfast.ids import BatchNumber


class StateRead(msgspec.Struct, frozen=True):
    """Asks for the rows of a key in a table of a subtask. `key`: a row of the key columns, packed."""

    operator: str
    subtask: int
    table: str
    key: bytes


class StateRows(msgspec.Struct, frozen=True):
    """Packed rows in the stored schema: the state at the end of the committed `batch`."""

    batch: BatchNumber
    rows: bytes


def packed(rows: pa.RecordBatch) -> bytes:
    """Return rows with their schema as an Arrow stream."""
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, rows.schema) as writer:
        writer.write_batch(rows)
    found: bytes = target.getvalue().to_pybytes()
    return found


def unpacked(data: bytes) -> pa.RecordBatch:
    """Return the rows of an Arrow stream that came by an authenticated call."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()
