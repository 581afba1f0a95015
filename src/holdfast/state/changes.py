"""Change sets and snapshots as Arrow batches: the stored form of a table's rows.

    __key_group  int32, sorted       the row's key group
    __deleted    bool                the key is gone; its values are null
    …            the key columns, then the value columns

The schema's metadata tells how many key columns there are. Does not own the framing on disk (`changelog`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import CorruptObject
from holdfast.state import kernels
from holdfast.state.arena import Arena
from holdfast.state.bytes_column import new_column
from holdfast.state.columns import placed
from holdfast.state.index import columns_of_stored, new_index
from holdfast.state.keys import encode_columns
from holdfast.state.physical import fixed_array, values_of
from holdfast.state.row_codec import RowCodec
from holdfast.state.rows import KeyedRows, Rows

KEY_GROUP = "__key_group"
DELETED = "__deleted"

MERGED_ROWS = 1 << 17
"""Approximate number of rows of change sets that are merged in a step. A higher value makes fewer steps, which take
more memory."""

_LEADING = (pa.field(KEY_GROUP, pa.int32(), nullable=False), pa.field(DELETED, pa.bool_(), nullable=False))
_KEY_COLUMNS = b"holdfast.key_columns"


def stored_schema(key_schema: pa.Schema, value_schema: pa.Schema) -> pa.Schema:
    """The schema of change sets and snapshots of a table."""
    metadata = {_KEY_COLUMNS: str(len(key_schema)).encode()}
    return pa.schema([*_LEADING, *key_schema, *value_schema], metadata=metadata)


def check_rows(what: str, rows: pa.RecordBatch) -> None:
    """Check the leading columns of stored rows, and that names are not doubled. Raises `CorruptObject`."""
    names: list[str] = rows.schema.names
    leading = [rows.schema.field(at).type for at in range(min(2, len(names)))]
    if (
        names[:2] != [KEY_GROUP, DELETED]
        or leading != [field.type for field in _LEADING]
        or len(set(names)) < len(names)
        or rows.column(0).null_count
        or rows.column(1).null_count
    ):
        raise CorruptObject(
            f"{what}: its rows have the columns {names}; expected {KEY_GROUP!r} (int32), {DELETED!r} (bool), neither "
            "of them ever null, and further columns, none of them twice"
        )


def key_schema_of(stored: pa.Schema) -> pa.Schema:
    """The key columns of a stored schema.

    Raises
    ------
    CorruptObject
        It is not the schema of a change set.
    """
    count = (stored.metadata or {}).get(_KEY_COLUMNS, b"")
    if not count.isdigit() or stored.names[:2] != [KEY_GROUP, DELETED] or len(stored) < 2 + int(count):
        raise CorruptObject(
            f"a change set has the columns {stored.names} and the metadata {stored.metadata}; expected "
            f"{KEY_GROUP!r}, {DELETED!r}, key columns, and their number as {_KEY_COLUMNS.decode()!r}"
        )
    return pa.schema([stored.field(i) for i in range(2, 2 + int(count))])


def value_schema_of(stored: pa.Schema) -> pa.Schema:
    """The value columns of a stored schema."""
    return pa.schema([stored.field(i) for i in range(2 + len(key_schema_of(stored)), len(stored))])


def stored_batch(schema: pa.Schema, groups: Any, deleted: Any, columns: Sequence[Any]) -> pa.RecordBatch:
    """Put together rows already sorted by key group; `columns` are keys, then values."""
    leading = [fixed_array(groups, None, pa.int32()), fixed_array(deleted, None, pa.bool_())]
    return pa.RecordBatch.from_arrays([*leading, *columns], schema=schema)


def stored_rows(schema: pa.Schema, rows: Rows, copies: KeyedRows) -> pa.RecordBatch:
    """Copies of rows, already sorted by key group."""
    columns = [*copies.keys, *rows.value_arrays(copies.rows)]
    return stored_batch(schema, copies.groups, ~copies.rows.present, columns)


class StoredRows:
    """Copies of rows, sorted by key group, of which a slice at a time becomes a record batch.

    So the values of a large change set are gathered block by block, in the processor's cache, and never lie in memory
    as a whole; nor have they to fit into an Arrow array together.
    """

    def __init__(self, schema: pa.Schema, rows: Rows, copies: KeyedRows) -> None:
        self.schema = schema
        self._rows = rows
        self._copies = copies

    @property
    def num_rows(self) -> int:
        return len(self._copies)

    @property
    def nbytes(self) -> int:
        """The bytes of the record batch of all rows, about."""
        return self._copies.memory_bytes + self._rows.variable_bytes(self._copies.rows)

    @property
    def key_groups(self) -> Any:
        """The column of key groups."""
        return fixed_array(self._copies.groups, None, pa.int32())

    def slice(self, offset: int = 0, length: int | None = None) -> pa.RecordBatch:
        """Rows from `offset` on, at most `length`."""
        stop = self.num_rows if length is None else min(self.num_rows, offset + length)
        return stored_rows(self.schema, self._rows, self._copies.slice(offset, stop))


def codec_of(schema: pa.Schema) -> RowCodec:
    """A codec of the value columns in a stored schema."""
    return RowCodec([new_column(field, 0, Arena()) for field in value_schema_of(schema)])


def decoded(schema: pa.Schema, codec: RowCodec, keys: list[bytes], records: list[bytes]) -> pa.RecordBatch:
    """Decode rows that a base store keeps; `codec` is the codec of the schema's value columns."""
    groups, columns = columns_of_stored(keys, key_schema_of(schema))
    return stored_batch(schema, groups, np.zeros(len(keys), np.bool_), [*columns, *codec.to_arrow(records)])


