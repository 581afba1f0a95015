"""The state table: keyed rows in columns, changed in transactions, one a batch.

    begin ── lookup, write in place, lookup, … ── changes ── commit
                                             └────────────── undo

One mechanism carries all of it: the first touch of a row in a batch saves the row (`transaction`). From the touched
rows come the net changes, undo, and what is removed from the index when the batch ends.

Invariants: outside a batch, the index holds exactly the present rows. A slot is valid until its batch ends.
Used by one thread at a time. Does not own the log, files, or which key groups a subtask has.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRecord, JobRefused
from holdfast.state import kernels
from holdfast.state.changes import merge_changes, stored_batch, stored_schema, within
from holdfast.state.columns import Column, object_field
from holdfast.state.index import new_index
from holdfast.state.keys import check_key_types, encode_columns, refuse_nulls
from holdfast.state.physical import Bools, Integers, values_of
from holdfast.state.transaction import OldRows, Transaction

__all__ = ["Column", "StateTable", "merge_changes", "object_field", "stored_schema"]

STAMP_MAX = (1 << 31) - 1
COMPACT_FROM = 4096
"""Slots below which a table with many free ones is left as it is."""
COMPACT_SHARE = 4
"""A table is compacted once fewer than one in this many of its slots are in use."""
OBJECT_SAMPLE = 64


class StateTable:
    """Rows of `value_schema` by keys of `key_schema`.

    Parameters
    ----------
    key_schema, value_schema
        Arrow schemas without common names. Fixed-width values live in NumPy columns as physical values,
        others as objects (`columns`).
    max_parallelism
        The number of key groups of the job.
    """

    def __init__(self, key_schema: pa.Schema, value_schema: pa.Schema, max_parallelism: int) -> None:
        check_key_types(key_schema)
        self.key_schema = key_schema
        self.value_schema = value_schema
        self.max_parallelism = max_parallelism
        self._stored_schema = stored_schema(key_schema, value_schema)
        self._index = new_index(key_schema)
        self._columns = [Column(field, self._index.slot_capacity) for field in value_schema]
        self._by_name = {column.field.name: column for column in self._columns}
        if len(set(self._stored_schema.names)) < len(self._stored_schema):
            raise JobRefused(f"the state's columns {self._stored_schema.names} have a name twice; rename one")
        self.present: Bools = np.zeros(self._index.slot_capacity, np.bool_)
        """By slot: whether the row exists. Operators set it; replaced by lookups like the columns."""
        self._stamp = 0
        self._transaction: Transaction | None = None
        self._object_bytes = 0.0

    def __len__(self) -> int:
        """The number of present rows."""
        if self._transaction is None:
            return len(self._index)
        return int(np.count_nonzero(self.present))

    @property
    def in_batch(self) -> bool:
        return self._transaction is not None

    @property
    def memory_bytes(self) -> int:
        """Index, keys and values; without `undo_bytes`. Objects are estimated from a sample of the last batch."""
        arrays = self._index.memory_bytes + self.present.nbytes + sum(column.memory_bytes for column in self._columns)
        return arrays + int(self._object_bytes * len(self._index))

    @property
    def undo_bytes(self) -> int:
        """What the rows saved by the batch in flight take."""
        return 0 if self._transaction is None else self._transaction.memory_bytes

    def stored_schema(self) -> pa.Schema:
        """The schema of `changes`, `snapshot` and `apply`: key group, deleted, keys, values."""
        return self._stored_schema

    def column(self, name: str) -> Column:
        """The value column `name`."""
        return self._by_name[name]

    def begin(self, batch: int) -> None:
        """Start a transaction. There must be none."""
        self._refuse_in_batch("begin")
        self._next_stamp()
        self._transaction = Transaction(batch)

    def lookup(self, rows: pa.RecordBatch) -> Integers:
        """The slot of each row's key. Unknown keys get a blank row that is not present.

        All slots returned count as touched. Columns' arrays and `present` may have been replaced: fetch them after it
        (`table.present[table.lookup(rows)] = True` writes into the old one).

        Raises
        ------
        BadRecord
            A key column is missing, has another type than declared, or (a single key column) holds a null.
        """
        transaction = self._in_transaction("lookup")
        keys = encode_columns(self._key_columns(rows), self.key_schema.names)
        refuse_nulls(keys, self.key_schema.names)
        slots, fresh = self._index.lookup(keys, self._stamp)
        self._fit()
        transaction.save(fresh, self.present, self._columns)
        return slots

    def touched(self) -> Integers:
        """The distinct slots touched in this batch, in order of first touch."""
        return self._old_rows("touched").slots

    def keys_of(self, slots: Integers) -> pa.RecordBatch:
        """The key columns of `slots`, in their order."""
        return pa.RecordBatch.from_arrays(self._index.columns(slots), schema=self.key_schema)

    def rows_of(self, slots: Integers) -> pa.RecordBatch:
        """Key and value columns of `slots`, in their order; rows that are not present have null values."""
        schema = pa.schema([*self.key_schema, *self.value_schema])
        return pa.RecordBatch.from_arrays(self._row_columns(slots, kernels.gather(self.present, slots)), schema=schema)

    def changes(self) -> pa.RecordBatch | None:
        """The net changes of the batch so far in the stored schema, one row a key; None where there are none.

        A row that was written but is as before (objects that can be changed in place are never taken to be), or
        was inserted and deleted, is no change.
        """
        old = self._old_rows("changes")
        present = kernels.gather(self.present, old.slots)
        changed = present != old.present
        for column, (values, valid) in zip(self._columns, old.columns, strict=True):
            if column.comparable:
                column.mark_changed(old.slots, values, valid, changed)
            else:
                changed[:] = True
        changed &= present | old.present
        slots = old.slots if changed.all() else old.slots[changed]
        return self._stored(slots) if len(slots) else None

    def commit(self) -> None:
        """End the transaction; what it did stays. Rows that are not present are removed."""
        old = self._old_rows("commit")
        self._transaction = None
        self._estimate_objects(old.slots)
        self._remove_absent(old.slots)
        self._compact_if_sparse()

    def undo(self) -> None:
        """End the transaction; every row is as before it, though maybe at another slot later on."""
        old = self._old_rows("undo")
        self._transaction = None
        for column, (values, valid) in zip(self._columns, old.columns, strict=True):
            column.scatter(old.slots, values, valid)
        kernels.scatter(self.present, old.slots, old.present)
        self._remove_absent(old.slots)

    def apply(self, changes: pa.RecordBatch, key_group_start: int, key_group_stop: int) -> None:
        """Replay a change set or snapshot, outside a batch; rows of other key groups are left out.

        The last row of a key wins.
        Value columns are met by name: one that `changes` lacks becomes null in its rows, one that only `changes`
        has is left out.

        Raises
        ------
        JobRefused
            A column has another type than declared here, or a key column is missing.
        """
        self._refuse_in_batch("apply")
        names = self._check_stored(changes.schema)
        rows = within(changes, key_group_start, key_group_stop)
        keys = encode_columns([rows.column(name) for name in self.key_schema.names], self.key_schema.names)
        slots, touched = self._index.lookup(keys, self._next_stamp())
        self._fit()
        for column in self._columns:
            if column.field.name in names:
                column.scatter(slots, *column.from_arrow(rows.column(column.field.name)))
            else:
                column.clear(touched)
        kernels.scatter(self.present, slots, ~values_of(rows.column(1)))
        self._estimate_objects(touched)
        self._remove_absent(touched)

    def snapshot(self) -> pa.RecordBatch:
        """A copy of all present rows in the stored schema, sorted by key group."""
        return self._stored(np.flatnonzero(self.present))

    def _stored(self, slots: Integers) -> pa.RecordBatch:
        groups = self._index.key_groups(slots, self.max_parallelism)
        slots, groups = kernels.sort_by_group(groups, self.max_parallelism, slots)
        present = kernels.gather(self.present, slots)
        return stored_batch(self._stored_schema, groups, ~present, self._row_columns(slots, present))

    def _row_columns(self, slots: Integers, present: Bools) -> list[Any]:
        """Key columns, and value columns with nulls where not `present`."""
        arrays = list(self._index.columns(slots))
        for column in self._columns:
            values, valid = column.gather(slots)
            valid &= present
            arrays.append(column.to_arrow(values, valid))
        return arrays

    def _key_columns(self, rows: pa.RecordBatch) -> list[Any]:
        arrays = []
        for field in self.key_schema:
            place = rows.schema.get_field_index(field.name)
            found = (
                f"type {rows.schema.field(place).type}" if place >= 0 else f"no such column among {rows.schema.names}"
            )
            if place < 0 or rows.schema.field(place).type != field.type:
                raise BadRecord(f"key column {field.name!r} is declared as {field.type}; the rows have {found}")
            arrays.append(rows.column(place))
        return arrays

    def _check_stored(self, schema: pa.Schema) -> Sequence[str]:
        names: list[str] = schema.names
        for field in self._stored_schema:
            value = field.name in self._by_name
            found = schema.field(field.name).type if field.name in names else None
            if found != field.type and not (value and found is None):
                raise JobRefused(
                    f"state column {field.name!r} is declared as {field.type}, but stored as {found or 'nothing'}; "
                    "declare it as stored, or drop the operator's state (drop_state)"
                )
        return names

    def _fit(self) -> None:
        """Columns reach as far as slots."""
        capacity = self._index.slot_capacity
        if len(self.present) < capacity:
            present = np.zeros(capacity, np.bool_)
            present[: len(self.present)] = self.present
            self.present = present
            for column in self._columns:
                column.grow(capacity)

    def _remove_absent(self, slots: Integers) -> None:
        """The only way out of the index: of `slots`, those that are not present."""
        absent = slots[~kernels.gather(self.present, slots)]
        if len(absent):
            for column in self._columns:
                column.clear(absent)
            self._index.remove(absent)

    def _compact_if_sparse(self) -> None:
        """Slots mean nothing between batches, so rows may move: memory follows the rows that are left."""
        if self._index.slots_used < COMPACT_FROM or len(self._index) * COMPACT_SHARE > self._index.slots_used:
            return
        live = np.flatnonzero(self.present)
        self._index.compact(live)
        for column in self._columns:
            column.compact(live, self._index.slot_capacity)
        self.present = np.arange(self._index.slot_capacity) < len(live)

    def _estimate_objects(self, slots: Integers) -> None:
        sample = slots[:OBJECT_SAMPLE]
        if len(sample):
            self._object_bytes = sum(c.object_bytes(sample) for c in self._columns if not c.fixed_width)

    def _next_stamp(self) -> int:
        if self._stamp == STAMP_MAX:
            self._index.clear_stamps()
            self._stamp = 0
        self._stamp += 1
        return self._stamp

    def _old_rows(self, call: str) -> OldRows:
        old = self._in_transaction(call).old_rows()
        if old is None:
            none = np.empty(0, np.int64)
            return OldRows(none, none.astype(np.bool_), [column.gather(none) for column in self._columns])
        return old

    def _in_transaction(self, call: str) -> Transaction:
        if self._transaction is None:
            raise RuntimeError(f"{call}() on a state table outside a batch; call begin(batch) first")
        return self._transaction

    def _refuse_in_batch(self, call: str) -> None:
        if self._transaction is not None:
            raise RuntimeError(
                f"{call}() on a state table inside batch {self._transaction.batch}; commit or undo first"
            )
