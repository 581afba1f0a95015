"""A state table against a plain dict, for each backend: random batches, undo, rewinds, evictions, replays, restores.

Cache limits are small, and keys collide on purpose, so that every batch evicts and every probe walks.
"""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import CheckpointFailed, CorruptObject, HoldfastError
from holdfast.settings import HashMapState, RocksDBState, StateBackend
from holdfast.state import arena, capture, changes, committed, hashing, residency, unlogged
from holdfast.state.backends import new_table
from holdfast.state.base_rocksdb import scan_folder
from holdfast.state.columns import is_object, object_field
from holdfast.state.table import Captured, StateTable, merge_changes

Row = tuple[Any, Any]

MASK = (1 << 64) - 1
VALUES: dict[str, tuple[pa.Schema, list[Any]]] = {
    "strings": (pa.schema([("n", pa.int32()), ("s", pa.string())]), ["", "u", "v" * 70, "é" * 40_000]),
    "bytes": (pa.schema([("n", pa.int32()), ("s", pa.large_binary())]), [b"", b"\0", b"w" * 65_535]),
    "bytes of a width": (pa.schema([("n", pa.int32()), ("s", pa.binary(3))]), [b"\0\0\0", b"abc"]),
    "decimals": (pa.schema([("n", pa.int32()), ("s", pa.decimal128(9, 2))]), [Decimal("-0.01"), Decimal("1.10")]),
    "nested": (
        pa.schema([("n", pa.int32()), ("s", pa.list_(pa.struct([("a", pa.string()), ("d", pa.decimal256(40, 1))])))]),
        [[], [None], [{"a": "é" * 30, "d": None}, {"a": None, "d": Decimal("-0.5")}]],
    ),
    "maps": (pa.schema([("n", pa.int32()), ("s", pa.map_(pa.string(), pa.int8()))]), [[], [("a", None), ("é" * 9, 1)]]),
    "fixed width": (pa.schema([("n", pa.int32()), ("s", pa.int64())]), [0, 1, -(2**60)]),
    "dictionaries": (pa.schema([("n", pa.int32()), ("s", pa.dictionary(pa.int8(), pa.string()))]), ["", "u", "é" * 9]),
    "objects": (pa.schema([("n", pa.int32()), object_field("s")]), [[1, "x", None], {"a": [1.5]}, "é" * 9, []]),
}


def unmix(output: int) -> int:
    """The int64 key whose mixed tag is `output`: those of small outputs all have the same home."""
    z = output ^ (output >> 31) ^ (output >> 62)
    z = z * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK
    z = z ^ (z >> 27) ^ (z >> 54)
    z = z * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK
    z = z ^ (z >> 30) ^ (z >> 60)
    key = (z - 0x9E3779B97F4A7C15) & MASK
    return key - (1 << 64) if key >> 63 else key


KEYS: dict[str, tuple[pa.Schema, list[tuple[Any, ...]]]] = {
    "int64": (pa.schema([("k", pa.int64())]), [(i * 2**40,) for i in range(-9, 20)]),
    "int64 that collide": (pa.schema([("k", pa.int64())]), [(unmix(i),) for i in range(20)]),
    "string": (pa.schema([("k", pa.string())]), [("x" * i,) for i in range(30)]),
    "string of one hash": (pa.schema([("k", pa.string())]), [("x" * i,) for i in range(30)]),
    "boolean": (pa.schema([("k", pa.bool_())]), [(True,), (False,)]),
    "binary": (pa.schema([("k", pa.binary(2))]), [(bytes([i, 9 - i]),) for i in range(9)]),
    "composite": (
        pa.schema([("a", pa.string()), ("b", pa.int16())]),
        [(a, b) for a in ("", "p", "pq", None) for b in (None, 0, 1, -1)],
    ),
}
BACKENDS: list[StateBackend] = [
    HashMapState(),
    RocksDBState(),
    RocksDBState(cache_max_entries=1),
    RocksDBState(cache_max_entries=5),
    RocksDBState(cache_max_entries=100),
]


