"""The arena of a table: values of each length come back, copies of rows keep theirs, and memory follows the rows."""

import gc
import random
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.errors import UserFunctionError
from holdfast.settings import RocksDBState
from holdfast.state import arena
from holdfast.state.arena import Arena
from holdfast.state.arena_kernels import LONG
from holdfast.state.backends import new_table
from holdfast.state.bytes_column import BytesColumn, new_column
from holdfast.state.table import StateTable

KEY = pa.schema([("k", pa.int64())])
TEXT = pa.schema([("s", pa.string())])
LENGTHS = (0, 1, 7, 8, 9, 63, 64, 65, LONG - 1, LONG, LONG + 1, 3 << 20)


def put(table: StateTable, batch: int, rows: dict[int, str | None]) -> None:
    table.begin(batch)
    slots = table.lookup(pa.record_batch([pa.array(list(rows), pa.int64())], schema=KEY))
    column = table.column("s")
    column.scatter(slots, *column.from_arrow(pa.array(list(rows.values()), pa.string())))
    table.present[slots] = True


def delete(table: StateTable, batch: int, keys: list[int]) -> None:
    table.begin(batch)
    table.present[table.lookup(pa.record_batch([pa.array(keys, pa.int64())], schema=KEY))] = False
    table.commit()


def contents(table: StateTable) -> dict[int, str | None]:
    return {row["k"]: row["s"] for row in table.snapshot().to_pylist()}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_values_of_each_length_come_back_from_any_slice(kind: pa.DataType) -> None:
    texts = [b"x" * length for length in LENGTHS]
    array = pa.array([None, *texts, None, b"tail"], pa.large_binary()).cast(kind)
    for part in (array, array.slice(1, 5), array.slice(9), array.slice(3, 0), array.slice(0, 1)):
        column = new_column(pa.field("s", kind), len(part), Arena())
        column.scatter(np.arange(len(part), dtype=np.int32), *column.from_arrow(part))
        found = column.to_arrow(*column.gather(np.arange(len(part), dtype=np.int32)))
        found.validate(full=True)
        assert found.equals(part)


def test_views_and_dictionaries_of_strings_are_taken_as_the_columns_type() -> None:
    column = new_column(pa.field("s", pa.string()), 3, Arena())
    for array in (
        pa.array(["a", None, "b" * 40], pa.string_view()),
        pa.array(["a", None, "b" * 40]).dictionary_encode(),
        pa.array(["a", None, "b" * 40], pa.large_string()),
    ):
        column.scatter(np.arange(3, dtype=np.int32), *column.from_arrow(array))
        assert column.objects(np.arange(3, dtype=np.int32)) == ["a", None, "b" * 40]


def test_a_value_that_is_written_again_is_no_change() -> None:
    table = StateTable(KEY, TEXT, 128)
    put(table, 1, {1: "same", 2: "x" * 70_000, 3: None, 4: "shorter", 5: ""})
    table.commit()
    put(table, 2, {1: "same", 2: "x" * 70_000, 3: None, 4: "short", 5: None})
    changes = table.changes()
    assert changes is not None
    assert sorted(changes.column("k").to_pylist()) == [4, 5]


def test_a_table_that_inserts_and_deletes_for_ever_does_not_grow() -> None:
    draw, sizes = random.Random(1), []
    table = StateTable(KEY, TEXT, 128)
    for turn in range(1, 1001):
        keys = range(20 * turn, 20 * turn + 20)
        put(table, 2 * turn, {key: "v" * draw.randrange(2_000) for key in keys})
        table.commit()
        delete(table, 2 * turn + 1, list(keys)[: 20 if turn > 5 else 10])
        table.release(2 * turn + 1)
        sizes.append(table.memory_bytes + table.undo_bytes)
    assert max(sizes[500:]) <= max(sizes[:100]) + arena.GARBAGE_MIN
    assert len(table) == 50


INDEX_BYTES, KEY_BYTES = (36, 76), (32, 46)
VALUE_BYTES = {pa.int64(): 9, pa.string(): 9 + 40, pa.list_(pa.string()): 9 + 4 + 4 * (1 + 4 + 8)}


