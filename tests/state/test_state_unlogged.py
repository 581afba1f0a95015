"""Changes that wait to be logged, against the table's contents after each batch: cuts that lag, rewinds, little memory.

What a replica is given at each cut makes it what the table was then.
"""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import CheckpointFailed, HoldfastError
from holdfast.state import unlogged
from holdfast.state.base_rocksdb import RocksDBBase
from holdfast.state.table import StateTable

KEY = pa.schema([("k", pa.int64())])
COUNT = pa.schema([("n", pa.int64())])
KEYS = 40


class World:
    def __init__(self, seed: int, table: StateTable) -> None:
        self.random = random.Random(seed)
        self.table = table
        self.replica = StateTable(KEY, COUNT, 128)
        self.batch = 0
        self.after: dict[int, dict[int, int]] = {0: {}}
        self.cut = 0
        self.done: set[str] = set()

    @property
    def rows(self) -> dict[int, int]:
        return self.after[max(self.after)]

    def begin(self) -> dict[int, int]:
        self.batch += 1
        self.table.begin(self.batch)
        rows = dict(self.rows)
        self.write(rows, self.random.sample(range(KEYS), self.random.randint(1, 12)), gone=False)
        if self.random.random() < 0.02:
            self.write(rows, self.random.sample(range(KEYS), 3), gone=True)
        return rows

    def write(self, rows: dict[int, int], keys: list[int], *, gone: bool) -> None:
        slots = self.table.lookup(pa.record_batch({"k": pa.array(keys)}))
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
        """At the last batch or one before it."""
        batches = [batch for batch in self.after if batch > self.cut]
        if not batches:
            return
        up_to = batches[-1] if at_last or self.random.random() < 0.5 else self.random.choice(batches)
        try:
            changes = self.table.collect(up_to)
        except CheckpointFailed:
            assert up_to < batches[-1]
            self.done.add("refused")
            return
        for each in changes:
            self.replica.apply(each, 0, 128)
        assert contents(self.replica) == self.after[up_to]
        self.cut = up_to
        self.done.add("lagged" if up_to < batches[-1] else "cut")

    def rewind(self) -> None:
        """To the last cut, whose checkpoint is completed."""
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
            if kind < 0.16:
                self.table.undo()
            else:
                self.commit(rows)


def contents(table: StateTable) -> dict[Any, Any]:
    return {row["k"]: row["n"] for row in table.snapshot().to_pylist()}


@pytest.mark.parametrize("backend", ["memory", "cached"])
def test_a_replica_follows_whatever_happens(backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unlogged, "WAITING_BYTES_MAX", 300)
    monkeypatch.setattr(unlogged, "LAG_BATCHES", 2)
    done: set[str] = set()
    condensed = 0
    for seed in range(60 if backend == "memory" else 10):
        base = None if backend == "memory" else RocksDBBase(str(tmp_path))
        table = StateTable(KEY, COUNT, 128, base=base, cache_max_entries=KEYS - 5, undo_bytes_max=1500)
        world = World(seed, table)
        for _ in range(150):
            world.step()
            condensed += any(isinstance(each, unlogged.Condensed) for each in table._unlogged.waiting(world.batch))
        world.collect(at_last=True)
        assert contents(world.replica) == contents(table)
        done |= world.done
        table.close()
    assert done >= {"cut", "lagged", "rewound", "given up"}
    assert backend == "cached" or ("refused" in done and condensed > 300)
