"""Checkpoints of large state, with and without a changelog: how long, how large, and how long a restart takes.

    python -m benchmarks.checkpoints --state-mb 1200 --updates-per-s 78000 --changelog both --seconds 300 --json

A subtask keeps `--state-mb` of state, in RocksDB with a cache or in memory (`--backend hashmap`, the default of a
job): values of 1,000 random bytes by int64 keys. All keys are put once; then random keys get new values,
`--updates-per-s` of them (max: as many as go through), and a checkpoint is taken every `--interval`. A batch takes the
updates since the last batch; it begins `--trigger` after the last batch began, or when that batch ends. (Without a
trigger 10,000 updates/s make 300 batches a second, which keep a core busy.)

Everything is real but Spark: the JobMaster with its coordinator, journal and records, the TaskManager with its uploads,
manifests and acknowledgements, and the object store (files in `--store`), in one process (`holdfast.testing`), so that
batches, encoding and materialization share two cores and one interpreter. Where there is room the store lies in memory
(/dev/shm): the disk is RocksDB's and that of local copies, as it is with a store on other machines.

Two jobs, with and without a changelog (`--changelog both`), of two sizes (`--state-mb 1200 100`), or with and without
local copies (`--local-recovery both --changelog on`), are there at once and take turns of some seconds, the other
being idle: within minutes the speed of a shared machine changes by more than a changelog costs. Work that a turn
leaves is done within three seconds, before the counted part of the other's turn.

    p50_ms … max_ms         from the cut to the record, of checkpoints after the warm-up
    incremental_bytes_p50   stored for a checkpoint; full_bytes_max: all state that a checkpoint refers to, the largest
    table_bytes             the table's own snapshot, as it is stored: median over checkpoints
    space_amplification     full_bytes_max / table_bytes
    stored_bytes_max        all state that lay in the store at any moment, also state that is being replaced
    rows_per_s              updates committed; max_lag_s: by how much they were ever behind `--updates-per-s`
    cpu_us_per_row          processor time of the whole process for an update, in microseconds
    back_pressured_s        time for which batches waited for uploads, since the start
    recovery_s              from the loss of the TaskManager until all is restored, from a store with 100 MB/s and 20 ms
    recovery_bytes          of the state that was restored so
    recovery_local_s        the same with the local copies that recovery uses on the same machine

`--latencies s3`: each object that the job stores, however small, takes as long as FLIP-158 measured for 5 MB to S3
(p50 459, p99 1,039, p99.9 3,202 ms; see `benchmarks.uploads`), in place of the time that memory takes.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import holdfast as hf
from benchmarks.count import percentile
from benchmarks.random_updates import Cycle, RandomUpdates, Values
from benchmarks.uploads import latencies_s
from holdfast.clock import SystemClock
from holdfast.formats.history import CheckpointStats
from holdfast.storage import names
from holdfast.storage.store import ObjectStore, open_store
from holdfast.taskmanager.process_memory import GarbageCollection, keep_freed_memory
from holdfast.testing import SlowStore, ThrottledStore, start
from holdfast.testing.local import LocalCluster

VALUE_BYTES = 1000
NETWORK_BYTES_PER_S, NETWORK_LATENCY_S = 100e6, 0.02
STEP_S = 0.02
PATIENCE_S = 600.0
SETTLE_S = 10.0
"""Seconds of updates before a loss, at least; up to twice as long if there are several losses, so that they do not all
come at the same moment between two materializations.
"""
TURN_S = 15.0
TURN_WARMUP_S = 3.0
TURN_REST_S = 2.0
"""Seconds after a turn for the work that RocksDB and a materialization have left, before the next turn's warm-up."""
JOBS_MAX = 2
DECK = 1000
"""Latencies until the table was dealt once, its p99.9 among them."""
MEMORY = Path("/dev/shm")
STORE_ROOM = 5
"""Times the state: state that is being replaced lies in the store, too."""
COPIES_PASSES = 3
"""Deleting all copies takes a while, in which new ones are made."""


