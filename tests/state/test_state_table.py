import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import BadRecord, CheckpointFailed, JobRefused, UserFunctionError
from holdfast.ids import BatchNumber
from holdfast.state import table as table_module
from holdfast.state import unlogged
from holdfast.state.table import StateTable, object_field

KEY = pa.schema([("k", pa.int64())])
COUNT = pa.schema([("n", pa.int64())])


def put(table: StateTable, rows: dict[Any, int | None], name: str = "n") -> None:
    """Write a value for each key, in the batch that is open."""
    key = table.key_schema.field(0)
    slots = table.lookup(pa.record_batch({key.name: pa.array(list(rows), key.type)}))
    column = table.column(name)
    column.scatter(slots, *column.from_arrow(pa.array(list(rows.values()), column.field.type)))
    table.present[slots] = True


def delete(table: StateTable, keys: list[Any]) -> None:
    key = table.key_schema.field(0)
    slots = table.lookup(pa.record_batch({key.name: pa.array(keys, key.type)}))
    table.present[slots] = False


def batch(table: StateTable, number: int, rows: dict[Any, int | None]) -> None:
    table.begin(number)
    put(table, rows)
    table.commit()


def contents(table: StateTable) -> dict[Any, int | None]:
    return {row["k"]: row["n"] for row in table.snapshot().to_pylist()}


def test_presence_is_read_and_set_in_one_expression_with_the_lookup_that_makes_the_rows() -> None:
    keys = pa.record_batch({"k": np.arange(100_000)})
    table = StateTable(KEY, COUNT, 128)
    table.begin(1)
    assert not table.present[table.lookup(keys)].any()
    table.present[table.lookup(pa.record_batch({"k": np.arange(1_000_000)}))] = True
    assert len(table) == 1_000_000


def test_a_batch_of_changes_has_one_sorted_row_for_each_changed_key() -> None:
    table = StateTable(KEY, COUNT, 128)
    batch(table, 1, dict.fromkeys(range(100), 0))
    table.begin(2)
    put(table, {key: key for key in range(50, 150)})
    put(table, dict.fromkeys(range(60, 70), None))
    delete(table, [7, 55, 149, 1000])
    changes = table.changes()
    assert changes is not None
    assert changes.schema.equals(table.stored_schema(), check_metadata=True)
    groups = changes.column("__key_group").to_numpy()
    assert (np.diff(groups) >= 0).all()
    rows = {row["k"]: (row["__deleted"], row["n"]) for row in changes.to_pylist()}
    assert changes.num_rows == len(rows)
    expected = {key: (False, key) for key in range(50, 149)} | dict.fromkeys(range(60, 70), (False, None))
    assert rows == expected | {7: (True, None), 55: (True, None)}


def test_rows_only_looked_up_or_written_as_they_were_are_no_change_and_leave_nothing() -> None:
    table = StateTable(KEY, COUNT, 128)
    batch(table, 1, {1: 10, 2: None})
    table.begin(2)
    table.lookup(pa.record_batch({"k": [1, 2, 3]}))
    put(table, {1: 11})
    put(table, {1: 10, 4: 4})
    delete(table, [4])
    assert table.changes() is None
    assert table.touched().size == 4
    table.commit()
    assert contents(table) == {1: 10, 2: None}
    assert len(table) == 2


def test_look_ups_of_keys_that_are_not_there_take_no_memory_for_undo() -> None:
    table = StateTable(KEY, COUNT, 128)
    batch(table, 1, {1: 10})
    before = table.undo_bytes
    table.begin(2)
    table.lookup(pa.record_batch({"k": range(100, 1100)}))
    table.commit()
    assert table.undo_bytes == before
    table.rewind(BatchNumber(0))
    assert contents(table) == {}


def test_a_batch_that_looked_up_nothing_changes_nothing() -> None:
    table = StateTable(KEY, COUNT, 128)
    table.begin(1)
    assert table.changes() is None
    assert table.touched().size == 0
    table.commit()
    table.begin(2)
    table.undo()
    assert len(table) == 0


