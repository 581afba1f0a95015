"""The ends of a simulated job: a source that is fed, a function, the target of a sink, the clocks of its machines."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from simulation_invariants import require, require_equal
from simulation_runtime import Runtime
from simulation_threads import EPOCH_S

import holdfast as hf
from holdfast.errors import StorageError
from holdfast.sinks.base import Sink
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, SourcePlan
from holdfast.sources.sequence import SequenceEnumerator
from holdfast.storage import names


class Feed:
    """How many numbers there are by now: more and more of them, up to a limit."""

    REFUSED = 3
    """Places are refused but for those after every so many rows."""

    def __init__(self, runtime: Runtime, limit: int, over_s: float, refusals: int = 0) -> None:
        self.limit = limit
        self.refusals = refusals
        self._asked: Counter[int] = Counter()
        self.completed: Offsets | None = None
        """The last checkpoint that the source was told of."""
        self._runtime = runtime
        self._over_s = over_s
        self._rows_per_s = limit / over_s if over_s else 0.0

    def may_be_cut(self, offsets: Offsets) -> bool:
        """True if a cut is not refused there any more."""
        rows = _rows_of(offsets)
        return rows % self.REFUSED == 0 or self._asked[rows] > self.refusals

    def availability(self, offsets: Offsets) -> hf.SnapshotAvailability:
        """The answer for a cut there; a place is refused so often before it is not."""
        self._asked[_rows_of(offsets)] += 1
        if self.may_be_cut(offsets):
            return hf.SnapshotAvailability.AVAILABLE
        return hf.SnapshotAvailability.SOFT_FAILURE.because(f"in the middle of something, at {offsets}")

    def rows(self) -> int:
        if self._runtime.now_s >= self._over_s:
            return self.limit
        return int(min(self.limit, self._rows_per_s * self._runtime.now_s))

    def __reduce__(self) -> Any:
        return _nothing, ()


def _nothing() -> None:
    """The feed of a source that only reads splits."""


@dataclass(frozen=True)
class FedSource(hf.SequenceSource):
    """A sequence that goes as far as its feed says."""

    feed: Feed | None = field(default=None, kw_only=True, repr=False, compare=False)

    @property
    def endless(self) -> bool:
        return False

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        return _FedEnumerator(self, context)


class _FedEnumerator(SequenceEnumerator):
    """Stores how many rows it has seen before it says so, each time in a new object, and requires to be told of every
    start's base and last checkpoint: else objects would stay, and the next start would find an older `completed`."""

    def __init__(self, source: FedSource, context: EnumeratorContext) -> None:
        super().__init__(source, context.source, context.clock)
        assert source.feed is not None
        self._fed = source
        self._feed = source.feed
        self._context = context
        self._rows = 0
        self._chunk: str | None = None
        self._untold: Offsets | None = None
        """The base, until it was told as the newest checkpoint."""
        self._replaced: list[tuple[str, int | None]] = []
        """Objects that a later one has replaced, and how many rows were read by the first position without them."""

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        super().restore(offsets, objects)
        self._untold = offsets
        for self._chunk in objects:
            self._rows = int(self._context.store.get(self._chunk))
        require(_rows_of(offsets) <= self._rows, f"{offsets} are past the {self._rows} rows that {objects} know of")

    def latest(self) -> Offsets:
        rows = self._feed.rows()
        if rows > self._rows:
            name = names.source_chunk(self._context.epoch)
            self._context.store.put(name, str(rows).encode())
            if self._chunk is not None:
                self._replaced.append((self._chunk, None))
            self._chunk, self._rows = name, rows
        return {split: self._fed.length(int(split), self._rows) for split in self._fed.split_names}

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        require(self._untold is None, f"the source was not told of its base {self._untold}")
        plan = super().plan(start, until, rows_max, bytes_max)
        return replace(plan, availability=self._feed.availability(plan.to))

    def objects(self, offsets: Offsets) -> list[str]:
        rows = _rows_of(offsets)
        self._replaced = [(name, rows if since is None else since) for name, since in self._replaced]
        return [] if self._chunk is None else [self._chunk]

    def completed(self, offsets: Offsets) -> None:
        require_equal(offsets, self._untold or offsets, "what the source hears first")
        self._feed.completed = offsets
        self._untold = None
        rows = _rows_of(offsets)
        gone = [name for name, since in self._replaced if since is not None and since < rows]
        self._replaced = [each for each in self._replaced if each[0] not in gone]
        try:
            self._context.store.delete(gone)
        except StorageError:
            self._replaced += [(name, 0) for name in gone]