class Store:
    """Knows the state that lies in it, and can be put behind a slow network while the job runs.

    Deleted files of state are kept, and written over. Memory that is let go may go back to a virtual machine's host,
    and a file of 4 MB made of blocks that have to come from there again took 15 instead of 1.5 ms. A store on another
    machine takes no memory of this machine.
    """

    def __init__(self, folder: Path, latencies: str) -> None:
        self._folder, self._kept = folder / "store", folder / "kept"
        self._kept.mkdir(parents=True)
        self._deck = latencies_s(DECK, seed=1) if latencies == "s3" else None
        self._fast = SlowStore(open_store(f"file://{self._folder}"), self._latency_s)
        self.url = self._fast.url
        self._slow = ThrottledStore(self._fast, NETWORK_BYTES_PER_S, NETWORK_LATENCY_S)
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._spares: list[tuple[int, Path]] = []
        self._bytes = 0
        self.slow = False
        self.bytes_max = 0
        """The largest size that all state had together."""

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        spare = None if self.slow or not _of_state(name) else self._spare_for(len(data))
        if spare is None:
            self._now().put(name, data)
        else:
            time.sleep(self._latency_s("put", name))
            self._put_over(spare, name, data)
        if _of_state(name):
            self._has(name, len(data))

    def delete(self, objects: Sequence[str]) -> None:
        self._now().delete([name for name in objects if name not in self._sizes])
        for name in objects:
            if name in self._sizes:
                self._set_aside(name)
                self._has(name, 0)

    def _latency_s(self, operation: str, name: str) -> float:
        if self._deck is None or operation not in ("put", "create"):
            return 0.0
        with self._lock:
            return next(self._deck)

    def _put_over(self, spare: Path, name: str, data: bytes | bytearray | memoryview) -> None:
        with spare.open("r+b", buffering=0) as file:
            file.write(data)
            file.truncate()
        place = self._folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        spare.rename(place)

    def _spare_for(self, length: int) -> Path | None:
        """The file nearest in length, which is neither twice as long nor half."""
        with self._lock:
            at = min(range(len(self._spares)), key=lambda at: abs(self._spares[at][0] - length), default=None)
            if at is None or not length / 2 <= self._spares[at][0] <= length * 2:
                return None
            return self._spares.pop(at)[1]

    def _set_aside(self, name: str) -> None:
        spare = self._kept / uuid4().hex
        with contextlib.suppress(FileNotFoundError):
            (self._folder / name).rename(spare)
            with self._lock:
                self._spares.append((self._sizes[name], spare))

    def _has(self, name: str, size_bytes: int) -> None:
        with self._lock:
            self._bytes += size_bytes - self._sizes.pop(name, 0)
            if size_bytes:
                self._sizes[name] = size_bytes
            self.bytes_max = max(self.bytes_max, self._bytes)

    def _now(self) -> ObjectStore:
        return self._slow if self.slow else self._fast

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)


def _of_state(name: str) -> bool:
    return name.startswith((names.CHANGELOG, names.SHARED))


@dataclass
class Updates:
    """Figures taken while updates went through; of several turns together."""

    rows: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    """Processor time of the whole process."""
    lag_s: float = 0.0
    """How far they were behind at most."""
    checkpoints: list[CheckpointStats] = field(default_factory=list)


class Kind(NamedTuple):
    """The kind of a job under measurement."""

    state_mb: int
    changelog: bool
    local_copies: bool