class TableAgainstDict(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from(sorted(KEYS)), backend=st.sampled_from(BACKENDS), values=st.sampled_from(sorted(VALUES))
    )
    def create(self, kind: str, backend: StateBackend, values: str) -> None:
        self.begin_with(kind, backend, *VALUES[values])

    def begin_with(self, kind: str, backend: StateBackend, values: pa.Schema, cells: list[Any]) -> None:
        self.schema, self.universe = KEYS[kind]
        self.values = values
        self.new_rows = st.tuples(st.none() | st.integers(-2, 2), st.none() | st.sampled_from(cells))
        self.backend = backend
        self.folder = tempfile.mkdtemp()
        self.hash_bytes = hashing.hash_bytes
        self.piece_rows = capture.PIECE_ROWS, residency.PIECE_ROWS_MAX
        capture.PIECE_ROWS = residency.PIECE_ROWS_MAX = 3
        self.merged_rows, changes.MERGED_ROWS = changes.MERGED_ROWS, 2
        self.waiting_max = unlogged.WAITING_BYTES_MAX, unlogged.LAG_BATCHES
        unlogged.WAITING_BYTES_MAX, unlogged.LAG_BATCHES = 100, 1
        self.garbage_min, arena.GARBAGE_MIN = arena.GARBAGE_MIN, 0
        if kind.endswith("one hash"):
            hashing.hash_bytes = lambda offsets, data: np.full(len(offsets) - 1, 12345, np.uint64)
        self.table, self.replica = self.new(), StateTable(self.schema, self.values, 128)
        self.rows: dict[Any, Row] = {}
        self.touched: dict[Any, None] = {}
        self.unmerged: list[pa.RecordBatch] = []
        self.deferred: dict[int, StateTable | pa.RecordBatch] = {}
        self.cut = 0
        self.rows_after: dict[int, dict[Any, Row]] = {0: {}}
        self.captured: tuple[Captured, Iterator[pa.RecordBatch], dict[Any, Row]] | None = None
        self.batch = 0
        self.committed: dict[int, dict[Any, Row]] = {0: {}}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            hashing.hash_bytes = self.hash_bytes
            capture.PIECE_ROWS, residency.PIECE_ROWS_MAX = self.piece_rows
            changes.MERGED_ROWS = self.merged_rows
            unlogged.WAITING_BYTES_MAX, unlogged.LAG_BATCHES = self.waiting_max
            arena.GARBAGE_MIN = self.garbage_min
            self.table.close()
            shutil.rmtree(self.folder)

    def new(self) -> StateTable:
        return new_table(self.backend, self.folder, self.schema, self.values, 128)

    @property
    def limit(self) -> int | None:
        return self.backend.cache_max_entries if isinstance(self.backend, RocksDBState) else None

    def lookup(self, keys: list[Any]) -> Any:
        self.touched |= dict.fromkeys(keys)
        return self.table.lookup(self.key_rows(keys))

    def key_rows(self, keys: list[Any]) -> pa.RecordBatch:
        columns = [pa.array([key[i] for key in keys], field.type) for i, field in enumerate(self.schema)]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def choose(self, data: st.DataObject, most: int) -> list[Any]:
        return data.draw(st.lists(st.sampled_from(self.universe), max_size=most))

    @precondition(lambda self: not self.table.in_batch)
    @rule()
    def begin(self) -> None:
        self.batch += 1
        self.table.begin(self.batch)
        self.touched = {}

    @precondition(lambda self: self.table.in_batch)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        keys = self.choose(data, 8)
        slots = self.lookup(keys)
        read = self.table.rows_of(slots).to_pylist()
        for key, slot, row in zip(keys, slots, read, strict=True):
            assert bool(self.table.present[slot]) == (key in self.rows)
            assert tuple(row.values())[: len(key)] == key
            if key in self.rows:
                assert self.cells(row) == self.rows[key]

    @precondition(lambda self: self.table.in_batch)
    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        """A key without a row stays unknown, if all rows are in memory."""
        keys = self.choose(data, 8)
        slots = self.table.lookup(self.key_rows(keys), inserts=self.limit is not None)
        self.touched |= dict.fromkeys(key for key, slot in zip(keys, slots.tolist(), strict=True) if slot >= 0)
        numbers, found = self.table.find(self.key_rows(keys))
        assert [keys[number] for number in numbers] == [key for key in keys if key in self.rows]
        assert found.tolist() == slots[numbers].tolist()

    @rule(data=st.data())
    def read_what_is_committed(self, data: st.DataObject) -> None:
        """Read by key, and all of it, also in a batch, which goes on as if nobody had read."""
        keys, expected = self.choose(data, 5), self.committed[max(self.committed)]
        found = committed.rows_of_keys(self.table, self.key_rows(keys))
        self.touched |= dict.fromkeys(keys)
        assert self.changed(found) == {key: expected[key] for key in keys if key in expected}
        assert self.changed(committed.all_rows(self.table)) == expected

    @precondition(lambda self: self.table.in_batch)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        keys = self.choose(data, 8)
        for key, slot in zip(keys, self.lookup(keys), strict=True):
            row = data.draw(self.new_rows)
            for name, value in zip(self.values.names, row, strict=True):
                column = self.table.column(name)
                if not column.fixed_width:
                    column.put_objects(np.array([slot], np.int32), [value])
                    continue
                column.valid[slot] = value is not None
                if value is not None:
                    column.values[slot] = value
            self.table.present[slot] = True
            self.rows[key] = row

    @precondition(lambda self: self.table.in_batch)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        keys = self.choose(data, 5)
        slots = self.lookup(keys)
        self.table.present[slots] = False
        for key in keys:
            self.rows.pop(key, None)

    @precondition(lambda self: self.table.in_batch)
    @rule()
    def commit(self) -> None:
        changes = self.table.changes()
        deferred = self.table.defer_changes()
        before = self.committed[max(self.committed)]
        expected = {key: self.rows.get(key) for key in self.universe if self.rows.get(key) != before.get(key)}
        if not self.table.column("s").comparable:  # objects may have changed in place
            expected |= {key: self.rows[key] for key in self.touched if key in self.rows}
        assert self.changed(changes) == expected
        self.table.commit()
        self.committed[self.batch] = self.rows_after[self.batch] = dict(self.rows)
        if deferred is not None:
            self.deferred[self.batch] = deferred

    @precondition(lambda self: self.deferred)
    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        """Collect changes at a cut that may lag behind commits, maybe too far, maybe with a batch in flight."""
        up_to = data.draw(st.sampled_from(sorted(self.deferred)))
        try:
            collected = (
                [each.slice() for each in self.table.collect(up_to)]
                if isinstance(self.deferred[up_to], StateTable)
                else []
            )
        except CheckpointFailed:
            assert up_to < max(self.deferred)
            return
        waiting = [self.deferred.pop(batch) for batch in sorted(self.deferred) if batch <= up_to]
        self.unmerged += [each for each in waiting if isinstance(each, pa.RecordBatch)] + collected
        self.cut = up_to

    @precondition(lambda self: self.table.in_batch)
    @rule()
    def undo(self) -> None:
        self.table.undo()
        self.rows = dict(self.committed[max(self.committed)])

    @precondition(lambda self: not self.table.in_batch)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        to_batch = data.draw(st.sampled_from(sorted(self.committed)))
        self.table.rewind(to_batch)
        self.committed = {batch: rows for batch, rows in self.committed.items() if batch <= to_batch}
        self.rows = dict(self.committed[to_batch])
        self.deferred = {batch: changes for batch, changes in self.deferred.items() if batch <= to_batch}
        if self.cut > to_batch:
            self.start_replica_anew(to_batch)

    @precondition(lambda self: not self.table.in_batch)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """A checkpoint of any committed batch completes, often not the last: cuts lag behind commits."""
        up_to = data.draw(st.sampled_from(sorted(self.committed)))
        self.table.release(up_to)
        earlier = [batch for batch in self.committed if batch < up_to]
        for batch in earlier:
            del self.committed[batch]
        if up_to:
            with pytest.raises(HoldfastError, match="cannot go back"):
                self.table.rewind(up_to - 1)

    def start_replica_anew(self, batch: int) -> None:
        self.replica, self.unmerged, self.cut = StateTable(self.schema, self.values, 128), [], batch
        self.replica.apply(self.table.snapshot(), 0, 128)

    @precondition(lambda self: self.unmerged)
    @rule(merged=st.booleans())
    def replay(self, merged: bool) -> None:
        for rows in [merge_changes(self.unmerged)] if merged else self.unmerged:
            groups = rows.column(0).to_pylist()
            assert groups == sorted(groups)
            self.replica.apply(rows, 0, 50)
            self.replica.apply(rows, 50, 128)
        self.unmerged = []
        assert self.contents(self.replica) == self.rows_after[self.cut]
        assert len(self.replica) == len(self.rows_after[self.cut])

    @precondition(lambda self: self.captured is None)
    @rule()
    def begin_to_materialize(self) -> None:
        """Maybe with a batch in flight: it is the state after the last commit."""
        captured = self.table.capture()
        self.captured = captured, captured.rows(), dict(self.committed[max(self.committed)])
        self.pieces: list[pa.RecordBatch] = []

    @precondition(lambda self: self.captured is not None)
    @rule()
    def read_a_piece(self) -> None:
        assert self.captured is not None
        self.pieces += itertools.islice(self.captured[1], 1)

    @precondition(lambda self: self.captured is not None)
    @rule(backend=st.sampled_from(BACKENDS), split=st.integers(0, 128))
    def restore_what_was_materialized(self, backend: StateBackend, split: int) -> None:
        """Maybe batches, rewinds and evictions later: it holds the rows of its boundary."""
        assert self.captured is not None
        captured, pieces, rows = self.captured
        self.captured = None
        self.pieces += pieces
        groups = [group for piece in self.pieces for group in piece.column(0).to_pylist()]
        assert groups == sorted(groups)
        table = new_table(backend, self.folder, self.schema, self.values, 128)
        if captured.files is not None:
            edges = (0, split, 128)
            for start, stop in itertools.pairwise(group.to_bytes(2, "big") for group in edges):
                table.load(self.table.stored_schema(), scan_folder(captured.files, start, stop))
            shutil.rmtree(captured.files)
        for piece in self.pieces:
            table.apply(piece, 0, 128)
        captured.close()
        assert captured.count == len(rows)
        assert self.contents(table) == rows
        assert len(table) == len(rows)
        table.close()

    @precondition(lambda self: not self.table.in_batch and self.captured is None)
    @rule(split=st.integers(0, 128))
    def restore(self, split: int) -> None:
        snapshot, before = self.table.snapshot(), self.table
        self.table = self.new()
        before.close()
        self.table.apply(snapshot, split, 128)
        self.table.apply(snapshot, 0, split)
        self.committed = {self.batch: dict(self.rows)}
        self.table.release(self.batch)
        self.rows_after[self.batch] = dict(self.rows)
        self.deferred = {}
        self.start_replica_anew(self.batch)

    @invariant()
    def contents_and_touched_rows_are_the_models(self) -> None:
        if not hasattr(self, "table"):
            return
        assert self.contents(self.table) == self.rows
        assert len(self.table) == len(self.rows)
        if self.table.in_batch:
            touched = self.table.keys_of(self.table.touched()).to_pylist()
            assert [tuple(row.values()) for row in touched] == list(self.touched)
        elif self.limit is not None:
            assert self.table.rows_in_memory <= self.limit
        else:
            assert self.table.rows_in_memory == len(self.rows)

    def contents(self, table: StateTable) -> dict[Any, Row]:
        rows = table.snapshot().to_pylist()
        assert len(rows) == len({self.key(row) for row in rows})
        return {self.key(row): self.cells(row) for row in rows}

    def changed(self, changes: pa.RecordBatch | None) -> dict[Any, Row | None]:
        rows = [] if changes is None else changes.to_pylist()
        return {self.key(row): None if row["__deleted"] else self.cells(row) for row in rows}

    def cells(self, row: dict[str, Any]) -> Row:
        packed = row["s"] is not None and is_object(self.values.field("s"))
        return row["n"], msgspec.msgpack.decode(row["s"]) if packed else row["s"]

    def key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.schema.names)