def test_undo_brings_back_values_deletions_and_absence() -> None:
    table = StateTable(KEY, COUNT, 128)
    batch(table, 1, {1: 10, 2: 20, 3: None})
    table.begin(2)
    put(table, {1: 11, 3: 31, 4: 41})
    delete(table, [2, 1])
    put(table, {1: 12})
    assert len(table) == 3
    table.undo()
    assert contents(table) == {1: 10, 2: 20, 3: None}
    assert not table.in_batch


@pytest.mark.parametrize("values", [COUNT, pa.schema([])], ids=["with values", "of keys alone"])
def test_undo_of_new_rows_keeps_their_slots_alone_and_takes_back_mixed_batches_too(values: pa.Schema) -> None:
    table = StateTable(KEY, values, 128)

    def write(number: BatchNumber, *parts: range) -> None:
        table.begin(number)
        for keys in parts:
            table.present[table.lookup(pa.record_batch({"k": pa.array(keys, pa.int64())}))] = True

    write(BatchNumber(1), range(100))
    assert table.undo_bytes < 100 * (8 + 1), "no copies of values: a slot, a list of it, and whether it was there"
    table.commit()
    write(BatchNumber(2), range(100, 150), range(50, 160))
    table.commit()
    write(BatchNumber(3), range(200, 250))
    table.undo()
    assert len(table) == 160
    table.rewind(BatchNumber(1))
    assert sorted(table.snapshot().column("k").to_pylist()) == list(range(100))
    table.rewind(BatchNumber(0))
    assert len(table) == table.rows_in_memory == 0


def test_a_deleted_key_comes_back_blank() -> None:
    table = StateTable(KEY, COUNT, 128)
    batch(table, 1, {1: 10})
    table.begin(2)
    delete(table, [1])
    table.commit()
    table.begin(3)
    slot = table.lookup(pa.record_batch({"k": [1]}))[0]
    assert not table.present[slot]
    assert not table.column("n").valid[slot]
    assert table.column("n").values[slot] == 0


def test_touched_slots_come_in_order_of_first_touch() -> None:
    table = StateTable(KEY, COUNT, 128)
    batch(table, 1, {1: 1, 2: 2, 3: 3})
    table.begin(2)
    for keys in ([3, 1, 3], [5, 1, 2]):
        table.lookup(pa.record_batch({"k": keys}))
    assert table.keys_of(table.touched()).to_pydict() == {"k": [3, 1, 5, 2]}
    assert table.rows_of(table.touched()).to_pydict() == {"k": [3, 1, 5, 2], "n": [3, 1, None, 2]}


def test_replaying_changes_elsewhere_gives_the_same_table_for_its_key_groups() -> None:
    table, half, whole = (StateTable(KEY, COUNT, 128) for _ in range(3))
    for number in range(5):
        table.begin(number)
        put(table, dict.fromkeys(range(number * 10, number * 10 + 30), number))
        delete(table, list(range(number * 10, number * 10 + 7)))
        changes = table.changes()
        assert changes is not None
        table.commit()
        whole.apply(changes, 0, 128)
        half.apply(changes, 0, 64)
    assert contents(whole) == contents(table)
    groups = {row["k"]: row["__key_group"] for row in table.snapshot().to_pylist()}
    assert contents(half) == {key: value for key, value in contents(table).items() if groups[key] < 64}
    half.apply(table.snapshot(), 64, 128)
    assert contents(half) == contents(table)


def test_applying_keeps_the_last_row_of_a_key() -> None:
    table = StateTable(KEY, COUNT, 128)
    rows = [(1, False, 1), (1, True, None), (2, True, None), (2, False, 5), (3, False, 1), (3, False, None)]
    arrays = [[0] * 6, [row[1] for row in rows], [row[0] for row in rows], [row[2] for row in rows]]
    fields = table.stored_schema()
    table.apply(
        pa.RecordBatch.from_arrays([pa.array(a, f.type) for a, f in zip(arrays, fields, strict=True)], schema=fields),
        0,
        128,
    )
    assert contents(table) == {2: 5, 3: None}