class Running:
    """A job under measurement. `upkeep` is called now and then while updates go through, as a TaskManager does."""

    def __init__(
        self, options: argparse.Namespace, kind: Kind, folder: Path, storage: Path, upkeep: Callable[[], None]
    ) -> None:
        self.kind = kind
        self.upkeep = upkeep
        self.keys = kind.state_mb * 1_000_000 // VALUE_BYTES
        self.local_dir = folder / "local"
        self.storage = storage
        self.source = RandomUpdates(self.keys, Cycle(), name="updates")
        self.store = Store(storage, options.latencies)
        job = hf.Job(
            None,
            name="checkpoints",
            storage=self.store.url,
            parallelism=1,
            state=hf.HashMapState()
            if options.backend == "hashmap"
            else hf.RocksDBState(cache_max_entries=options.cache),
            checkpoint=hf.CheckpointConfig(
                trigger=hf.every(options.interval), changelog=kind.changelog, tolerable_failed_checkpoints=10
            ),
            task_manager=hf.TaskManagerConfig(
                memory="16GB", local_dir=str(self.local_dir), local_recovery=kind.local_copies
            ),
            max_rows_per_batch=options.batch_rows,
        )
        keyed = job.read(self.source).key_by("k")
        keyed.process(Values(VALUE_BYTES), "k BIGINT", name="values").write(hf.NoopSink())
        self.clusters: list[LocalCluster] = []
        self.query = start(job, hf.processing_time(options.trigger), store=self.store, on_cluster=self.clusters.append)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if self.query.awaitTermination(STEP_S) or time.monotonic() > deadline_s:
                raise SystemExit(f"{what}: did not happen; {self.query.status}")

    def fill(self) -> None:
        """Each key once, and a checkpoint of that."""
        self.until(lambda: self.query.totals.rows >= self.keys, "all keys are put")
        self.query.trigger_checkpoint(PATIENCE_S)

    def update(self, rate: float | None, seconds: float, warmup_s: float, seen: Updates) -> None:
        """Update for `seconds` after a warm-up; add the figures to `seen`."""
        self.source.cycle.begin(rate, self.query.totals.rows)
        time.sleep(warmup_s)
        first, began_s, began_cpu_s = self.query.totals.rows, time.monotonic(), time.process_time()
        first_checkpoint = len(self.query.totals.checkpoints)
        while time.monotonic() < began_s + seconds:
            time.sleep(STEP_S * 5)
            self.upkeep()
            seen.lag_s = max(seen.lag_s, self.source.cycle.lag_s(self.query.totals.rows))
        seen.rows += self.query.totals.rows - first
        seen.seconds += time.monotonic() - began_s
        seen.cpu_s += time.process_time() - began_cpu_s
        seen.checkpoints += self.query.totals.checkpoints[first_checkpoint:]

    def rest(self) -> None:
        """No more updates, for now."""
        self.source.cycle.begin(0.0, self.query.totals.rows)
        time.sleep(TURN_REST_S)

    def recover(self, local: bool, rate: float | None, settle_s: float) -> tuple[float, int]:
        """Seconds from the loss of the TaskManager until its replacement has restored everything, and its bytes.

        Updates go on for `settle_s` before it, without those that came while the job stood, so that the log has its
        usual length.
        """
        self.source.cycle.begin(rate, self.query.totals.rows)
        time.sleep(settle_s)
        done = len(self.query.totals.checkpoints)
        self.until(lambda: len(self.query.totals.checkpoints) > done, "a checkpoint")
        before = len(self.query.restarts)
        for _ in range(0 if local else COPIES_PASSES):
            for copies in self.local_dir.glob("holdfast-copies-*/*/tm-*/*.*"):
                copies.unlink(missing_ok=True)
        # At once before the loss: uploads meanwhile would stand in line before the downloads of the restore.
        self.store.slow = True
        restored_bytes = self.query.totals.checkpoints[-1].full_bytes
        began_s = time.monotonic()
        self.clusters[0].kill(0)
        self.until(lambda: len(self.query.restarts) > before, "a restart")
        taken_s = time.monotonic() - began_s
        self.store.slow = False
        return taken_s, restored_bytes


def measure(options: argparse.Namespace, upkeep: Callable[[], None]) -> list[dict[str, Any]]:
    """The figures of each job by name; taken in turn where there are two."""
    rate = None if options.updates_per_s == "max" else float(options.updates_per_s)
    room = options.store or _roomy(options)
    with ExitStack() as opened:
        jobs, fill_s = [], []
        for kind in options.kinds:
            folder = opened.enter_context(_temporary(options.folder))
            storage = opened.enter_context(_temporary(room))
            began_s = time.monotonic()
            jobs.append(Running(options, kind, Path(folder), Path(storage), upkeep))
            jobs[-1].fill()
            fill_s.append(time.monotonic() - began_s)
        seen = _updates(options, rate, jobs)
        results = [_figures(options, *each) for each in zip(jobs, seen, fill_s, strict=True)]
        for job, figures in zip(jobs, results, strict=True):
            if options.recoveries:
                figures.update(_recoveries(options, rate, job))
            job.query.stop()
    return results