TestTableAgainstDict = TableAgainstDict.TestCase
TestTableAgainstDict.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


class LongTextsAgainstDict(TableAgainstDict):
    """The same of texts of megabytes, for two keys."""

    @initialize(kind=st.just("boolean"), backend=st.sampled_from(BACKENDS), values=st.just("strings"))
    def create(self, kind: str, backend: StateBackend, values: str) -> None:
        self.begin_with(kind, backend, VALUES[values][0], ["", "l" * 65_535, "m" * 3_000_000])


TestLongTextsAgainstDict = pytest.mark.long(LongTextsAgainstDict.TestCase)
TestLongTextsAgainstDict.settings = settings(max_examples=10, stateful_step_count=30, deadline=None)


def test_merging_keeps_the_last_row_of_each_key_and_the_schema() -> None:
    table = StateTable(pa.schema([("k", pa.string())]), pa.schema([("n", pa.int64())]), 128)
    batches = []
    for number in range(3):
        table.begin(number)
        slots = table.lookup(pa.record_batch({"k": ["a", "b", f"only {number}"]}))
        table.column("n").values[slots] = number
        table.column("n").valid[slots] = True
        table.present[slots] = [True, number != 2, True]
        batches.append(table.changes())
        table.commit()
    merged = merge_changes(batches)
    assert merged.schema.equals(table.stored_schema(), check_metadata=True)
    rows = {row["k"]: (row["__deleted"], row["n"]) for row in merged.to_pylist()}
    assert rows == {"a": (False, 2), "b": (True, None)} | {f"only {i}": (False, i) for i in range(3)}
    nothing = merged.slice(0, 0)
    assert merge_changes([nothing, nothing]).equals(nothing)


def test_rows_that_are_not_sorted_by_key_group_are_merged_whole_or_refused() -> None:
    table = StateTable(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]), 128)
    table.begin(1)
    slots = table.lookup(pa.record_batch({"k": range(100)}))
    table.present[slots] = True
    rows = table.changes()
    assert rows is not None
    backwards = rows.take(pa.array(range(99, -1, -1)))
    assert sorted(changes.last_of_each_key(backwards).to_pylist(), key=str) == sorted(rows.to_pylist(), key=str)
    with pytest.raises(ValueError, match="not sorted by key group"):
        merge_changes([rows, backwards])


def test_what_is_no_change_set_is_refused() -> None:
    with pytest.raises(CorruptObject, match="expected '__key_group'"):
        merge_changes([pa.record_batch({"k": [1]})])
