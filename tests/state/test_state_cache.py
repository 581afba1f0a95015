"""The cache over a base store: its limits, the order of eviction, write-back, and counts."""

import random
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.settings import RocksDBState
from holdfast.state.backends import new_table
from holdfast.state.base_rocksdb import RocksDBBase
from holdfast.state.lru import Recency
from holdfast.state.residency import HitRatio
from holdfast.state.table import StateTable
from waiting import until

KEY, COUNT = pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64())])


class DictBase:
    """A base store in a dict that remembers its requests."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.is_empty = True
        self.memory_bytes = 0
        self.reads = 0
        self.writes = 0

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        assert keys == sorted(keys)
        self.reads += len(keys)
        return [self.records.get(key) for key in keys]

    def write(self, keys: list[bytes], records: list[bytes], deleted: list[bytes]) -> None:
        self.is_empty = False
        self.writes += len(keys)
        self.records |= zip(keys, records, strict=True)
        for key in deleted:
            self.records.pop(key, None)

    def flush_ahead(self) -> None:
        pass

    def scan(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        if self.records:
            yield list(self.records), list(self.records.values())

    def close(self) -> None:
        self.records.clear()


def cached(limit: int) -> tuple[StateTable, DictBase]:
    base = DictBase()
    return StateTable(KEY, COUNT, 128, base=base, cache_max_entries=limit), base


def count(table: StateTable, batch: int, keys: list[int], delete: bool = False) -> None:
    table.begin(batch)
    touch(table, keys, delete)
    table.commit()


def touch(table: StateTable, keys: list[int], delete: bool = False) -> None:
    slots = table.lookup(pa.record_batch({"k": pa.array(keys, pa.int64())}))
    column = table.column("n")
    np.add.at(column.values, slots, 1)
    column.valid[slots] = True
    table.present[slots] = not delete


def read(table: StateTable, batch: int, keys: list[int]) -> None:
    table.begin(batch)
    table.lookup(pa.record_batch({"k": pa.array(keys, pa.int64())}))
    table.commit()


def in_memory(table: StateTable) -> set[int]:
    return set(table.keys_of(np.flatnonzero(table.present.array)).column("k").to_pylist())


def contents(table: StateTable) -> dict[int, int]:
    return {row["k"]: row["n"] for row in table.snapshot().to_pylist()}


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_exactly_the_least_recently_used_rows_leave(limit: int) -> None:
    table, _ = cached(limit)
    model: OrderedDict[int, None] = OrderedDict()
    rng = random.Random(limit)
    for batch in range(200):
        table.begin(batch)
        for _ in range(rng.randrange(1, 4)):
            keys = [rng.randrange(30) for _ in range(rng.randrange(1, 8))]
            touch(table, keys)
            for key in keys:
                model[key] = None
                model.move_to_end(key)
        if rng.random() < 0.2:
            gone = rng.randrange(30)
            touch(table, [gone], delete=True)
            model.pop(gone, None)
        table.commit()
        while len(model) > limit:
            model.popitem(last=False)
        assert in_memory(table) == set(model)


def test_a_changed_row_reaches_the_base_only_when_it_leaves_and_a_clean_one_never() -> None:
    table, base = cached(2)
    count(table, 1, [1, 2])
    count(table, 2, [1, 2])
    assert base.writes == 0
    count(table, 3, [3])
    assert (base.writes, in_memory(table)) == (1, {2, 3})
    read(table, 4, [1])
    assert (base.writes, in_memory(table)) == (2, {1, 3})
    read(table, 5, [2])  # 3 is dirty and leaves; then 1, read and unchanged, leaves without a write
    read(table, 6, [3])
    assert base.writes == 3
    assert contents(table) == {1: 2, 2: 2, 3: 1}


def test_a_base_that_was_never_written_to_is_never_read() -> None:
    table, base = cached(100)
    for batch in range(5):
        count(table, batch, [batch, batch + 1])
    assert (base.reads, base.writes) == (0, 0)


def test_rows_in_memory_are_not_read_again_within_a_batch_nor_after_it() -> None:
    table, base = cached(10)
    count(table, 1, list(range(20)))
    base.reads = 0
    table.begin(2)
    for _ in range(5):
        touch(table, [0, 1, 2, 15])
    table.commit()
    assert base.reads == 3
    count(table, 3, [0, 1, 2, 15])
    assert base.reads == 3


def test_a_deleted_row_is_gone_from_the_base_and_can_come_back() -> None:
    table, base = cached(1)
    count(table, 1, [1, 2, 3])
    count(table, 2, [1], delete=True)
    assert contents(table) == {2: 1, 3: 1}
    assert len(base.records) == 1
    count(table, 3, [1])
    assert contents(table) == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("limit", [0, 2, 100])
def test_the_limit_holds_after_every_undo_and_rewind_of_evicted_rows(limit: int) -> None:
    table, _ = cached(limit)
    for batch in range(1, 6):
        count(table, batch, list(range(batch, batch + 5)))
    count(table, 6, [3, 4], delete=True)
    table.begin(7)
    touch(table, list(range(20)))
    table.undo()
    assert table.rows_in_memory <= limit
    table.rewind(2)
    assert table.rows_in_memory <= limit
    expected = {1: 1, 2: 2, 3: 2, 4: 2, 5: 2, 6: 1}
    assert contents(table) == expected
    assert len(table) == len(expected)
    count(table, 3, [1, 9])
    assert contents(table) == expected | {1: 2, 9: 1}


def test_undo_memory_is_counted_apart_bounded_and_let_go_at_a_release() -> None:
    base = DictBase()
    table = StateTable(KEY, COUNT, 128, base=base, undo_bytes_max=10_000)
    for batch in range(100):
        count(table, batch, list(range(100)))
        assert table.undo_bytes <= 10_000
    with pytest.raises(Exception, match="its undo reaches back to batch"):
        table.rewind(10)
    table.release(99)
    table.rewind(99)
    assert table.undo_bytes == 0


def test_the_hit_ratio_counts_distinct_rows_of_a_batch_and_is_averaged_over_a_second() -> None:
    now = [0.0]
    ratio = HitRatio(lambda: now[0])
    assert ratio.recent == (0, 0)
    ratio.count(1, 4)
    ratio.count(3, 4)
    assert ratio.recent == (4, 8)
    now[0] = 1.5
    ratio.count(4, 4)
    assert ratio.recent == (4, 8)
    now[0] = 2.0
    assert ratio.recent == (4, 4)
    table, _ = cached(2)
    count(table, 1, [1, 2, 1, 2])
    count(table, 2, [2, 3, 2, 2])
    assert table.cache_accesses == (1, 4)
    assert table.recent_cache_accesses == (1, 4) and StateTable(KEY, COUNT, 128).recent_cache_accesses == (0, 0)


def test_a_recency_list_keeps_its_order_when_slots_are_renumbered() -> None:
    recency = Recency(10)
    recency.touch(np.array([9, 1, 5, 3, 9], np.int32))
    recency.remove(np.array([5], np.int32))
    recency.renumber(np.array([1, 3, 9], np.int32), 4)
    assert recency.pop_oldest(2).tolist() == [0, 1]
    assert recency.pop_oldest(5).tolist() == [2]


@pytest.mark.parametrize("seed", range(8))
def test_a_recency_list_is_exact_whether_rows_leave_often_or_hardly_ever(seed: int) -> None:
    random, slots = np.random.default_rng(seed), 300
    recency, order, uses = Recency(slots), OrderedDict[int, None](), 0
    leaving = (0.5, 0.01)[seed % 2]
    for _ in range(600):
        touched = random.integers(0, slots, random.integers(0, 80), np.int32)
        touched = touched[touched % 10 < random.integers(1, 11)]  # some are used more often than others
        recency.touch(touched)
        uses += len(touched)
        for slot in touched.tolist():
            order[slot] = None
            order.move_to_end(slot)
        if random.random() < 0.2 and order:
            removed = random.choice(np.array(list(order), np.int32), 2)
            recency.remove(removed)
            for slot in set(removed.tolist()):
                del order[slot]
        if random.random() < leaving:
            count = int(random.integers(0, 60))
            popped = [order.popitem(last=False)[0] for _ in range(min(count, len(order)))]
            assert recency.pop_oldest(count).tolist() == popped
    assert uses > 20 * slots
    assert recency.pop_oldest(slots).tolist() == list(order)
    assert recency.memory_bytes < 100 * slots


def test_a_table_that_empties_and_fills_keeps_its_rows_when_they_move() -> None:
    table, base = cached(6_000)
    count(table, 1, list(range(6_000)))
    count(table, 2, list(range(100, 6_000)), delete=True)
    count(table, 3, [7])
    assert table.rows_in_memory == 100
    count(table, 4, list(range(6_000, 12_000)))
    assert table.rows_in_memory == 6_000
    assert contents(table) == dict.fromkeys([*range(100), *range(6_000, 12_000)], 1) | {7: 2}
    assert base.writes == 100


def test_rocksdb_folders_are_fresh_and_gone_after_close(tmp_path: Path) -> None:
    folder = tmp_path / "local"
    tables = [new_table(RocksDBState(), str(folder), KEY, COUNT, 128) for _ in range(2)]
    assert len(list(folder.iterdir())) == 2
    for table in tables:
        count(table, 1, [1])
        table.close()
        table.close()
    assert list(folder.iterdir()) == []


def test_folders_of_dead_processes_are_deleted_at_start_and_no_others(tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from holdfast.state.base_rocksdb import RocksDBBase
        base = RocksDBBase(sys.argv[1])
        base.write([b"k"], [b"v"], [])
        print(base.folder, flush=True)
        sys.stdin.read()
        os.kill(os.getpid(), 9)
    """
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None and other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        (tmp_path / "something else").mkdir()
        mine = RocksDBBase(str(tmp_path))
        assert theirs.exists()
        other.stdin.close()
        other.wait()
    assert theirs.exists()
    another = RocksDBBase(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"something else", mine.folder.name, another.folder.name}
    mine.close()
    another.close()