def merge_changes(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the last row of each key, sorted by key group: a replay of them equals a replay of `batches` in order.

    `batches` are change sets of a single table, at least one, with equal schemas.

    Raises
    ------
    ValueError
        A batch is not sorted by key group: `last_of_each_key` takes rows in any order.
    """
    groups = [values_of(rows.column(0)) for rows in batches]
    if any(bool(np.any(found[1:] < found[:-1])) for found in groups):
        raise ValueError("change sets to merge have rows that are not sorted by key group")
    count = sum(map(len, groups))
    last_group = max((int(found[-1]) for found in groups if len(found)), default=0)
    steps = max(1, min(-(-count // MERGED_ROWS), last_group + 1))
    stops = np.linspace(0, last_group + 1, 1 + steps).astype(np.int64)[1:]
    bounds = [np.concatenate([[0], np.searchsorted(found, stops)]) for found in groups]
    merged = [
        last_of_each_key(
            pa.concat_batches([rows.slice(at[i], at[i + 1] - at[i]) for rows, at in zip(batches, bounds, strict=True)])
        )
        for i in range(steps)
    ]
    return merged[0] if steps == 1 else pa.concat_batches(merged)


def last_of_each_key(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The last row of each key, sorted by key group; the rows of several change sets may follow each other."""
    key_schema = key_schema_of(rows.schema)
    index = new_index(key_schema)
    index.reserve(len(rows))
    slots, *_ = index.lookup(encode_columns([rows.column(name) for name in key_schema.names], key_schema.names), 1)
    last = kernels.last_rows(slots, len(index))
    groups = values_of(rows.column(0))[last]
    targets, _ = kernels.targets_by_group(groups, int(groups.max(initial=-1)) + 1)
    return rows.take(pa.array(placed(last, targets)))


def within(rows: pa.RecordBatch, key_group_start: int, key_group_stop: int) -> pa.RecordBatch:
    """The rows of key groups `[key_group_start, key_group_stop)`; all of them without a copy."""
    groups = values_of(rows.column(0))
    chosen = (groups >= key_group_start) & (groups < key_group_stop)
    return rows if chosen.all() else rows.filter(pa.array(chosen))
