"""Changes that wait to be logged, against the table's contents after each batch: cuts that lag, rewinds, little memory.

The changes given to a replica at each cut make it equal to the table of then.
"""

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import CheckpointFailed, HoldfastError
from holdfast.state import deleted, unlogged
from holdfast.state import table as table_module
from holdfast.state.base_rocksdb import RocksDBBase
from holdfast.state.deleted import DeletedRows
from holdfast.state.history import UndoSegment
from holdfast.state.table import StateTable
from sampling import some

KEY = pa.schema([("k", pa.int64())])
COUNT = pa.schema([("n", pa.int64())])
KEYS = 40
SLOT_BYTES = 4
ROW_BYTES = SLOT_BYTES + 8 + 1 + 1
"""An old row: value, validity, presence."""
NEW_ROW_BYTES = SLOT_BYTES + 1
"""A row that was not there: presence."""


class RandomChanges:
    def __init__(self, seed: int, table: StateTable) -> None:
        self.random = random.Random(seed)
        self.table = table
        self.replica = StateTable(KEY, COUNT, 128)
        self.batch = 0
        self.after: dict[int, dict[int, int]] = {0: {}}
        self.cut = 0
        self.done: set[str] = set()
        self.gone_share = 0.02
        self.based: StateTable | None = None
        """A replica that began with the table as it was captured after batch `base_batch`."""
        self.base_batch = 0

    @property
    def rows(self) -> dict[int, int]:
        return self.after[max(self.after)]

    def begin(self) -> dict[int, int]:
        self.batch += 1
        self.table.begin(self.batch)
        rows = dict(self.rows)
        if rows and self.random.random() < 0.3:  # some of which it only reads
            self.table.lookup(key_rows(self.random.sample(sorted(rows), min(len(rows), 5))))
        self.write(rows, self.random.sample(range(KEYS), self.random.randint(1, 12)), gone=False)
        if self.random.random() < self.gone_share:
            self.write(rows, self.random.sample(range(KEYS), 3), gone=True)
        return rows

    def process(self, keys: list[int], reads: list[int] | None = None) -> None:
        """A batch that writes some rows and looks others up."""
        self.batch += 1
        self.table.begin(self.batch)
        self.table.lookup(key_rows(reads or []))
        self.write({}, keys, gone=False)
        self.commit({})

    def write(self, rows: dict[int, int], keys: list[int], *, gone: bool) -> None:
        slots = self.table.lookup(key_rows(keys))
        column = self.table.column("n")
        column.values[slots] = self.batch
        column.valid[slots] = True
        self.table.present[slots] = not gone
        for key in keys:
            if gone:
                rows.pop(key, None)
            else:
                rows[key] = self.batch

    def commit(self, rows: dict[int, int]) -> None:
        assert self.table.defer_changes() is self.table
        self.table.commit()
        self.after[self.batch] = rows

    def collect(self, at_last: bool = False) -> None:
        """Collect at the last batch or a batch before it."""
        batches = [batch for batch in self.after if batch > self.cut]
        if not batches:
            return
        up_to = batches[-1] if at_last or self.random.random() < 0.5 else self.random.choice(batches)
        try:
            changes = [each.slice() for each in self.table.collect(up_to)]
        except CheckpointFailed:
            assert up_to < batches[-1]
            self.done.add("refused")
            return
        for each in changes:
            self.replica.apply(each, 0, 128)
        assert contents(self.replica) == self.after[up_to]
        self.cut = up_to
        if self.based is not None and up_to >= self.base_batch:
            for each in changes:
                self.based.apply(each, 0, 128)
            assert contents(self.based) == self.after[up_to]
            self.done.add("based")
        self.done.add("lagged" if up_to < batches[-1] else "cut")

    def capture(self) -> None:
        """Begin another replica with the table as the last commit left it."""
        self.based, self.base_batch = StateTable(KEY, COUNT, 128), max(self.after)
        captured = self.table.capture()
        for rows in captured.rows():
            self.based.apply(rows, 0, 128)
        captured.close()
        if captured.files is not None:
            shutil.rmtree(captured.files)
            self.based = None

    def rewind(self) -> None:
        """Go back to the last cut, whose checkpoint is completed."""
        self.based = None
        self.table.release(self.cut)
        try:
            self.table.rewind(self.cut)
        except HoldfastError:
            self.done.add("given up")
            return
        self.after = {batch: rows for batch, rows in self.after.items() if batch <= self.cut}
        assert contents(self.table) == self.rows
        self.done.add("rewound")

    def step(self) -> None:
        kind = self.random.random()
        if kind < 0.03:
            self.rewind()
        elif kind < 0.1:
            self.collect()
        else:
            rows = self.begin()
            if kind < 0.13:
                self.collect()
            elif kind > 0.96:
                self.capture()
            if kind < 0.16:
                self.table.undo()
            else:
                self.commit(rows)


def key_rows(keys: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(keys, pa.int64())})


def contents(table: StateTable) -> dict[Any, Any]:
    return {row["k"]: row["n"] for row in table.snapshot().to_pylist()}