def _updates(options: argparse.Namespace, rate: float | None, jobs: Sequence[Running]) -> list[Updates]:
    seen = [Updates() for _ in jobs]
    if len(jobs) == 1:
        jobs[0].update(rate, options.seconds, options.warmup, seen[0])
        return seen
    pairs = list(zip(jobs, seen, strict=True))
    while any(each.seconds < options.seconds for each in seen):
        for job, updates in pairs:
            job.update(rate, min(TURN_S, options.seconds), TURN_WARMUP_S, updates)
            job.rest()
        pairs.reverse()
    return seen


def _recoveries(options: argparse.Namespace, rate: float | None, job: Running) -> dict[str, Any]:
    if not options.recoveries:
        return {}
    settle_s = [SETTLE_S * (1.0 + loss / options.recoveries) for loss in range(options.recoveries)]
    local_s = [job.recover(True, rate, each)[0] for each in settle_s] if job.kind.local_copies else []
    taken_s, restored_bytes = zip(*(job.recover(False, rate, each) for each in settle_s), strict=True)
    return {
        "recovery_s": round(statistics.median(taken_s), 2),
        "recovery_bytes": round(statistics.median(restored_bytes)),
        "recovery_local_s": round(statistics.median(local_s), 2) if local_s else None,
    }


def _temporary(folder: str | None) -> "tempfile.TemporaryDirectory[str]":
    # The last put of a materialization may land while the folder is being deleted.
    return tempfile.TemporaryDirectory(prefix="holdfast-checkpoints-", dir=folder, ignore_cleanup_errors=True)


def _roomy(options: argparse.Namespace) -> str | None:
    """Memory, if the stores fit there; otherwise beside the state."""
    free_bytes = shutil.disk_usage(MEMORY).free if MEMORY.is_dir() else 0
    needed_bytes = STORE_ROOM * sum(kind.state_mb for kind in options.kinds) * 1_000_000
    return str(MEMORY) if free_bytes > needed_bytes else options.folder


def _figures(options: argparse.Namespace, job: Running, updates: Updates, fill_s: float) -> dict[str, Any]:
    metrics = (job.query.lastProgress or {}).get("metrics", {})
    return {
        "changelog": "on" if job.kind.changelog else "off",
        "state_mb": job.kind.state_mb,
        "local_copies": "on" if job.kind.local_copies else "off",
        "backend": options.backend,
        "updates_per_s": options.updates_per_s,
        "seconds": options.seconds,
        "store": str(job.storage.parent),
        **_checkpoints(updates.checkpoints),
        **({"series": _series(updates.checkpoints)} if options.series else {}),
        "rows_per_s": round(updates.rows / updates.seconds),
        "cpu_us_per_row": round(updates.cpu_s / max(1, updates.rows) * 1e6, 1),
        "back_pressured_s": round(metrics.get("uploadBackPressuredTimeMs", 0.0) / 1000.0, 2),
        "max_lag_s": round(updates.lag_s, 2),
        "stored_bytes_max": job.store.bytes_max,
        "data_bytes": job.keys * (VALUE_BYTES + 8),
        "materializations": metrics.get("completedMaterialization"),
        "fill_s": round(fill_s, 1),
    }


def _series(checkpoints: Sequence[CheckpointStats]) -> list[tuple[float, int, int]]:
    """Figures of each checkpoint: milliseconds from the cut to the record, bytes stored for it, bytes that it refers
    to.
    """
    return [(round(each.duration_s * 1000, 1), each.incremental_bytes, each.full_bytes) for each in checkpoints]


