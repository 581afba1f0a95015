"""The state table: keyed rows in columns, changed in transactions, each for a batch, over an optional base store.

    begin ── lookup, write in place, lookup, … ── changes ── commit ──┐ rewind: back over several batches
                                             └────────────── undo     ▼
                          base store ──read──► rows in memory ──write-back──► base store

Everything rests on one mechanism: the first touch of a row in a batch saves the old row (`transaction`). Net changes,
undo, rewind (`history`), dirty rows and the rows that leave memory (`residency`) follow from the touched rows. Without
a base store (`HashMapState`) all rows are in memory.

Invariants: outside a batch, the index holds only present rows, and at most as many as the cache's limit. A slot is
valid until its batch ends. A single thread at a time uses a table, but any thread may call `release`, `collect` and
`capture`. Does not own the log, files or key groups.
"""

import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.ids import BatchNumber
from holdfast.state import kernels
from holdfast.state.capture import Captured
from holdfast.state.changes import StoredRows, codec_of, decoded, merge_changes, stored_rows, stored_schema, within
from holdfast.state.columns import Column, object_field
from holdfast.state.deleted import DeletedRows
from holdfast.state.history import UNDO_BYTES_MAX, UndoHistory, UndoSegment
from holdfast.state.keys import check_key_types, declared_columns, encode_columns, refuse_nulls
from holdfast.state.physical import Bools, Integers, Slots, values_of
from holdfast.state.residency import BaseStore, Residency
from holdfast.state.rows import OldRows, Presence, Rows
from holdfast.state.survey import RowFilter, Survey, SurveyPlace, survey
from holdfast.state.transaction import Transaction
from holdfast.state.unlogged import Unlogged, touched_by
from holdfast.state.widening import check_stored, widened

__all__ = ["Captured", "Column", "StateTable", "merge_changes", "object_field", "stored_schema"]

STAMP_MAX = (1 << 31) - 1
_NONE = np.empty(0, np.int32)


