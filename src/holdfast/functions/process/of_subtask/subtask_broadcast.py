"""The broadcast states of a running function: entries for Python and rows for Arrow, over the rows of a table.

    rows of the stream ──in unit order──► table (key → other columns) ──► entries (Python), rows (Arrow)

The key columns are an entry's key, the other columns its value; the last row of a key counts. A row removes its key
where `_change_type` says so, or, in a stream without that column, where all other columns are null.

Invariants: all broadcast rows of a batch are in the table before the first other row of the batch is processed. Every
subtask gets the same rows in the same order, so the tables are equal after each batch. The views for Python and Arrow
follow the table: its count of commits shows that a batch was undone or rewound. Does not own: which subtask stores the
table (`materialize/replica.py`); rows with an unknown `_change_type`, which the sender sets aside once for all subtasks
(`exchange/task.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.functions.operator import OperatorInput
from holdfast.functions.process.of_subtask.broadcast import BroadcastState, broadcast_schema, broadcast_table
from holdfast.functions.rows.calls import named_tuples
from holdfast.functions.rows.columns import BoolArray, concatenated
from holdfast.python_values import exact_values
from holdfast.schema import CHANGE_TYPE, REMOVING_CHANGES
from holdfast.state.changes import DELETED, KEY_GROUP
from holdfast.state.table import StateTable

BROADCAST_ENTRY_BYTES, BROADCAST_CELL_BYTES = 200, 60
"""Estimates of the memory in bytes that an entry takes as Python objects: for itself, and for each of its columns."""


class BroadcastEntries(BroadcastState):
    """The broadcast state of a running subtask. `table` has a row for each entry."""

    def __init__(self, operator: str, found: OperatorInput, max_parallelism: int) -> None:
        schema = broadcast_schema(found)
        self.table = StateTable(schema.keys, schema.values, max_parallelism)
        self._schema = found.schema
        self._key_of = named_tuples("Key", schema.keys.names)
        self._value_of = named_tuples("Value", schema.values.names)
        self._entries: dict[Any, Any] | None = None
        self._ordered: list[Any] | None = None
        self._rows: pa.RecordBatch | None = None
        self._seen_at: tuple[int | None, ...] = ()
        """The counts of the table's commits at which the views are up to date."""

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the views besides the table."""
        columns = len(self.table.key_schema) + len(self.table.value_schema)
        entries = (
            0
            if self._entries is None
            else len(self._entries) * (BROADCAST_ENTRY_BYTES + columns * BROADCAST_CELL_BYTES)
        )
        return entries + (0 if self._rows is None else self._rows.nbytes)

    # A batch.

    def begin(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Bring the views to the state of the table, then take the batch's rows."""
        self._follow_table()
        commits, rows = self.table.commits, concatenated(batches, self._schema)
        self._seen_at = ((commits or 0) + 1,) if rows.num_rows else (commits, (commits or 0) + 1)
        if rows.num_rows:
            self._take(rows)

    def _follow_table(self) -> None:
        """Forget the views if a batch was undone, or if rows were written again."""
        commits = self.table.commits
        if commits is None or commits not in self._seen_at:
            self._entries = None
            self._forget_order()

    def _take(self, rows: pa.RecordBatch) -> None:
        slots = self.table.lookup(rows)
        _, backwards = np.unique(slots[::-1], return_index=True)
        last = np.sort(len(slots) - 1 - backwards)
        slots, rows = slots[last], rows.take(pa.array(last))
        kept = ~self._removing(rows)
        put = rows.filter(pa.array(kept))
        for field in self.table.value_schema:
            column = self.table.column(field.name)
            column.scatter(slots[kept], *column.from_arrow(put.column(field.name)))
        self.table.present[slots] = kept
        self._forget_order()
        if self._entries is not None:
            for key in self._keys(rows.filter(pa.array(~kept))):
                self._entries.pop(key, None)
            self._entries.update(self._pairs(put))

    def _removing(self, rows: pa.RecordBatch) -> BoolArray:
        """Tell which rows remove their keys."""
        if CHANGE_TYPE in rows.schema.names:
            return _mask(pc.is_in(rows.column(CHANGE_TYPE), value_set=pa.array(REMOVING_CHANGES)))
        values = [rows.column(name) for name in self.table.value_schema.names]
        if not values:
            return np.zeros(rows.num_rows, np.bool_)
        empty: BoolArray = np.logical_and.reduce([_mask(column.is_null()) for column in values])
        return empty

    def _forget_order(self) -> None:
        self._ordered = self._rows = None

    # Calls of a function.

    def get(self, key: Any, default: Any = None) -> Any:
        return self._all().get(key, default)

    def contains(self, key: Any) -> bool:
        return key in self._all()

    def keys(self) -> list[Any]:
        if self._ordered is None:
            self._ordered = sorted(self._all())
        return list(self._ordered)

    def values(self) -> list[Any]:
        entries = self._all()
        return [entries[key] for key in self.keys()]

    def items(self) -> list[tuple[Any, Any]]:
        entries = self._all()
        return [(key, entries[key]) for key in self.keys()]

    def is_empty(self) -> bool:
        return not len(self.table)

    def rows(self) -> pa.RecordBatch:
        if self._rows is None:
            rows = self._stored()
            keys = list(self._keys(rows))
            self._rows = rows.take(pa.array(sorted(range(len(keys)), key=keys.__getitem__), pa.int64()))
        return self._rows

    def _all(self) -> dict[Any, Any]:
        if self._entries is None:
            self._entries = dict(self._pairs(self._stored()))
        return self._entries

    def _stored(self) -> pa.RecordBatch:
        return self.table.snapshot().drop_columns([KEY_GROUP, DELETED])

    def _pairs(self, rows: pa.RecordBatch) -> Iterator[tuple[Any, Any]]:
        columns = [exact_values(rows.column(name)) for name in self.table.value_schema.names]
        values = zip(*columns, strict=True) if columns else [()] * rows.num_rows
        return zip(self._keys(rows), map(self._value_of, values), strict=True)

    def _keys(self, rows: pa.RecordBatch) -> Iterator[Any]:
        columns = [exact_values(rows.column(name)) for name in self.table.key_schema.names]
        return iter(columns[0]) if len(columns) == 1 else map(self._key_of, zip(*columns, strict=True))


class Broadcasts:
    """All broadcast states of a subtask; `inputs[n]` is the operator's input number n + 1."""

    def __init__(self, operator: str, inputs: Sequence[OperatorInput], max_parallelism: int) -> None:
        self._states = [BroadcastEntries(operator, found, max_parallelism) for found in inputs]
        self.by_name = {found.broadcast: state for found, state in zip(inputs, self._states, strict=True)}
        self.tables = {broadcast_table(name): state.table for name, state in self.by_name.items()}

    @property
    def memory_bytes(self) -> int:
        return sum(state.memory_bytes for state in self._states)

    def take(self, inputs: list[tuple[int, pa.RecordBatch]]) -> None:
        """Take the broadcast rows of a batch."""
        for number, state in enumerate(self._states, 1):
            state.begin([rows for found, rows in inputs if found == number])


def _mask(found: Any) -> BoolArray:
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
