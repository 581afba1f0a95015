"""A state table against a plain dict: random batches, committed or undone, replayed into a second table."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.errors import CorruptObject
from holdfast.state.table import StateTable, merge_changes

Row = tuple[int | None, str | None]

VALUES = pa.schema([("n", pa.int32()), ("s", pa.string())])
KEYS: dict[str, tuple[pa.Schema, list[tuple[Any, ...]]]] = {
    "int64": (pa.schema([("k", pa.int64())]), [(i * 2**40,) for i in range(30)]),
    "string": (pa.schema([("k", pa.string())]), [("x" * i,) for i in range(30)]),
    "composite": (
        pa.schema([("a", pa.string()), ("b", pa.int16())]),
        [(a, b) for a in ("", "p", "pq", None) for b in (None, 0, 1, -1)],
    ),
}
ROWS = st.tuples(st.none() | st.integers(-2, 2), st.none() | st.sampled_from(["", "u", "v"]))


class TableAgainstDict(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from(sorted(KEYS)))
    def create(self, kind: str) -> None:
        self.schema, self.universe = KEYS[kind]
        self.table = StateTable(self.schema, VALUES, 128)
        self.replica = StateTable(self.schema, VALUES, 128)
        self.rows: dict[Any, Row] = {}
        self.before: dict[Any, Row] = {}
        self.touched: dict[Any, None] = {}
        self.unmerged: list[pa.RecordBatch] = []
        self.batch = 0

    def lookup(self, keys: list[Any]) -> Any:
        self.touched |= dict.fromkeys(keys)
        columns = [pa.array([key[i] for key in keys], field.type) for i, field in enumerate(self.schema)]
        return self.table.lookup(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def choose(self, data: st.DataObject, most: int) -> list[Any]:
        return data.draw(st.lists(st.sampled_from(self.universe), max_size=most))

    @precondition(lambda self: not self.table.in_batch)
    @rule()
    def begin(self) -> None:
        self.batch += 1
        self.table.begin(self.batch)
        self.before, self.touched = dict(self.rows), {}

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
                assert (row["n"], row["s"]) == self.rows[key]

    @precondition(lambda self: self.table.in_batch)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        keys = self.choose(data, 8)
        for key, slot in zip(keys, self.lookup(keys), strict=True):
            row = data.draw(ROWS)
            for name, value in zip(VALUES.names, row, strict=True):
                column = self.table.column(name)
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
        assert self.changed(changes) == {
            key: self.rows.get(key) for key in self.universe if self.rows.get(key) != self.before.get(key)
        }
        self.table.commit()
        if changes is not None:
            self.unmerged.append(changes)

    @precondition(lambda self: self.table.in_batch)
    @rule()
    def undo(self) -> None:
        self.table.undo()
        self.rows = self.before

    @precondition(lambda self: not self.table.in_batch and self.unmerged)
    @rule(merged=st.booleans())
    def replay(self, merged: bool) -> None:
        for changes in [merge_changes(self.unmerged)] if merged else self.unmerged:
            groups = changes.column(0).to_pylist()
            assert groups == sorted(groups)
            self.replica.apply(changes, 0, 50)
            self.replica.apply(changes, 50, 128)
        self.unmerged = []
        assert self.contents(self.replica) == self.rows

    @precondition(lambda self: not self.table.in_batch)
    @rule(split=st.integers(0, 128))
    def restore(self, split: int) -> None:
        snapshot, self.table = self.table.snapshot(), StateTable(self.schema, VALUES, 128)
        self.table.apply(snapshot, split, 128)
        self.table.apply(snapshot, 0, split)

    @invariant()
    def contents_and_touched_rows_are_the_models(self) -> None:
        if not hasattr(self, "table"):
            return
        assert self.contents(self.table) == self.rows
        assert len(self.table) == len(self.rows)
        if self.table.in_batch:
            touched = self.table.keys_of(self.table.touched()).to_pylist()
            assert [tuple(row.values()) for row in touched] == list(self.touched)

    def contents(self, table: StateTable) -> dict[Any, Row]:
        rows = table.snapshot().to_pylist()
        return {self.key(row): (row["n"], row["s"]) for row in rows}

    def changed(self, changes: pa.RecordBatch | None) -> dict[Any, Row | None]:
        rows = [] if changes is None else changes.to_pylist()
        return {self.key(row): None if row["__deleted"] else (row["n"], row["s"]) for row in rows}

    def key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.schema.names)


TestTableAgainstDict = TableAgainstDict.TestCase
TestTableAgainstDict.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


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


def test_what_is_no_change_set_is_refused() -> None:
    with pytest.raises(CorruptObject, match="expected '__key_group'"):
        merge_changes([pa.record_batch({"k": [1]})])