def test_state_added_or_removed_since_is_met_by_name() -> None:
    old = StateTable(KEY, pa.schema([("n", pa.int64()), ("gone", pa.string())]), 128)
    batch(old, 1, {1: 10, 2: 20})
    new = StateTable(KEY, pa.schema([("added", pa.float64()), ("n", pa.int64())]), 128)
    new.apply(old.snapshot(), 0, 128)
    assert new.snapshot().select(["k", "added", "n"]).sort_by("k").to_pydict() == {
        "k": [1, 2],
        "added": [None, None],
        "n": [10, 20],
    }


def test_stored_state_of_another_type_is_refused_naming_both() -> None:
    old = StateTable(KEY, pa.schema([("n", pa.string())]), 128)
    with pytest.raises(JobRefused, match=r"'n' is declared as int64, but stored as string"):
        StateTable(KEY, COUNT, 128).apply(old.snapshot(), 0, 128)
    other_key = StateTable(pa.schema([("id", pa.int64())]), COUNT, 128)
    with pytest.raises(JobRefused, match=r"'k' is declared as int64, but stored as nothing"):
        StateTable(KEY, COUNT, 128).apply(other_key.snapshot(), 0, 128)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (pa.record_batch({"k": ["x"]}), "'k' is declared as int64; the rows have type string"),
        (pa.record_batch({"other": [1]}), "no such column"),
        (pa.record_batch({"k": pa.array([1, None])}), "row 1 has a null in key column 'k'"),
    ],
)
def test_rows_that_have_no_such_key_are_refused_and_touch_nothing(rows: pa.RecordBatch, words: str) -> None:
    table = StateTable(KEY, COUNT, 128)
    table.begin(1)
    with pytest.raises(BadRecord, match=words):
        table.lookup(rows)
    assert table.touched().size == 0


VALUES: list[tuple[pa.Field, list[Any]]] = [
    (pa.field("v", pa.bool_()), [True, False, None]),
    (pa.field("v", pa.float32()), [1.5, None, -0.0]),
    (pa.field("v", pa.uint8()), [255, 0, None]),
    (pa.field("v", pa.string()), ["a", "", None]),
    (pa.field("v", pa.binary()), [b"\0", None, b""]),
    (pa.field("v", pa.binary(2)), [b"ab", None, b"\0\0"]),
    (pa.field("v", pa.decimal128(9, 2)), [decimal.Decimal("1.10"), None, decimal.Decimal("-0.01")]),
    (pa.field("v", pa.timestamp("us", "UTC")), [0, None, 10**15]),
    (pa.field("v", pa.list_(pa.int64())), [[1, None], [], None]),
    (pa.field("v", pa.struct([("a", pa.int64())])), [{"a": 1}, None, {"a": None}]),
    (pa.field("v", pa.map_(pa.string(), pa.decimal128(9, 2))), [[("a", decimal.Decimal("1.10"))], None, []]),
    (pa.field("v", pa.dictionary(pa.int8(), pa.string())), ["a", "", None]),
    (object_field("v"), [{"a": [1, "x", None]}, None, [1.5, {"b": True}]]),
]


@pytest.mark.parametrize(("field", "values"), VALUES, ids=[str(field.type) for field, _ in VALUES])
def test_values_of_every_kind_survive_undo_and_replay(field: pa.Field, values: list[Any]) -> None:
    table = StateTable(KEY, pa.schema([field]), 128)

    def write(number: int, new: list[Any]) -> None:
        table.begin(number)
        slots = table.lookup(pa.record_batch({"k": range(len(new))}))
        column = table.column("v")
        if column.fixed_width:
            column.values[slots] = [value or 0 for value in new]
            column.valid[slots] = [value is not None for value in new]
        else:
            column.put_objects(slots, new)
        table.present[slots] = True

    write(1, values)
    table.commit()
    stored = table.snapshot()
    write(2, values[1:] + values[:1])
    changes = table.changes()
    assert changes is not None
    changes.validate(full=True)
    table.undo()
    assert table.snapshot().equals(stored)
    copy = StateTable(KEY, pa.schema([field]), 128)
    copy.apply(stored, 0, 128)
    assert copy.snapshot().equals(stored)
    copy.apply(changes, 0, 128)
    table.apply(changes, 0, 128)
    assert copy.snapshot().equals(table.snapshot())
    table.begin(3)
    slots = table.lookup(pa.record_batch({"k": range(len(values))}))
    assert table.column("v").objects(slots) == values[1:] + values[:1]


