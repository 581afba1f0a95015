"""Windows of a simulated job: rows with times out of order, the expected windows, and the rows kept for them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import simulation_oracle as oracle
from simulation_ends import FedSource
from simulation_invariants import require_equal

import holdfast as hf
from holdfast.functions.windows.declared import PANE, SessionWindow, Window
from holdfast.graph.program import Program
from holdfast.journal.records import CheckpointRecord
from holdfast.sinks.base import Sink
from holdfast.sources.base import SourceBatch, SplitRead
from holdfast.storage.store import ObjectStore

SECOND = 1_000_000
JITTERS_S, DELAY_S = (0, 4, 1, 3, 2, 0, 5), 6
"""No row is late: within a split, none is further behind the newest one than the greatest jitter."""
LATE = "late"
"""The kind of windows for which rows may be late: by which batch, and so which rows are, no recomputation can say."""
TIMED = pa.schema([("value", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
TIMED_KEYED = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
KINDS = ("tumbling", "sliding", "session", LATE)

Key = tuple[int, int, int]
"""Key, start and end of a window, in microseconds."""


def time_of(value: int) -> int:
    """A second for each number, out of order by up to the jitter."""
    return (value + JITTERS_S[value % len(JITTERS_S)]) * SECOND


@dataclass(frozen=True)
class TimedSource(FedSource):
    """The numbers, each with its event time."""

    odd: bool = False
    """True: the odd numbers alone."""

    def schema(self) -> pa.Schema:
        return TIMED

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        for batch in super().read(read):
            values = [2 * value + 1 if self.odd else value for value in batch.rows.column("value").to_pylist()]
            columns = [values, [time_of(value) for value in values]]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, TIMED.types, strict=True)]
            yield SourceBatch(pa.RecordBatch.from_arrays(arrays, schema=TIMED), batch.position)


def keyed_times(keys: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The event times, with the numbers' remainders as keys."""
    groups = pa.array(batch.column("value").to_numpy() % keys)
    return pa.RecordBatch.from_arrays([groups, batch.column("at")], schema=TIMED_KEYED)


def window_of(kind: str, keys: int) -> Any:
    if kind == "session":
        return hf.session_window("at", keys + 1)
    if kind == LATE:
        return hf.window("at", "4s")
    return hf.window("at", "20s") if kind == "tumbling" else hf.window("at", "20s", "8s", start="3s")


def write_windows(numbers: hf.Stream, kind: str, keys: int, sink: Sink, late_sink: Sink) -> None:
    delay = 0 if kind == LATE else DELAY_S
    timed = numbers.with_watermark("at", delay).map_batches(partial(keyed_times, keys), TIMED_KEYED)
    late: Any = "stream" if kind == LATE else "drop"
    counts = timed.key_by("k", window_of(kind, keys)).aggregate(n=hf.count(), late=late, name="windows")
    if kind == LATE:
        counts.late.map_batches(late_as_numbers, "k BIGINT, at BIGINT").write(late_sink)
    counts.map_batches(bounds_as_numbers, "k BIGINT, start BIGINT, stop BIGINT, n BIGINT").write(sink)


def bounds_as_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    k, start, stop, n = batch.columns
    arrays = [k, start.cast(pa.int64()), stop.cast(pa.int64()), n]
    return pa.RecordBatch.from_arrays(arrays, names=["k", "start", "stop", "n"])


def late_as_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column("k"), batch.column("at").cast(pa.int64())], names=["k", "at"])


def expected(kind: str, keys: int, positions: Mapping[str, Any], until_us: int) -> Counter[Key]:
    """The rows of each window that ends by then."""
    window = window_of(kind, keys)
    rows = sorted((value % keys, time_of(value)) for value in oracle.values(positions))
    found = _sessions(rows, window) if isinstance(window, SessionWindow) else _windows(rows, window)
    return Counter({key: n for key, n in found.items() if key[2] <= until_us})


def _windows(rows: list[tuple[int, int]], window: Window) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for key, at in rows:
        start = (at - window.start_us) // window.slide_us * window.slide_us + window.start_us
        while start + window.size_us > at:
            found[key, start, start + window.size_us] += 1
            start -= window.slide_us
    return found


def _sessions(rows: list[tuple[int, int]], window: SessionWindow) -> Counter[Key]:
    found: Counter[Key] = Counter()
    last: tuple[int, int, int, int] | None = None
    for key, at in [*rows, (-1, 0)]:
        if last is not None and last[0] == key and at <= last[2]:
            last = (key, last[1], at + window.gap_us, last[3] + 1)
            continue
        if last is not None:
            found[last[:3]] = last[3]
        last = (key, at, at + window.gap_us, 1)
    return found


def watermark_of(record: CheckpointRecord) -> int:
    """The watermark of the record's last batch, the least of all sources; long ago where a source has none."""
    found = [time.watermark_us for time in record.watermarks.values()]
    known = [time_us for time_us in found if time_us is not None]
    return min(known) if known and len(known) == len(found) else -(1 << 60)


def check_windows(found: oracle.Rows, kind: str, keys: int, record: CheckpointRecord) -> None:
    """Every window that the watermark has passed came out, once and whole; no other did.

    Windows that closed in batches without rows, after all that a start was waited for, may still be unpublished.
    """
    given = sorted(((row["k"], row["start"], row["stop"]), row["n"]) for row in found)
    wanted = expected(kind, keys, record.offsets["numbers"], watermark_of(record))
    if record.groups.get("windows-out"):
        wanted = Counter({key: n for key, n in wanted.items() if (key, n) in given})
    require_equal(given, sorted(wanted.items()), "windows")


def check_late(found: oracle.Rows, late: oracle.Rows, keys: int, record: CheckpointRecord) -> None:
    """Every row of a window that the watermark has passed is counted in it, or was late: either, and once."""
    if record.groups.get("windows-out") or record.groups.get("late-out"):
        return
    given = Counter({(row["k"], row["start"], row["stop"]): row["n"] for row in found})
    require_equal(len(given), len(found), "windows that came out")
    given += _windows([(row["k"], row["at"]) for row in late], window_of(LATE, keys))
    require_equal(
        given, expected(LATE, keys, record.offsets["numbers"], watermark_of(record)), "rows on time, and late"
    )


def check_panes(store: ObjectStore, record: CheckpointRecord, program: Program, kind: str, keys: int) -> None:
    """Check that the state has the rows that open windows need, and nothing else."""
    tables = oracle.restored_tables(store, record, program, "windows")
    window, until_us, positions = window_of(kind, keys), watermark_of(record), record.offsets["numbers"]
    if isinstance(window, SessionWindow):
        closed = expected(kind, keys, positions, until_us)
        wanted = expected(kind, keys, positions, 1 << 60) - closed
        sessions = {(row["k"], row["__session"], row["__end"]): row["n.count"] for row in tables["state"]}
        require_equal(sessions, dict(wanted), f"sessions at batch {record.batch}")
        newest = {key: max(start for k, start, _ in wanted if k == key) for key, _, _ in wanted}
        require_equal({row["k"]: row["__session"] for row in tables["newest"]}, newest, "newest sessions")
        return
    found = {(row["k"], row[PANE]): row["n.count"] for row in tables["state"]}
    panes = Counter(
        (value % keys, (time_of(value) - window.start_us) // window.pane_us * window.pane_us + window.start_us)
        for value in oracle.values(positions)
    )
    kept = {key: n for key, n in panes.items() if key[1] >= window.closed_before(until_us)}
    require_equal(found, kept, f"panes at batch {record.batch}")
