"""The state table alone, without Spark: a keyed running count in batches of 100,000 rows.

    python -m benchmarks.state --backend rocksdb --cache 500000 --keys 1000000 --rows 5000000 --pattern returning --json

All keys are in the table before the clock starts. Timed for each batch: begin, look-up (with old rows for undo), the
count with a running value for each row, the changes for the changelog, commit. A checkpoint is persisted every second
into a store in memory, and releases undo. Not timed: making the input, compiling kernels (`warmup_s` covers both, and
filling the table). Time is processor time of the thread that processes batches: uploads run on others; what batches
wait for them is in `rows_per_s_by_wall` alone.

Patterns, by `--pattern`:
    random      keys uniformly at random; with a cache of N of K keys about N/K of the distinct rows of a batch hit
    returning   the pattern of FLIP-325 stretched over batches: half the keys once, the same half again, then the
                other half twice, …; with a cache of K all hit, of K/2 half of them, of K/4 none
`--changelog both` gives the cost of the changelog: a single table, with it and without it in turn, a second each with a
checkpoint in its middle, and how fast batches with it are beside those without it: `on_off_ratio`, of all of them, with
its standard error by how the pairs differ; of the median pair; of all of them by the clock. Two runs one after the
other tell little on a shared machine: how fast memory answers changes within seconds. So do few pairs: in a noisy hour
they differ by 10 %, so that it takes 400 of them, a quarter of an hour, for an error of 0.005.

Reuse inside a batch is free in every case, so `hit_ratio` counts distinct rows of a batch found in memory.

`--against-flink` then runs Flink with the same backend and number of keys, parallelism 1, with and without its
changelog, and prints the ratios. Flink's figure is that of a whole job by wall clock (its source and the exchange run
beside the operator, on other cores where there are any); the table's is processor time of a single thread.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from obstore.store import MemoryStore
from rich.console import Console
from rich.progress import Progress

from benchmarks.peers import flink
from holdfast.changelog.writer import ChangelogWriter
from holdfast.clock import SystemClock
from holdfast.formats.log_objects import LogId
from holdfast.settings import HashMapState, RocksDBState
from holdfast.state.backends import new_table
from holdfast.state.compiled import kernel
from holdfast.state.table import StateTable, merge_changes
from holdfast.storage.obstore_store import ObstoreStore
from holdfast.taskmanager.process_memory import GarbageCollection, keep_freed_memory
from holdfast.uploads.uploader import Uploader

BATCH_ROWS = 100_000
DISTINCT_BATCHES = 50
"""Input is made once and used in turn, so that it does not fill the memory."""
CHECKPOINT_S = 1.0
STEPS = ("lookup", "count", "changes", "commit")


@kernel
def running_count(slots: Any, counts: Any, valid: Any, present: Any, out: Any) -> None:
    """Add 1 for each row's key, and give the count so far as the row's output."""
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        counts[slot] += 1
        valid[slot] = True
        present[slot] = True
        out[i] = counts[slot]


def key_batches(keys: int, key_type: str, numbers: Iterator[npt.NDArray[np.int64]]) -> Iterator[pa.RecordBatch]:
    """Batches of keys; a string key has 16 bytes."""
    names = pa.array([f"{i:016d}" for i in range(keys)]) if key_type == "string" else None
    for number in numbers:
        column = pa.array(number)
        yield pa.record_batch({"k": column if names is None else names.take(column)})


def drawn(keys: int, pattern: str, batches: int) -> Iterator[npt.NDArray[np.int64]]:
    """Key numbers of each batch."""
    random = np.random.default_rng(keys)
    if pattern == "random":
        yield from (random.integers(0, keys, BATCH_ROWS) for _ in range(batches))
        return
    half, shuffled = keys // 2, random.permutation(keys)
    for batch in range(batches):
        x = np.arange(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS)
        yield shuffled[x % half + half * (x // (2 * half) % 2)]


class Log:
    """The table's changelog, on or off, persisted every second."""

    def __init__(self, table: StateTable, on: bool) -> None:
        self.table = table
        self.on = on
        self.uploader = Uploader(ObstoreStore("memory://", MemoryStore()), 1, 1)
        self.writer = ChangelogWriter(LogId("count", "state", 0, 128), self.uploader, merge_changes)
        self.cut_at_s = time.monotonic() + CHECKPOINT_S
        self.cuts = ThreadPoolExecutor(1, thread_name_prefix="cut")
        self.last_cut: Future[None] | None = None

    def changes(self) -> Any:
        return self.table.defer_changes() if self.on else None

    def committed(self, batch: int, changes: Any) -> None:
        if self.on:
            self.writer.append(batch, changes)
        if time.monotonic() >= self.cut_at_s:
            self.cut(batch)

    def cut(self, batch: int) -> None:
        """Cut on a thread of its own, as a TaskManager is asked to."""
        self.cut_at_s = time.monotonic() + CHECKPOINT_S
        self.last_cut = self.cuts.submit(self._cut, batch, self.writer.next_sqn(), self.on, self.last_cut)

    def await_cut(self) -> None:
        """Return the last result; raises the error of any of them."""
        if self.last_cut is not None:
            self.last_cut.result()

    def close(self) -> None:
        self.await_cut()
        self.cuts.shutdown()
        self.uploader.close(discard=False)

    def _cut(self, batch: int, sqn: int, on: bool, previous: "Future[None] | None") -> None:
        if previous is not None:
            previous.result()
        if on:
            self.writer.persist(batch).result()
            self.writer.truncate(sqn)
        self.table.release(batch)