def test_an_object_that_does_not_fit_its_state_is_reported_by_name() -> None:
    table = StateTable(KEY, pa.schema([("v", pa.string())]), 128)
    table.begin(1)
    slots = table.lookup(pa.record_batch({"k": [1]}))
    table.present[slots] = True
    with pytest.raises(UserFunctionError, match=r"'v' is declared as string"):
        table.column("v").put_objects(slots, [5])
    table.undo()
    table = StateTable(KEY, pa.schema([("v", pa.dictionary(pa.int8(), pa.string()))]), 128)
    table.begin(1)
    slots = table.lookup(pa.record_batch({"k": [1]}))
    table.present[slots] = True
    table.column("v").put_objects(slots, [5])
    with pytest.raises(UserFunctionError, match=r"'v' is declared as dictionary<"):
        table.changes()


def test_names_that_occur_twice_are_refused() -> None:
    with pytest.raises(JobRefused, match="a name twice"):
        StateTable(KEY, pa.schema([("k", pa.int64())]), 128)


def test_calls_outside_their_place_are_refused() -> None:
    table = StateTable(KEY, COUNT, 128)
    for call in (table.commit, table.undo, table.changes, table.touched):
        with pytest.raises(RuntimeError, match="outside a batch"):
            call()
    table.begin(3)
    with pytest.raises(RuntimeError, match="in batch 3"):
        table.begin(4)
    with pytest.raises(RuntimeError, match="in batch 3"):
        table.apply(StateTable(KEY, COUNT, 128).snapshot(), 0, 128)


def test_stamps_may_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "STAMP_MAX", 3)
    table = StateTable(KEY, COUNT, 128)
    for number in range(10):
        table.begin(number)
        put(table, {1: number, 2: 2})
        assert table.touched().size == 2
        table.commit()
    assert contents(table) == {1: 9, 2: 2}


def test_memory_follows_the_rows_that_are_left() -> None:
    table = StateTable(KEY, COUNT, 128)
    keys = pa.array(np.arange(300_000))
    table.begin(1)
    slots = table.lookup(pa.record_batch({"k": keys}))
    table.present[slots] = True
    table.commit()
    full = table.memory_bytes
    table.begin(2)
    slots = table.lookup(pa.record_batch({"k": keys.slice(1000)}))
    table.present[slots] = False
    table.commit()
    assert table.memory_bytes < full / 4
    assert sorted(contents(table)) == list(range(1000))


@pytest.mark.parametrize("length", [5, 20, 35])
@pytest.mark.parametrize("columns", [1, 2])
def test_the_bytes_of_all_rows_are_about_those_of_their_snapshot(length: int, columns: int) -> None:
    kinds = [("k", pa.string()), ("second", pa.int64())]
    table = StateTable(pa.schema(kinds[:columns]), COUNT, 128)
    keys = pa.array([f"{number:0{length}d}" for number in range(5_000)])
    rows = pa.record_batch({"k": keys, "second": pa.array(range(len(keys)))}).select(range(columns))
    for number, going in enumerate([0, 3_000, 1_990], 1):
        table.begin(number)
        present, table.present[table.lookup(rows)] = len(rows) - going, True
        table.present[table.lookup(rows.slice(present))] = False
        table.commit()
        rows = rows.slice(0, present)
        assert len(table) == present
        assert 0.9 <= table.rows_bytes / table.snapshot().nbytes <= 1.3


def test_an_entry_of_two_longs_takes_at_most_64_bytes_in_a_large_table() -> None:
    table = StateTable(KEY, COUNT, 128)
    for number in range(16):
        table.begin(number)
        keys = pa.array(np.arange(number * 50_000, (number + 1) * 50_000))
        slots = table.lookup(pa.record_batch({"k": keys}))
        table.present[slots] = True
        table.commit()
        for _ in range(4):  # entries are poured into a larger index by the batches that follow
            table.begin(number)
            table.lookup(pa.record_batch({"k": keys}))
            table.commit()
        if len(table) >= 300_000:
            assert table.memory_bytes / len(table) <= 64