@pytest.mark.parametrize("kind", list(VALUE_BYTES), ids=str)
@pytest.mark.parametrize("key", [pa.int64(), pa.string()], ids=str)
def test_a_row_takes_as_much_memory_as_the_guide_says(key: pa.DataType, kind: pa.DataType) -> None:
    """Keys have 20 bytes, strings 40, and lists four strings of 8."""
    table = StateTable(pa.schema([("k", key)]), pa.schema([("v", kind)]), 128)
    least, most = (
        index + VALUE_BYTES[kind] + (0 if key == pa.int64() else of_key)
        for index, of_key in zip(INDEX_BYTES, KEY_BYTES, strict=True)
    )
    for batch in range(20):
        numbers = np.arange(batch * 20_000, (batch + 1) * 20_000)
        texts = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 40, "0")
        values = {pa.int64(): pa.array(numbers), pa.string(): texts}.get(kind)
        if values is None:
            eights = pc.utf8_slice_codeunits(texts, 32, 40).take(pa.array(np.repeat(np.arange(20_000), 4)))
            values = pa.ListArray.from_arrays(np.arange(0, 80_001, 4, dtype=np.int32), eights)
        keys = pa.array(numbers) if key == pa.int64() else pc.utf8_slice_codeunits(texts, 20, 40)
        table.begin(batch)
        slots = table.lookup(pa.record_batch([keys], ["k"]))
        column = table.column("v")
        column.scatter(slots, *column.from_arrow(values))
        table.present[slots] = True
        table.commit()
        table.release(batch)
        if batch >= 4:
            assert least <= table.memory_bytes / len(table) <= most


def test_old_spaces_are_let_go_once_no_copy_of_a_row_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "GARBAGE_MIN", 0)
    table = StateTable(KEY, TEXT, 128)
    put(table, 1, {1: "a" * 1000, 2: "b" * 1000})
    [space] = map(weakref.ref, table._rows.arena.spaces)
    table.commit()
    captured = table.capture()
    put(table, 2, {1: "c", 2: "d"})
    table.commit()
    table.release(2)
    put(table, 3, {1: "e"})
    table.commit()
    assert space() is not None, "the copy of the table is still to be read"
    assert [row["s"] for piece in captured.rows() for row in piece.to_pylist()] == ["a" * 1000, "b" * 1000]
    captured.close()
    del captured
    gc.collect()
    assert space() is None
    assert contents(table) == {1: "e", 2: "d"}


def test_a_rewind_brings_back_values_of_a_space_that_the_table_no_longer_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "GARBAGE_MIN", 0)
    table = StateTable(KEY, TEXT, 128)
    for batch in range(1, 6):
        put(table, batch, {key: f"{batch} {key} " * 100 * key for key in range(10)})
        table.commit()
    table.rewind(2)
    expected = {key: f"2 {key} " * 100 * key for key in range(10)}
    assert contents(table) == expected
    put(table, 3, {10: "more"})
    table.commit()
    assert contents(table) == {**expected, 10: "more"}
    live = sum(len(text.encode()) for text in contents(table).values() if text)
    assert table._rows.arena.live_bytes == live


def test_a_change_set_becomes_record_batches_slice_by_slice_after_later_changes() -> None:
    table = StateTable(KEY, TEXT, 128)
    rows: dict[int, str | None] = {key: None if key == 3 else "v" * key for key in range(10)}
    put(table, 1, rows)
    assert table.defer_changes() is table
    table.commit()
    (changes,) = table.collect(1)
    put(table, 2, dict.fromkeys(range(10), "later"))
    table.commit()
    table.release(2)
    assert changes.num_rows == 10
    assert changes.nbytes >= sum(len(text or "") for text in rows.values())
    parts = [changes.slice(start, 3) for start in range(0, 12, 3)]
    assert [part.num_rows for part in parts] == [3, 3, 3, 1]
    assert [group for part in parts for group in part.column(0).to_pylist()] == changes.key_groups.to_pylist()
    assert {row["k"]: row["s"] for part in parts for row in part.to_pylist()} == rows
    assert changes.slice(2).equals(changes.slice().slice(2))


def test_objects_that_are_no_strings_are_refused_by_the_states_name() -> None:
    column = new_column(pa.field("s", pa.string()), 1, Arena())
    for wrong in (5, "\ud800"):
        with pytest.raises(UserFunctionError, match="state 's' is declared as string"):
            column.put_objects(np.zeros(1, np.int32), [wrong])


def test_a_look_at_the_base_store_adds_nothing_to_the_arena() -> None:
    table = new_table(RocksDBState(cache_max_entries=1), None, KEY, TEXT, 128)
    try:
        put(table, 1, dict.fromkeys(range(100), "v" * 1000))
        table.commit()
        before = table._rows.arena.memory_bytes
        assert table.snapshot().num_rows == 100
        assert table._rows.arena.memory_bytes == before
        assert isinstance(table.column("s"), BytesColumn)
    finally:
        table.close()


def test_rows_that_are_rewritten_take_little_more_than_twice_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "GARBAGE_MIN", 0)
    table, most = StateTable(KEY, TEXT, 128), 0
    for batch in range(1, 61):
        start = batch % 20 * 250
        put(table, batch, {key: f"{batch} ".ljust(200, "v") for key in range(start, start + 250)})
        table.commit()
        table.release(batch)
        most = max(most, table._rows.arena.memory_bytes)
    assert table._rows.arena.live_bytes == 5_000 * 200
    assert most <= 2.5 * table._rows.arena.live_bytes, "undo of a batch holds spaces, but not all of them"