def _checkpoints(checkpoints: Sequence[CheckpointStats]) -> dict[str, Any]:
    taken_ms = [each.duration_s * 1000.0 for each in checkpoints]
    table_bytes = statistics.median(each.materialized_bytes for each in checkpoints)
    full_bytes = max(each.full_bytes for each in checkpoints)
    return {
        "checkpoints": len(checkpoints),
        **{f"p{p}_ms": round(percentile(taken_ms, p), 1) for p in (50, 90, 99)},
        "max_ms": round(max(taken_ms), 1),
        "sync_p99_ms": round(percentile([each.sync_s * 1000.0 for each in checkpoints], 99), 1),
        "incremental_bytes_p50": round(statistics.median(each.incremental_bytes for each in checkpoints)),
        "full_bytes_max": full_bytes,
        "table_bytes": round(table_bytes),
        "space_amplification": round(full_bytes / table_bytes, 3) if table_bytes else None,
    }


def ratios(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """The ratio of the first figures to the second."""
    names = (
        *("p50_ms", "p99_ms", "max_ms", "full_bytes_max"),
        *("rows_per_s", "cpu_us_per_row", "recovery_s", "recovery_local_s"),
    )
    return {name: round(one[name] / other[name], 3) for name in names if one.get(name) and other.get(name)}


def table(results: Sequence[dict[str, Any]]) -> str:
    """A column for each run."""
    lines = []
    for name in results[0]:
        lines.append(f"{name:24}" + "".join(f"{each[name]!s:>16}" for each in results))
    return "\n".join(lines)


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.checkpoints", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-mb", type=int, nargs="+", default=[100], help="keys times 1,000 bytes; two: see above")
    parser.add_argument("--updates-per-s", default="10000", help="a number, or max")
    parser.add_argument("--changelog", choices=["on", "off", "both"], default="both", help="both: see above")
    parser.add_argument("--interval", default="1s", help="of checkpoints")
    parser.add_argument("--trigger", default="100ms", help="from the start of a batch to the next one, at least")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--warmup", type=float, default=10.0, help="of one job alone, in seconds")
    parser.add_argument("--cache", type=int, default=20_000, help="rows that stay in memory")
    parser.add_argument("--batch-rows", type=int, default=20_000, help="of a batch, at most")
    parser.add_argument("--recoveries", type=int, default=5, help="of each kind; the median counts")
    parser.add_argument("--local-recovery", choices=["on", "off", "both"], default="on", help="both: see above")
    parser.add_argument("--backend", choices=["rocksdb", "hashmap"], default="rocksdb")
    parser.add_argument("--latencies", choices=["none", "s3"], default="none", help="of puts; see above")
    parser.add_argument("--folder", default=None, help="where the state lies; default: the temporary folder")
    parser.add_argument("--store", default=None, help="where the store lies; default: memory, or beside the state")
    parser.add_argument("--series", action="store_true", help="durations and sizes of all checkpoints in the JSON")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    options = parser.parse_args(argv)
    modes = {"on": [True], "off": [False], "both": [True, False]}
    options.kinds = [
        Kind(*each) for each in product(options.state_mb, modes[options.changelog], modes[options.local_recovery])
    ]
    if len(set(options.kinds)) < len(options.kinds) or len(options.kinds) > JOBS_MAX:
        parser.error(f"{len(options.kinds)} jobs: choose two sizes, or both for --changelog or for --local-recovery")
    return options


def main(argv: list[str]) -> None:
    options = arguments(argv)
    keep_freed_memory()  # as a TaskManager's process does, and its garbage collection
    with GarbageCollection(SystemClock()) as garbage:
        results = measure(options, garbage.tick)
    if not options.json:
        print(table(results), file=sys.stderr)
    print(json.dumps(results[0] if len(results) == 1 else compared(results)), flush=True)


def compared(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Print both, under the settings that differ, and the ratio of the first to the second."""
    by = next(name for name in ("changelog", "local_copies", "state_mb") if results[0][name] != results[1][name])
    one, other = (str(each[by]) for each in results)
    return {one: results[0], other: results[1], f"{one}_by_{other}": ratios(*results)}


if __name__ == "__main__":
    main(sys.argv[1:])