def _rows_of(offsets: Offsets) -> int:
    return sum(int(position or 0) for position in offsets.values())


class Marks(hf.ProcessFunction):
    """State that comes and goes with each row, the same in whatever order rows come."""

    def __init__(self, refusals: int) -> None:
        self._left = refusals

    BUCKETS = 4
    odd = hf.ValueState(pa.int64())
    seen = hf.MapState(pa.int64(), pa.int64())

    def is_snapshot_available(self) -> hf.SnapshotAvailability:
        """Each copy refuses some cuts at first."""
        self._left -= 1
        return hf.SnapshotAvailability.SOFT_FAILURE if self._left >= 0 else hf.SnapshotAvailability.AVAILABLE

    def process(self, row: Any, ctx: Any) -> Iterable[tuple[int]]:
        if self.odd.value() is None:
            self.odd.update(1)
        else:
            self.odd.clear()
        bucket = row.value % self.BUCKETS
        count = (self.seen.get(bucket) or 0) + 1
        if count == 3:
            self.seen.remove(bucket)
        else:
            self.seen.put(bucket, count)
        return ()


def write_marks(rows: hf.Stream, refusals: int) -> None:
    rows.key_by("k").process(Marks(refusals), "k BIGINT", name="marks").write(hf.NoopSink(name="marks-out"))


class SimulatedClock:
    """The clock of a machine; its wall clock may be set by seconds, and now and then be wrong by days."""

    identity = "the simulated machine"

    def __init__(self, runtime: Runtime, rng: random.Random, jumps: bool) -> None:
        self._runtime = runtime
        self._rng = rng
        self._jumps = jumps
        self._offset_s = rng.uniform(-2.0, 2.0) if jumps else 0.0

    def now(self) -> float:
        if self._jumps and self._rng.random() < 0.01:
            offset_s = self._rng.uniform(-2.0, 2.0)
            self._offset_s = offset_s * 86_400.0 if abs(offset_s) > 1.5 else offset_s
        return EPOCH_S + self._runtime.now_s + self._offset_s

    def monotonic(self) -> float:
        return self._runtime.now_s


def declared(sink: Sink, folders: str | None) -> Sink:
    """A sink as a life declares it: a `ParquetSink` with or without folders."""
    return replace(sink, partition_by=(folders,)) if folders and isinstance(sink, hf.ParquetSink) else sink


class Recorder:
    """The function of a `CallbackSink`: keeps each number once, as its contract asks for, and checks repetitions."""

    def __init__(self, runtime: Runtime, rng: random.Random, errors_ratio: float, delay_s: float) -> None:
        self._runtime = runtime
        self._rng = rng
        self._delay_s = delay_s
        self.errors_ratio = errors_ratio
        self.seen: dict[int, list[dict[str, Any]]] = {}

    def __call__(self, table: pa.Table, number: int) -> None:
        self._runtime.sleep(self._rng.random() * self._delay_s)
        if self._rng.random() < self.errors_ratio:
            raise ConnectionError("the callback's target does not answer (injected)")
        rows = table.to_pylist()
        if number in self.seen:
            require_equal(rows, self.seen[number], f"number {number} came again")
            return
        require(number > max(self.seen, default=-1), f"number {number} came first after {max(self.seen, default=-1)}")
        self.seen[number] = rows

    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.seen) for row in self.seen[number]]
