"""How fast a subtask's state is restored: from memory, from a throttled store, from local copies. No Spark.

    python -m benchmarks.recovery --json

A table of `--state-mb` with incompressible values of `--value-bytes` (0: an int64), materialized; then a log of
random updates that is `--log-mb` large. `direct` restores from a store without any delay: the cost in processor
time. `throttled` is a store of 100 MB/s and 20 ms; `off` there is the same table materialized at the same cut, without
a log; `local` has copies of everything. `on_vs_off` and `local_vs_not` are ratios of times within this run.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from obstore.store import MemoryStore

from holdfast.clock import ManualClock
from holdfast.formats.handles import TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.materialize.logged_table import LoggedTable
from holdfast.materialize.policy import MaterializationPolicy
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.local import LocalCopies
from holdfast.recovery.restore import restore_table
from holdfast.settings import HashMapState, RocksDBState, StateBackend
from holdfast.state.backends import new_table
from holdfast.state.table import StateTable
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.storage.store import ObjectStore
from holdfast.testing import ThrottledStore
from holdfast.uploads.uploader import Uploader

GROUPS = 128
KEYS = pa.schema([("k", pa.int64())])
BATCH_ROWS = 20_000
BYTES_PER_S, LATENCY_S = 100e6, 0.02
BACKENDS: dict[str, StateBackend] = {"hashmap": HashMapState(), "rocksdb": RocksDBState()}
EVERYTHING = 1 << 40


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=int, default=100)
    parser.add_argument("--log-mb", type=int, default=20)
    parser.add_argument("--value-bytes", type=int, default=1000, help="0: one int64")
    parser.add_argument("--backend", choices=sorted(BACKENDS), action="append")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    return parser.parse_args(argv)


class State:
    """A table with its durable side, in a store of this process; and copies of everything."""

    def __init__(self, options: argparse.Namespace, backend: StateBackend, folder: Path) -> None:
        self.row_bytes = options.value_bytes + 24
        self.rows = options.state_mb * 1_000_000 // self.row_bytes
        self.values = pa.schema([("v", pa.binary() if options.value_bytes else pa.int64())])
        self.value_bytes = options.value_bytes
        self.backend = backend
        self.folder = folder
        self.store: ObjectStore = ObstoreStore("memory://", MemoryStore())
        self.copies = LocalCopies(str(folder), "0" * 32, 0, EVERYTHING)
        self.clock = ManualClock()
        self.uploader = Uploader(self.store, 1, 1, copies=self.copies)
        self.table = self.new_table()
        policy = MaterializationPolicy(interval_s=1.0, log_handles_max=1 << 30, log_bytes_min=1 << 60)
        self.keyed = LoggedTable(LogId("bench", "state", 0, GROUPS), self.table, self.uploader, policy, self.clock)
        self.rng = np.random.default_rng(1)
        self.batch = -1

    def new_table(self) -> StateTable:
        return new_table(self.backend, str(self.folder), KEYS, self.values, GROUPS)

    def put(self, keys: Any, materialize: bool = False) -> None:
        """Run a batch: a random value for each of the keys."""
        self.batch += 1
        self.clock.advance(2.0 if materialize else 0.0)
        self.table.begin(self.batch)
        slots = self.table.lookup(pa.record_batch({"k": keys}))
        column = self.table.column("v")
        if self.value_bytes:
            data = self.rng.bytes(len(keys) * self.value_bytes)
            values = np.empty(len(keys), object)
            values[:] = [data[i : i + self.value_bytes] for i in range(0, len(data), self.value_bytes)]
        else:
            values = self.rng.integers(0, 1 << 62, len(keys))
        column.values[slots] = values
        column.valid[slots] = True
        self.table.present[slots] = True
        self.keyed.commit(self.batch)

    def fill(self) -> None:
        for start in range(0, self.rows, BATCH_ROWS):
            self.put(np.arange(start, min(start + BATCH_ROWS, self.rows)))

    def update(self, size_bytes: int) -> None:
        for _ in range(max(1, size_bytes // self.row_bytes // BATCH_ROWS)):
            self.put(self.rng.permutation(self.rows)[:BATCH_ROWS])
            self.checkpoint()

    def materialized(self) -> TableHandle:
        """The whole table is stored; the checkpoint that uses it."""
        begun = self.uploader.metrics().get("completedMaterialization", 0)
        self.put(np.arange(1), materialize=True)
        while self.uploader.metrics().get("completedMaterialization", 0) == begun:
            time.sleep(0.01)
        return self.checkpoint()

    def checkpoint(self) -> TableHandle:
        handle = self.keyed.checkpoint(self.batch, self.batch).result()
        self.keyed.completed(self.batch)
        return handle

    def restore(self, handle: TableHandle, store: ObjectStore, copies: LocalCopies | None = None) -> dict[str, float]:
        table = self.new_table()
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        with ObjectCache(store, copies=copies) as fetch:
            restore_table(table, [handle], fetch, 0, GROUPS, str(self.folder))
            seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
            fetched = fetch.fetched
        assert len(table) == self.rows
        table.close()
        size = fetched.bytes_from_store + fetched.bytes_from_local
        return {
            "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu_s, 3),
            "stored_mb": round(size / 1e6, 1),
            "mb_per_s": round(size / 1e6 / seconds, 1),
            "rows_per_s": round(self.rows / seconds),
        }

    def close(self) -> None:
        self.keyed.close()
        self.uploader.close()
        self.table.close()
        self.copies.close(delete=True)


def measure(options: argparse.Namespace, backend: str, folder: Path) -> dict[str, Any]:
    state = State(options, BACKENDS[backend], folder)
    throttled = ThrottledStore(state.store, BYTES_PER_S, LATENCY_S)
    state.fill()
    state.materialized()
    state.update(options.log_mb * 1_000_000)
    on = state.checkpoint()
    figures: dict[str, Any] = {
        "rows": state.rows,
        "log_mb": round(sum(piece.length for piece in on.log) / 1e6, 1),
        "direct": state.restore(on, state.store),
        "throttled": state.restore(on, throttled),
        "local": state.restore(on, throttled, state.copies),
    }
    figures["off"] = state.restore(state.materialized(), throttled)
    figures["on_vs_off"] = round(figures["throttled"]["seconds"] / figures["off"]["seconds"], 2)
    figures["local_vs_not"] = round(figures["local"]["seconds"] / figures["throttled"]["seconds"], 2)
    state.close()
    return figures


def runs(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    for backend in options.backend or sorted(BACKENDS):
        with tempfile.TemporaryDirectory(prefix="holdfast-recovery-") as folder:
            yield backend, measure(options, backend, Path(folder))


def main(argv: list[str]) -> None:
    options = arguments(argv)
    result = {"state_mb": options.state_mb, "value_bytes": options.value_bytes} | dict(runs(options))
    if not options.json:
        for backend in options.backend or sorted(BACKENDS):
            print(backend)
            for name, figures in result[backend].items():
                print(f"  {name:12} {figures}")
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