class Run:
    """A table with all its keys, its log, and input for so many rows, whose first batch it has processed."""

    def __init__(
        self, backend: str, cache: int, keys: int, key_type: str, rows: int, changelog: bool, pattern: str
    ) -> None:
        arrow_type = pa.int64() if key_type == "int64" else pa.string()
        state = HashMapState() if backend == "hashmap" else RocksDBState(cache_max_entries=cache)
        self.table = new_table(state, None, pa.schema([("k", arrow_type)]), pa.schema([("n", pa.int64())]), 128)
        self.log = Log(self.table, changelog)
        self._batch = 0
        every_key = (np.arange(start, min(start + BATCH_ROWS, keys)) for start in range(0, keys, BATCH_ROWS))
        for filling in key_batches(keys, key_type, every_key):
            self._process(filling)
        self.count = -(-rows // BATCH_ROWS)
        """How many batches the rows are."""
        distinct = self.count if pattern == "returning" else min(self.count, DISTINCT_BATCHES)
        self._input = list(key_batches(keys, key_type, drawn(keys, pattern, distinct)))
        self._process(self._input[0])
        self.log.cut(self._batch - 1)
        self._done = 0

    def step(self) -> list[float]:
        """The next batch; returns the seconds of each of `STEPS`."""
        rows = self._input[self._done % len(self._input)]
        self._done += 1
        return self._process(rows)

    def slice(self, changelog: bool) -> tuple[int, float, float]:
        """A second of batches, a checkpoint in its middle, which is over before the next slice begins: their number,
        processor time and time by the clock.
        """
        self.log.on = changelog
        begun, count, seconds = time.monotonic(), 0, 0.0
        self.log.cut_at_s = begun + CHECKPOINT_S / 2
        while time.monotonic() < begun + CHECKPOINT_S:
            seconds += sum(self.step())
            count += 1
        wall_s = time.monotonic() - begun
        self.log.await_cut()
        return count, seconds, wall_s

    def close(self) -> None:
        self.log.close()
        self.table.close()

    def _process(self, rows: pa.RecordBatch) -> list[float]:
        table, batch = self.table, self._batch
        self._batch += 1
        clock = [time.thread_time()]
        table.begin(batch)
        slots = table.lookup(rows)
        clock.append(time.thread_time())
        column = table.column("n")
        running_count(slots, column.values, column.valid, table.present.array, np.empty(len(slots), np.int64))
        clock.append(time.thread_time())
        changes = self.log.changes()
        clock.append(time.thread_time())
        table.commit()
        self.log.committed(batch, changes)
        clock.append(time.thread_time())
        return np.diff(clock).tolist()


def measure(
    backend: str, cache: int, keys: int, key_type: str, rows: int, changelog: bool, pattern: str
) -> dict[str, Any]:
    """Run the benchmark; `--json` prints the result."""
    started = time.perf_counter()
    run = Run(backend, cache, keys, key_type, rows, changelog, pattern)
    table, count = run.table, run.count
    warmed = time.perf_counter()
    hits, accesses = table.cache_accesses
    begun = time.perf_counter()
    steps = np.array([run.step() for _ in range(count)])
    wall_s = time.perf_counter() - begun
    seconds = float(steps.sum())
    hits, accesses = table.cache_accesses[0] - hits, table.cache_accesses[1] - accesses
    result = {
        "backend": backend,
        "cache": cache,
        "changelog": changelog,
        "keys": keys,
        "key_type": key_type,
        "rows": count * BATCH_ROWS,
        "rows_per_s": round(count * BATCH_ROWS / seconds),
        "rows_per_s_by_wall": round(count * BATCH_ROWS / wall_s),
        "ns_per_row": round(seconds / (count * BATCH_ROWS) * 1e9, 2),
        "ns_per_row_p50": {
            step: round(statistics.median(times) / BATCH_ROWS * 1e9, 2)
            for step, times in zip(STEPS, steps.T.tolist(), strict=True)
        },
        "hit_ratio": round(hits / accesses, 3) if accesses else None,
        "bytes_per_entry": round(table.memory_bytes / len(table), 1),
        "undo_bytes": table.undo_bytes,
        "commit_ms_p50": round(statistics.median(steps[:, STEPS.index("commit")]) * 1000, 3),
        "batch_ms_max": round(float(steps.sum(1).max()) * 1000, 1),
        "warmup_s": round(warmed - started, 2),
    }
    run.close()
    return result


def compare(backend: str, cache: int, keys: int, key_type: str, rows: int, pattern: str) -> dict[str, Any]:
    """The same with and without changelog, in turn."""
    run = Run(backend, cache, keys, key_type, rows, True, pattern)
    for on in (True, False):
        run.slice(on)
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    done = 0
    with Progress(console=Console(stderr=True), auto_refresh=False) as progress:
        task = progress.add_task("batches", total=run.count)
        while done < run.count:
            for on in (True, False) if len(taken[True]) % 2 else (False, True):
                count, seconds, wall_s = run.slice(on)
                taken[on].append((seconds / count, wall_s / count))
                done += count
            progress.update(task, completed=done, refresh=True)
    run.close()
    on, off = (np.array(taken[each]) / BATCH_ROWS * 1e9 for each in (True, False))
    ratio = float(off[:, 0].mean() / on[:, 0].mean())
    error = None
    if len(on) > 1:
        error = round(float(np.std(off[:, 0] - ratio * on[:, 0], ddof=1) / len(on) ** 0.5 / on[:, 0].mean()), 3)
    return {
        "backend": backend,
        "cache": cache,
        "changelog": "both",
        "pattern": pattern,
        "keys": keys,
        "key_type": key_type,
        "rows": done * BATCH_ROWS,
        "pairs": len(on),
        "ns_per_row_on": round(float(on[:, 0].mean()), 2),
        "ns_per_row_off": round(float(off[:, 0].mean()), 2),
        "on_off_ratio": round(ratio, 3),
        "on_off_ratio_se": error,
        "on_off_ratio_p50": round(float(np.median(off[:, 0] / on[:, 0])), 3),
        "on_off_ratio_by_wall": round(float(off[:, 1].mean() / on[:, 1].mean()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.state", description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    parser.add_argument("--cache", type=int, default=0, help="rows that stay in memory, of RocksDB")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--key-type", choices=["int64", "string"], default="int64")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--emit", choices=["every"], default="every", help="one running value for each row")
    parser.add_argument("--changelog", choices=["on", "off", "both"], default="on")
    parser.add_argument("--pattern", choices=["random", "returning"], default="random")
    parser.add_argument("--json", action="store_true", help="one JSON line instead of a line for each figure")
    parser.add_argument("--against-flink", action="store_true", help="the same on Flink, and the ratios as a table")
    arguments = parser.parse_args()
    if arguments.against_flink and arguments.key_type != "int64":
        parser.error("the Flink peer counts int64 keys: leave --key-type out with --against-flink")
    if arguments.against_flink and arguments.changelog == "both":
        parser.error("--against-flink compares one rate: choose --changelog on or off")
    keep_freed_memory()  # as a TaskManager's process does, and its garbage collection
    with GarbageCollection(SystemClock()):
        table = (arguments.backend, arguments.cache, arguments.keys, arguments.key_type, arguments.rows)
        if arguments.changelog == "both":
            result = compare(*table, arguments.pattern)
        else:
            result = measure(*table, arguments.changelog == "on", arguments.pattern)
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:22} {value}" for name, value in result.items()))
    if arguments.against_flink:
        backend = arguments.backend
        flink.compare(result["rows_per_s"], arguments.keys, 1, [(backend, False), (backend, True)])


if __name__ == "__main__":
    main()