def test_a_row_that_came_back_to_what_it_was_is_in_the_changes_of_several_batches() -> None:
    """Changes may be replayed upon a materialization of the batch in between."""
    table = StateTable(KEY, COUNT, 128)
    batch(table, 1, {1: 10, 2: 20})
    table.collect(1)
    for number, value in ((2, 11), (3, 10)):
        table.begin(number)
        put(table, {1: value})
        assert table.defer_changes() is table
        table.commit()
    changes = [row for part in [each.slice() for each in table.collect(3)] for row in part.to_pylist()]
    assert [(row["k"], row["n"]) for row in changes] == [(1, 10)]


def with_changes_waiting(monkeypatch: pytest.MonkeyPatch, batches: int) -> StateTable:
    """A table after batches of 20 rows that nobody asked for, with little memory for them."""
    undo_bytes_max, waiting_bytes_max = 4000, 3000
    monkeypatch.setattr(unlogged, "WAITING_BYTES_MAX", waiting_bytes_max)
    table = StateTable(KEY, COUNT, 128, undo_bytes_max=undo_bytes_max)
    most = 0
    for number in range(batches):
        table.begin(number)
        put(table, dict.fromkeys(range(number, number + 20), number))
        assert table.defer_changes() is table
        table.commit()
        most = max(most, table.undo_bytes)
    condensed_bytes = 8 * (batches + 20)
    assert undo_bytes_max < most <= undo_bytes_max + waiting_bytes_max + condensed_bytes
    return table


def replay(replica: StateTable, table: StateTable, up_to_batch: int) -> dict[Any, Any]:
    for changes in [each.slice() for each in table.collect(up_to_batch)]:
        replica.apply(changes, 0, 128)
    return contents(replica)


def test_what_waits_to_be_logged_is_bounded_beside_what_undo_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    table = with_changes_waiting(monkeypatch, 40)
    replica = StateTable(KEY, COUNT, 128)
    assert replay(replica, table, 35) == {key: min(key, 35) for key in range(55)}
    assert replay(replica, table, 39) == contents(table)


def test_a_cut_that_lags_behind_what_was_condensed_is_refused_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = with_changes_waiting(monkeypatch, 40)
    with pytest.raises(CheckpointFailed, match=r"cut at batch 5 came too late.*batches 0 to") as refused:
        table.collect(5)
    assert refused.value.soft, "it counts as no failure: the next checkpoint has these changes"
    assert replay(StateTable(KEY, COUNT, 128), table, 39) == contents(table)


@pytest.mark.parametrize("to_batch", [35, 38])
def test_condensed_changes_outlast_a_rewind_and_rows_that_go(monkeypatch: pytest.MonkeyPatch, to_batch: int) -> None:
    table = with_changes_waiting(monkeypatch, 40)
    table.rewind(to_batch)
    table.begin(to_batch + 1)
    delete(table, list(range(10)))
    assert table.defer_changes() is table
    table.commit()
    replica = StateTable(KEY, COUNT, 128)
    assert replay(replica, table, to_batch) == {key: min(key, to_batch) for key in range(to_batch + 20)}
    assert replay(replica, table, to_batch + 1) == contents(table)


def test_rows_may_go_while_it_is_found_out_which_ones_a_cut_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are gathered without the table's lock: by the time rows are copied, others may have them."""
    table = StateTable(KEY, COUNT, 128)

    def commit(number: int, rows: dict[Any, int | None], gone: list[Any]) -> None:
        table.begin(number)
        put(table, rows)
        delete(table, gone)
        assert table.defer_changes() is table
        table.commit()

    def meanwhile(parts: Any, slots_used: int) -> Any:
        touched = unlogged.touched_by(parts, slots_used)
        commit(3, dict.fromkeys(range(100, 110), 3), list(range(8)))
        commit(4, dict.fromkeys(range(110, 120), 4), [])
        return touched

    commit(1, dict.fromkeys(range(10), 1), [])
    commit(2, dict.fromkeys(range(5), 2), [])
    monkeypatch.setattr(table_module, "touched_by", meanwhile)
    replica = StateTable(KEY, COUNT, 128)
    assert replay(replica, table, 2) == {key: 2 if key < 5 else 1 for key in range(10)}
    monkeypatch.undo()
    assert replay(replica, table, 4) == contents(table)