class StateTable:
    """Rows of `value_schema` by keys of `key_schema`.

    Parameters
    ----------
    key_schema, value_schema
        Arrow schemas without common names. Values live in NumPy columns (`columns`).
    max_parallelism
        The number of key groups of the job.
    base
        The store of the rows that are not in memory; closed with the table. None: all rows are in memory.
    cache_max_entries
        Number of rows, the most recently used, that stay in memory after a batch if there is a base.
    undo_bytes_max
        Bound on the memory that undo of committed batches takes; beyond it, the oldest undo is dropped.
    """

    def __init__(
        self,
        key_schema: pa.Schema,
        value_schema: pa.Schema,
        max_parallelism: int,
        *,
        base: BaseStore | None = None,
        cache_max_entries: int = 0,
        undo_bytes_max: int = UNDO_BYTES_MAX,
    ) -> None:
        check_key_types(key_schema)
        self.key_schema = key_schema
        self.value_schema = value_schema
        self.max_parallelism = max_parallelism
        self.commits: int | None = None
        """Batches committed since rows were last written outside a batch (by restore or rewind); None before any."""
        self._stored_schema = stored_schema(key_schema, value_schema)
        if len(set(self._stored_schema.names)) < len(self._stored_schema):
            raise JobRefused(f"the state's columns {self._stored_schema.names} have a name twice; rename a column")
        self._rows = Rows(key_schema, value_schema, max_parallelism)
        self._by_name = {column.field.name: column for column in self._rows.columns}
        self._stamp = 0
        self._count = 0
        self._transaction: Transaction | None = None
        self._history = UndoHistory(undo_bytes_max)
        self._residency: Residency | None = None
        if base is not None:
            self._residency = Residency(self._rows, base, cache_max_entries, max_parallelism, self._slots_go)
        self._unlogged = Unlogged(self._rows, self._history)
        self._deleted = DeletedRows(self._rows, self._history, self._unlogged, self._slots_go, base is None)
        self.added = (0, 0, 0)
        """The numbers of the rows that the last batch left to be collected: see `Unlogged`."""
        self._captured: weakref.WeakSet[Captured] = weakref.WeakSet()
        self._may_defer = not any(column.has_objects for column in self._rows.columns)
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """The number of present rows, in memory or not."""
        return self._count + (0 if self._transaction is None else self._transaction.appeared(self._rows))

    @property
    def in_batch(self) -> bool:
        return self._transaction is not None

    @property
    def rows_in_memory(self) -> int:
        return len(self._rows) - self._deleted.absent

    @property
    def memory_bytes(self) -> int:
        """Index, keys, values, the base store's own memory, captured rows; objects estimated; no `undo_bytes`."""
        captured = sum(each.memory_bytes for each in self._captured)
        base = 0 if self._residency is None else self._residency.memory_bytes
        rows = self._rows.memory_bytes - self._deleted.memory_bytes
        return rows + self._rows.arena.unused_bytes(self.undo_bytes) + base + captured

    @property
    def row_bytes(self) -> float:  # of values, on average
        return self._rows.row_bytes

    @property
    def rows_bytes(self) -> int:
        """About the `nbytes` of all rows in `StoredRows`; 0 if unknown: over a base store, and with objects."""
        known = self._residency is None and self._may_defer
        return int(self.rows_in_memory * self._rows.stored_slot_bytes) + self._rows.arena.live_bytes if known else 0

    @property
    def settled(self) -> bool:
        """True if the base store's files are now about as small as they get."""
        return self._residency is not None and self._residency.base.settled

    @property
    def undo_bytes(self) -> int:
        """Memory of the rows saved by the batch in flight and by earlier batches, for undo and for the changelog."""
        kept = max(self._history.memory_bytes, self._unlogged.memory_bytes) + self._unlogged.unseen_bytes
        return self.undo_in_flight_bytes + kept + self._deleted.memory_bytes

    @property
    def undo_in_flight_bytes(self) -> int:
        """Memory of the rows saved by the batch in flight."""
        return 0 if self._transaction is None else self._transaction.memory_bytes

    @property
    def recent_cache_accesses(self) -> tuple[int, int]:
        """Hits and look-ups behind `stateCacheHitRatio`; zeros without a base store and before the first batch."""
        return (0, 0) if self._residency is None else self._residency.hit_ratio.recent

    @property
    def cache_accesses(self) -> tuple[int, int]:
        """Two numbers of distinct rows that batches looked up so far: those that were in memory, and all."""
        return (0, 0) if self._residency is None else self._residency.hit_ratio.so_far

    def stored_schema(self) -> pa.Schema:
        """The schema of `changes`, `snapshot` and `apply`: key group, deleted, keys, values."""
        return self._stored_schema

    def column(self, name: str) -> Column:
        """The value column `name`."""
        return self._by_name[name]

    @property
    def present(self) -> Presence:
        """The presence of each row, by slot. Operators set it."""
        return Presence(self._rows)

    def begin(self, batch: BatchNumber) -> None:
        """Start a transaction. There must be none."""
        self._refuse_in_batch("begin")
        with self._lock:
            self._transaction = Transaction(batch, self._unlogged.begin(self._next_stamp()), self._rows.copy(_NONE))

    def lookup(self, rows: pa.RecordBatch, inserts: bool = True) -> Slots:
        """The slot of each row's key. Unknown keys get a blank row that is not present; without `inserts`, slot -1.

        All returned slots count as touched. A look-up may replace the arrays of columns: fetch them after it. Raises
        `BadRecord` for a key column that is missing, has another type than declared, or (a single one) holds a null,
        and `StateTooLarge` for a table with as many rows in memory as slots can number.
        """
        transaction = self._in_transaction("lookup")
        keys = encode_columns(declared_columns(rows, self.key_schema), self.key_schema.names)
        refuse_nulls(keys, self.key_schema.names)
        with self._lock:
            slots, fresh, unseen = self._rows.lookup(keys, self._stamp, transaction.first_stamp, inserts)
            old = self._rows.copy(fresh) if self._residency is None else self._residency.looked_up(slots, fresh)
            transaction.save(old, unseen)
            self._save_for_captured(old)
        return slots

    def find(self, rows: pa.RecordBatch) -> tuple[Integers, Slots]:
        """Look up the rows that are there: the numbers of the keys that have one, and its slots."""
        slots = self.lookup(rows, inserts=self._residency is not None)
        there = slots >= 0
        there[there] = self._rows.present_at(slots[there])
        return np.flatnonzero(there), slots[there]

    def measure(self, *, added: bool = False) -> None:
        """Measure objects that the batch put into rows; `added`: in a large batch, only those in newly touched rows."""
        with self._lock:
            self._in_transaction("measure").measure(self._rows, added)

    def touched(self) -> Slots:
        """The distinct slots touched in this batch, in order of first touch."""
        return self._in_transaction("touched").old_rows().slots

    def appeared(self) -> Slots:
        """The slots of the rows that are present now and were not before the batch in flight."""
        old = self._in_transaction("appeared").old_rows()
        return old.slots[self._rows.present_at(old.slots) & ~old.present]

    def keys_of(self, slots: Slots) -> pa.RecordBatch:
        """The key columns of `slots`, in their order."""
        return pa.RecordBatch.from_arrays(self._rows.index.columns(slots), schema=self.key_schema)

    def rows_of(self, slots: Slots) -> pa.RecordBatch:
        """Key and value columns of `slots`, in their order; rows that are not present have null values."""
        schema = pa.schema([*self.key_schema, *self.value_schema])
        return pa.RecordBatch.from_arrays(self._rows.arrow(self._rows.copy(slots)), schema=schema)

    def survey(self, place: SurveyPlace, rows_max: int, wanted: RowFilter | None) -> Survey:
        """Look at the next rows of a round over all rows, without touching them (see `survey`)."""
        return survey(self._rows, self._residency, place, rows_max, wanted)

    def changes(self) -> pa.RecordBatch | None:
        """The net changes of the batch so far in the stored schema, a row for each key; None if there are none.

        A row written with its old values is no change, nor is a row inserted and deleted. Objects that can be changed
        in place always count as changed.
        """
        old = self._in_transaction("changes").old_rows()
        return self._changes(old, self._rows.changed(old))

    def defer_changes(self) -> "StateTable | pa.RecordBatch | None":
        """Return the source of the batch's changes: the table itself, whose `collect` reads them after the commit.

        The batch must not write any more. A table with objects returns its `changes` at once, so that a value that does
        not fit its type fails this batch. None: there are no changes.
        """
        transaction = self._in_transaction("defer_changes")
        if not self._may_defer:
            old = transaction.old_rows()
            transaction.changed = self._rows.changed(old)
            return self._changes(old, transaction.changed)
        transaction.deferred = not transaction.is_empty
        return self if transaction.deferred else None

    def collect(self, up_to_batch: BatchNumber) -> list[StoredRows]:
        """Take out the deferred changes of batches up to `up_to_batch`, in order of replay: at least one change set,
        maybe without rows. Any thread may call it. Raises `CheckpointFailed` as `Unlogged.take` does."""
        with self._lock:
            parts, slots_used = self._unlogged.waiting(up_to_batch), self._rows.index.slots_used
        touched = touched_by(parts, slots_used)
        with self._lock:
            in_flight = None if self._transaction is None else self._transaction.old_rows()
            taken = self._unlogged.take(up_to_batch, in_flight, parts, touched)
        net = taken.net(self._rows) or [self._rows.with_keys(self._rows.copy(_NONE))]
        return [StoredRows(self._stored_schema, self._rows, each.by_group(self.max_parallelism)) for each in net]

    def commit(self) -> None:
        """End the transaction; its changes stay. Rows that are not present are removed."""
        transaction = self._in_transaction("commit")
        with self._lock:
            old = transaction.old_rows()
            present = self._rows.present_at(old.slots)
            appeared = int(np.count_nonzero(present)) - int(np.count_nonzero(old.present))
            self._transaction = None
            self.commits = (self.commits or 0) + 1
            self._count += appeared
            transaction.measure(self._rows)
            if self._residency is not None:
                changed = self._residency.committed(old, present, transaction.changed)
            else:  # look-ups of keys that are not there change nothing
                changed = old.only(old.present | present)
            if len(changed.slots):
                segment = UndoSegment(transaction.batch, changed, appeared, object_bytes=transaction.object_bytes)
                self._history.add(segment)
                if transaction.deferred:
                    self._unlogged.add(segment, transaction.unseen(), whole=changed is old)
            self.added = self._unlogged.added
            self._settle(old.slots, present, old.present)

    def undo(self) -> None:
        """End the transaction and restore every row that it touched; a row may later have another slot."""
        old = self._in_transaction("undo").old_rows()
        with self._lock:
            self._transaction = None
            self._rows.put(old.slots, old)
            self._settle(old.slots, old.present, old.present)

    def rewind(self, to_batch: BatchNumber) -> None:
        """Undo all committed batches after `to_batch`, outside a batch. Raises `HoldfastError` if the kept undo does
        not reach back so far: it was released, or dropped to save memory."""
        self._refuse_in_batch("rewind")
        with self._lock:
            undone = []
            taken = self._history.take_after(to_batch)
            self._unlogged.rewind(to_batch)
            for segment in taken:
                slots = segment.rows.slots
                if segment.keys is not None:
                    slots, *_ = self._rows.lookup(segment.keys, self._next_stamp())
                self._about_to_change(slots)
                self._rows.put(slots, segment.rows)
                self._count -= segment.appeared
                undone.append(slots)
            self._put_anew(undone)

    def shrink_undo(self, bytes_max: int) -> None:
        """Drop the oldest undo, outside a batch, down to `bytes_max`; `rewind` then reaches less far back."""
        self._refuse_in_batch("shrink_undo")
        with self._lock:
            self._history.shrink(bytes_max)
            self._unlogged.shrink(bytes_max)  # changes that wait to be logged hold the same rows
            self._deleted.remove(bytes_max - self._history.memory_bytes)

    def release(self, up_to_batch: BatchNumber) -> None:
        """Allow undo up to `up_to_batch` to be dropped, since a completed checkpoint has that state."""
        self._history.release(up_to_batch)
        if self._residency is not None:
            self._residency.base.flush_ahead()

    def apply(self, changes: pa.RecordBatch, key_group_start: int, key_group_stop: int, *, blind: bool = False) -> None:
        """Replay a change set or snapshot, outside a batch; rows of other key groups are left out.

        The last row of a key wins. A `rewind` does not undo it. With `blind`, the base store's records of these rows
        are replaced without being read, so the number of rows is unknown until `count_is`. Value columns are matched by
        name: a column that `changes` lacks becomes null in its rows, a column that only `changes` has is left out, a
        column of a narrower type is widened.

        Raises
        ------
        JobRefused
            A column has another type than declared here, or a key column is missing.
        """
        self._refuse_in_batch("apply")
        names = check_stored(changes.schema, self._stored_schema)
        with self._lock:
            self._apply(within(changes, key_group_start, key_group_stop), names, blind)

    def _apply(self, rows: pa.RecordBatch, names: Sequence[str], blind: bool) -> None:
        keys = encode_columns([rows.column(name) for name in self.key_schema.names], self.key_schema.names)
        slots, touched, _ = self._rows.lookup(keys, self._next_stamp())
        if self._residency is not None:
            self._residency.looked_up(slots, touched, read=not blind)
        self._about_to_change(touched)
        before = int(np.count_nonzero(self._rows.present_at(touched)))
        for column in self._rows.columns:
            if column.field.name in names:
                column.scatter(slots, *column.from_arrow(widened(rows.column(column.field.name), column.field.type)))
            else:
                column.clear(touched)
        kernels.scatter(self._rows.present, slots, ~values_of(rows.column(1)))
        self._count += int(np.count_nonzero(self._rows.present_at(touched))) - before
        self._put_anew([touched])

    def load(self, stored: pa.Schema, records: Iterable[tuple[list[bytes], list[bytes]]]) -> None:
        """Add new rows. `records` are those of a base store whose table has the schema `stored`. Raises as `apply`
        does."""
        self._refuse_in_batch("load")
        self.commits = None
        as_they_are = self._residency is not None and stored.equals(self._stored_schema)
        codec = codec_of(stored)
        for keys, values in records:
            if self._residency is not None and as_they_are:
                self._residency.base.write(keys, values, [])
                self._count += len(keys)
            else:
                self.apply(decoded(stored, codec, keys, values), 0, self.max_parallelism)

    def adopt(self, stored: pa.Schema, folder: Path) -> bool:
        """Take over the files of a base store that a table of schema `stored` wrote; the caller then calls `count_is`.
        Returns False, and does nothing, if this table has no base store, has another schema or is not empty.
        """
        self._refuse_in_batch("adopt")
        residency = self._residency
        if residency is None or not residency.base.is_empty or len(self) or not stored.equals(self._stored_schema):
            return False
        residency.base.adopt(folder)
        self.commits = None
        return True

    def count_is(self, rows: int) -> None:
        """Set the number of present rows, after `adopt` or a blind `apply`."""
        self._count = rows

    def capture(self) -> Captured:
        """Capture all rows as the last commit left them. Any thread may call it, also during a batch. A row is copied
        when it changes or is read. Rows in the base store are not read: its files hold them."""
        if self._residency is not None:
            self._residency.base.flush()
        with self._lock:
            in_flight = None if self._transaction is None else self._transaction.old_rows()
            used, files = self._rows.index.slots_used, None
            if self._residency is None or self._residency.base.is_empty:
                wanted = self._rows.present[:used].copy()
                if in_flight is not None:
                    kernels.scatter(wanted, in_flight.slots, in_flight.present)
            else:
                wanted = self._residency.dirty[:used].copy()
                files = self._residency.base.checkpoint()
            captured = Captured(
                self._rows, wanted, files, self._count, self._stored_schema, self.max_parallelism, self._lock
            )
            if in_flight is not None:
                captured.touched(in_flight)
            self._captured.add(captured)
            self._unlogged.note_capture()
            return captured

    def snapshot(self) -> pa.RecordBatch:
        """A copy of all present rows in the stored schema, sorted by key group."""
        if self._residency is None or self._residency.base.is_empty:
            return self._snapshot(self._rows.live())
        whole = StateTable(self.key_schema, self.value_schema, self.max_parallelism)
        for keys, records in self._residency.base.scan():
            rows = decoded(self._stored_schema, self._residency.codec, keys, records)
            whole.apply(rows, 0, self.max_parallelism)
        in_memory = self._rows.live() if self._transaction is None else np.union1d(self.touched(), self._rows.live())
        whole.apply(self._snapshot(in_memory), 0, self.max_parallelism)
        return whole.snapshot()

    def close(self) -> None:
        """Close the base store and delete its files."""
        if self._residency is not None:
            self._residency.base.close()

    def _changes(self, old: OldRows, changed: Bools) -> pa.RecordBatch | None:
        return self._snapshot(old.slots[changed]) if changed.any() else None

    def _snapshot(self, slots: Slots) -> pa.RecordBatch:
        """Return the current rows, in the stored schema."""
        copies = self._rows.with_keys(self._rows.copy(slots))
        return stored_rows(self._stored_schema, self._rows, copies.by_group(self.max_parallelism))

    def _slots_go(self, slots: Slots) -> None:
        """Prepare for `slots` losing their keys: captures and waiting changes read rows, and undo copies keys."""
        self._about_to_change(slots)
        self._unlogged.resolve()
        self._history.fix_keys(self._rows.index)

    def _about_to_change(self, slots: Slots) -> None:
        """Let captures save the rows at `slots`, which are about to change without a look-up by a batch."""
        if self._captured:
            self._save_for_captured(self._rows.copy(slots))

    def _save_for_captured(self, old: OldRows) -> None:
        for captured in self._captured:
            captured.touched(old)

    def _put_anew(self, parts: Sequence[Slots]) -> None:
        """Note rows that were written outside a batch: all of them are dirty."""
        self.commits = None
        slots = np.unique(np.concatenate(parts)) if len(parts) > 1 else next(iter(parts), _NONE)
        self._rows.measure_objects(slots)
        if self._residency is not None:
            self._residency.put_anew(slots)
        self._settle(slots, self._rows.present_at(slots), np.ones(len(slots), np.bool_))

    def _settle(self, touched: Slots, present: Bools, before: Bools) -> None:
        """End a batch: remove absent rows from the index, evict rows past the cache's limit, and give memory back."""
        if not present.all():
            removed = self._deleted.settle(touched[~present], before[~present])
            if self._residency is not None:
                self._residency.removed(removed)
        if self._residency is not None:
            self._residency.enforce()
        self._deleted.remove()
        if self._rows.sparse(0 if self._residency is None else len(self._rows) + len(touched)):
            self._compact()
        self._rows.compact_arena()

    def _compact(self) -> None:
        """Move rows together. Slots are valid only within a batch, so rows may move between batches."""
        live = self._rows.live()
        self._slots_go(live)
        self._rows.compact(live)
        self._deleted.clear()
        if self._residency is not None:
            self._residency.renumber(live)

    def _next_stamp(self) -> int:
        if self._stamp == STAMP_MAX:
            self._rows.index.clear_stamps()
            self._stamp = 0
        self._stamp += 1
        return self._stamp

    def _in_transaction(self, call: str) -> Transaction:
        if self._transaction is None:
            raise RuntimeError(f"{call}() on a state table outside a batch; call begin(batch) first")
        return self._transaction

    def _refuse_in_batch(self, call: str) -> None:
        if self._transaction is not None:
            raise RuntimeError(f"{call}() on a state table in batch {self._transaction.batch}; commit or undo first")