@pytest.mark.parametrize(
    ("backend", "seeds"), some([("memory", range(20)), ("memory", range(20, 60)), ("cached", range(10))], 0)
)
def test_a_replica_follows_whatever_happens(
    backend: str, seeds: range, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(unlogged, "WAITING_BYTES_MAX", 300)
    monkeypatch.setattr(unlogged, "LAG_BATCHES", 2)
    done: set[str] = set()
    condensed = 0
    for seed in seeds:
        base = None if backend == "memory" else RocksDBBase(str(tmp_path))
        table = StateTable(KEY, COUNT, 128, base=base, cache_max_entries=KEYS - 5, undo_bytes_max=1500)
        world = RandomChanges(seed, table)
        for _ in range(150):
            world.step()
            condensed += any(isinstance(each, unlogged.Condensed) for each in table._unlogged.waiting(world.batch))
        world.collect(at_last=True)
        assert contents(world.replica) == contents(table)
        done |= world.done
        table.close()
    assert done >= {"cut", "lagged", "rewound", "given up"}
    assert backend == "cached" or ("refused" in done and condensed > 100)


@pytest.mark.parametrize("seeds", some([range(12), range(12, 40)], 0))
@pytest.mark.parametrize("bytes_max", [1_000, 1 << 20])
def test_a_replica_follows_rows_that_are_deleted_soon(
    bytes_max: int, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted, "DELETED_LEAST", 3)
    monkeypatch.setattr(DeletedRows.remove, "__defaults__", (bytes_max,))
    done: set[str] = set()
    kept = 0
    for seed in seeds:
        world = RandomChanges(seed, StateTable(KEY, COUNT, 128))
        world.gone_share = 0.7
        for _ in range(100):
            world.step()
            kept = max(kept, world.table._deleted.absent)
            if not world.table.in_batch:
                assert world.table.rows_in_memory == len(world.rows)
        world.collect(at_last=True)
        assert contents(world.replica) == contents(world.table)
        done |= world.done
    assert done >= {"cut", "lagged", "rewound", "based"} and kept > 3


def test_rows_that_come_and_go_between_two_cuts_are_not_logged_unless_the_table_was_captured_meanwhile() -> None:
    for captures in (False, True):
        world = RandomChanges(0, StateTable(KEY, COUNT, 128))
        world.process([1, 2])
        captured = world.table.capture() if captures else None
        world.batch += 1
        world.table.begin(world.batch)
        world.write({}, [2, 3], gone=True)
        world.commit({})
        logged = [each.slice() for each in world.table.collect(world.batch)]
        keys = sorted(key for rows in logged for key in rows.column("k").to_pylist())
        assert keys == ([1, 2] if captured else [1])


def test_of_batches_that_touch_the_same_rows_the_later_ones_are_not_gone_through() -> None:
    world = RandomChanges(0, StateTable(KEY, COUNT, 128))

    def unseen(*batches: list[int]) -> list[list[int] | None]:
        for keys in batches:
            world.process(keys)
        waiting = world.table._unlogged.waiting(world.batch)
        assert all(isinstance(each, UndoSegment) for each in waiting)
        return [
            None if each.unseen is None else sorted(world.table.keys_of(each.unseen).column("k").to_pylist())
            for each in waiting
            if isinstance(each, UndoSegment)
        ]

    assert unseen([1, 2, 3], [1, 2], [2, 3], [3, 4], [4, 5]) == [None, [], [], [4], [5]]
    kept_bytes = 3 * NEW_ROW_BYTES + (2 + 2 + 2 + 2) * ROW_BYTES
    assert world.table.undo_bytes == kept_bytes + 2 * SLOT_BYTES
    world.table.collect(world.batch - 1)
    assert world.table.undo_bytes == kept_bytes, "what undo keeps of those that wait no more"
    assert unseen([5, 1], [5, 2]) == [None, None, [2]], "the one that the cut left counts in full"
    world.table.begin(world.batch + 1)
    world.write({}, [1, 3], gone=False)
    world.table.undo()
    another = [None, [4], []]
    assert unseen([3], [3, 4], [3]) == [None, None, [2], *another], "another chain after a batch that was undone"
    world.batch += 1
    world.table.begin(world.batch)
    world.write({}, [3], gone=False)
    world.table.collect(world.batch - 1)
    world.commit({})
    assert unseen([3, 4], [3, 5]) == [None, [4], [5]], "one that was in flight during a cut"


def test_stamps_may_run_out_while_changes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "STAMP_MAX", 5)
    world = RandomChanges(0, StateTable(KEY, COUNT, 128))
    for round_ in range(40):
        world.process([round_ % 7, 10 + round_ % 3])
        if round_ % 9 == 8:
            for each in [each.slice() for each in world.table.collect(world.batch)]:
                world.replica.apply(each, 0, 128)
            assert contents(world.replica) == contents(world.table)


def test_rows_that_were_replayed_between_two_batches_are_logged_once_a_batch_writes_them() -> None:
    world = RandomChanges(0, StateTable(KEY, COUNT, 128))
    other = RandomChanges(0, StateTable(KEY, COUNT, 128))
    other.batch = 100
    for keys in ([3], [3], [3]):
        world.process(keys)
    other.process([1])
    (replayed,) = [each.slice() for each in other.table.collect(other.batch)]
    world.table.apply(replayed, 0, 128)
    world.process([1])
    world.process([1, 3])
    for each in [each.slice() for each in world.table.collect(world.batch)]:
        world.replica.apply(each, 0, 128)
    assert contents(world.replica) == {1: world.batch, 3: world.batch}


@pytest.mark.parametrize("last", [6, 1])
def test_rows_that_a_cached_table_only_read_are_not_logged(last: int, tmp_path: Path) -> None:
    """Rows are logged once they are written."""
    table = StateTable(KEY, COUNT, 128, base=RocksDBBase(str(tmp_path)), cache_max_entries=4)
    world = RandomChanges(0, table)
    for keys, reads in ([1, 2, 3, 4], []), ([5, 6], []), ([5], [1]):
        world.process(keys, reads)  # row 1 leaves memory, and comes back as the base has it
    table.collect(world.batch)
    for keys, reads in ([5], []), ([6], []), ([5], [1]), ([last], []):
        world.process(keys, reads)
    (changes,) = [each.slice() for each in table.collect(world.batch)]
    assert sorted(changes.column("k").to_pylist()) == sorted({5, 6, last})
    table.close()