def test_rocksdb_keeps_what_it_was_given_over_flushes(tmp_path: Path) -> None:
    base = RocksDBBase(str(tmp_path))
    keys = [number.to_bytes(4, "big") for number in range(5_000)]
    base.write(keys, [b"\0" * 7 + key for key in keys], [])
    base._db.flush()
    base.write([], [], keys[::2])
    assert base.read(keys) == [None if i % 2 == 0 else b"\0" * 7 + key for i, key in enumerate(keys)]
    assert sum(len(some) for some, _ in base.scan()) == 2_500
    assert base.memory_bytes > 0
    base.close()


def test_rocksdb_writes_out_what_would_not_last_until_the_next_checkpoint(tmp_path: Path) -> None:
    base = RocksDBBase(str(tmp_path))
    records = [bytes(1_000)] * 10_000

    def held_after(interval: int) -> int:
        """Return the bytes held of ten megabytes for each checkpoint, after the next checkpoint."""
        base.write([(interval * 10_000 + row).to_bytes(8, "big") for row in range(10_000)], records, [])
        base.flush_ahead()
        return base.memory_bytes

    assert held_after(0) > 10_000_000
    held_after(1)
    until(lambda: base.memory_bytes <= 5_000_000)
    assert held_after(2) > 10_000_000
    assert len(base.read([row.to_bytes(8, "big") for row in range(30_000)])) == 30_000
    base.close()
    base.flush_ahead()


def test_rocksdb_is_settled_once_its_files_are_merged(tmp_path: Path) -> None:
    base = RocksDBBase(str(tmp_path))
    for _ in range(2):
        base.write([b"key"], [b"record"], [])
        base.flush()
    assert not base.settled
    base._db.compact_range(None, None)
    until(lambda: base.settled)
    base.close()
    assert not base.settled
