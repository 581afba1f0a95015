"""State stays within the TaskManager's memory: undo is given up, then a batch is refused in words that help."""

import re

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError, StateTooLarge
from holdfast.state.table import StateTable
from taskmanager_kit import OneTaskManager


def measured(world: OneTaskManager) -> tuple[int, int]:
    found = world.task_manager.metrics()
    return int(found["stateBytes"]), int(found["stateUndoBytes"])


def test_undo_of_committed_batches_takes_what_tables_leave_free_and_the_oldest_is_given_up(tmp_path):
    keys = range(20_000)
    probe = OneTaskManager(tmp_path / "probe").deployed()
    probe.batch(0, *keys)
    tables, undo = measured(probe)
    probe.task_manager.close()
    world = OneTaskManager(tmp_path, memory_bytes=(tables + 3 * undo) * 4 // 3).deployed()
    for batch in range(12):
        world.batch(batch, *keys)
        tables, undo = measured(world)
        assert tables + undo <= world.settings.state_memory_bytes_max
    assert undo > 0
    assert world.counts() == dict.fromkeys(keys, 12)
    subtasks = world.task_manager._hosted.subtasks.values()
    for table in (table for each in subtasks for table in each.tables):
        with pytest.raises(HoldfastError, match="cannot go back to batch 0: its undo reaches back to batch"):
            table.rewind(0)
    world.task_manager.close()


def test_a_batch_that_does_not_fit_is_refused_with_setting_found_allowed_and_advice(tmp_path):
    world = OneTaskManager(tmp_path, memory_bytes=400_000).deployed()
    world.batch(0, 1)
    with pytest.raises(StateTooLarge) as refused:
        world.process(1, world.send(1, *range(50_000)))
    words = str(refused.value)
    pattern = (
        r"TaskManager 0: its state takes ([\d,]+) bytes of memory, ([\d,]+) in tables and caches and ([\d,]+) to undo "
        r"the batch; of TaskManagerConfig\(memory=…\), 400,000 bytes, 300,000 are for that\. .*RocksDBState\("
    )
    found = re.fullmatch(pattern + r".*max_rows_per_batch\)", words)
    assert found, words
    total, tables, undo = (int(number.replace(",", "")) for number in found.groups())
    assert total == tables + undo > 300_000 and undo > 0
    world.task_manager.undo(2)
    assert world.counts() == {1: 1}
    world.task_manager.close()


def test_undo_that_is_given_up_loses_no_change_that_waits_to_be_logged():
    table = StateTable(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())]), 128)
    for batch in range(3):
        table.begin(batch)
        slots = table.lookup(pa.record_batch([pa.array(np.arange(100))], names=["k"]))
        column = table.column("n")
        column.values[slots], column.valid[slots], table.present[slots] = batch, True, True
        assert table.defer_changes() is table
        table.commit()
    table.shrink_undo(0)
    assert table.undo_bytes == 0
    assert [set(changes.slice()["n"].to_pylist()) for changes in table.collect(1)] == [{0}, {1}]
    assert [set(changes.slice()["n"].to_pylist()) for changes in table.collect(2)] == [{2}]
    with pytest.raises(HoldfastError, match="cannot go back"):
        table.rewind(1)


def put_texts(table: StateTable, batch: int, keys: list[int], texts: list[str | None]) -> None:
    table.begin(batch)
    slots = table.lookup(pa.record_batch([pa.array(keys)], names=["k"]))
    column = table.column("text")
    column.scatter(slots, *column.from_arrow(pa.array(texts, pa.string())))
    table.present[slots] = True


def test_objects_count_from_the_batch_that_brings_them_and_undo_counts_those_that_it_replaces():
    table = StateTable(pa.schema([("k", pa.int64())]), pa.schema([("text", pa.string())]), 128)
    empty = table.memory_bytes
    put_texts(table, 0, [0, 1, 2], ["x" * 100_000, "y", None])
    table.measure()
    assert 100_000 < table.memory_bytes - empty < 102_000
    table.commit()
    put_texts(table, 1, [0, 1], ["short", "y"])
    table.measure()
    assert 100_000 < table.undo_in_flight_bytes < 102_000, "the long text is there for undo alone"
    assert table.memory_bytes - empty < 2_000
    table.undo()
    assert 100_000 < table.memory_bytes - empty < 102_000
    put_texts(table, 1, [0, 1], ["short", "y"])
    table.commit()
    assert 100_000 < table.undo_bytes < 102_000
    table.rewind(0)
    assert 100_000 < table.memory_bytes - empty < 102_000
    table.begin(2)
    table.present[table.lookup(pa.record_batch([pa.array([0, 1, 2])], names=["k"]))] = False
    table.commit()
    assert table.memory_bytes - empty < 2_000


def test_containers_are_estimated_from_their_first_elements():
    table = StateTable(pa.schema([("k", pa.int64())]), pa.schema([("texts", pa.list_(pa.string()))]), 128)
    empty = table.memory_bytes
    table.begin(0)
    slots = table.lookup(pa.record_batch([pa.array([0])], names=["k"]))
    column = table.column("texts")
    column.scatter(slots, *column.from_arrow(pa.array([["x" * 1_000] * 5_000], pa.list_(pa.string()))))
    table.present[slots] = True
    table.commit()
    assert 5_000_000 < table.memory_bytes - empty < 5_500_000
