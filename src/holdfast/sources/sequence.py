"""A source that counts: `start`, `start + 1`, … up to `stop`, or without an end.

Split i of n holds every n-th value from `start + i`, so that `stop` may change between two starts of a job without
moving a value to another split. A position is an index within its split. Each value depends on split and position
alone, so only positions are stored.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import chain, repeat
from operator import add, sub

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.clock import Clock
from holdfast.errors import JobRefused, SettingsError
from holdfast.sources.base import Enumerator, EnumeratorContext, Offsets, Source, SourceBatch, SourcePlan, SplitRead

CHUNK_ROWS_MAX = 1 << 18
"""Rows of an Arrow batch. This many values (2 MB) stay in the processor's cache and fit into a message."""
VALUE_MAX = 2**63 - 1
ROW_BYTES = 8
SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False)])


@dataclass(frozen=True)
class SequenceSource(Source):
    """The integers of a range, in a column `value` (int64).

    Parameters
    ----------
    rows
        The number of values; None for no end. Not together with `stop`.
    start, stop
        The first value, and the value after the last; `stop=None` (and no `rows`) for no end.
    splits
        The number of splits that share the range, and so of tasks that can read at once.
    rows_per_second
        The number of rows that appear each second, over all splits; None for all at once.
    name
        Identifies the source's positions when the job is started again.
    starting
        The positions per split (`{"0": 10}`) to start from if there is no checkpoint; 0 for a split that is not named.

    Raises
    ------
    SettingsError
        A parameter is out of its range; the error names it.
    """

    rows: int | None = None
    _: KW_ONLY
    start: int = 0
    stop: int | None = None
    splits: int = 1
    rows_per_second: float | None = None
    name: str | None = None
    starting: Mapping[str, int] | None = None

    kind = "sequence"
    _schema = SCHEMA
    splits_stand_alone = True

    def __post_init__(self) -> None:
        if self.rows is not None and self.stop is not None:
            raise SettingsError("SequenceSource: give rows or stop, not both")
        if self.rows is not None and self.rows < 0:
            raise SettingsError(f"SequenceSource: rows={self.rows}: expected at least 0")
        if self.splits < 1:
            raise SettingsError(f"SequenceSource: splits={self.splits}: expected at least 1")
        if self.rows_per_second is not None and not self.rows_per_second > 0:
            raise SettingsError(f"SequenceSource: rows_per_second={self.rows_per_second}: expected more than 0")
        if not (-VALUE_MAX <= self.start <= self.end <= VALUE_MAX):
            raise SettingsError(
                f"SequenceSource: start={self.start}, stop={self.end}: expected start <= stop, both within 64 bits"
            )
        for split, position in (self.starting or {}).items():
            if split not in self.split_names or not 0 <= position <= self.length(int(split)):
                raise SettingsError(
                    f"SequenceSource: starting {split!r}: {position!r}: expected a split of {self.split_names[0]} to "
                    f"{self.split_names[-1]} and a position in it"
                )

    @property
    def end(self) -> int:
        """The value after the last value; the highest int64 if there is no end."""
        if self.rows is not None:
            return self.start + self.rows
        return VALUE_MAX if self.stop is None else self.stop

    @property
    def endless(self) -> bool:
        return self.rows is None and self.stop is None and self.rows_per_second is None

    @property
    def split_names(self) -> list[str]:
        return [str(index) for index in range(self.splits)]

    def length(self, split: int, total: int | None = None) -> int:
        """Return the number of the first `total` values (all by default) that are in a split."""
        total = self.end - self.start if total is None else total
        return max(0, -(-(total - split) // self.splits))

    def schema(self) -> pa.Schema:
        return SCHEMA

    def enumerator(self, context: EnumeratorContext) -> Enumerator:
        return SequenceEnumerator(self, context.source, context.clock)

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        position, stop = int(read.start or 0), int(read.stop or 0)
        while position < stop:
            rows = min(stop - position, CHUNK_ROWS_MAX)
            first = self.start + int(read.split) + position * self.splits
            values = np.arange(first, first + (rows - 1) * self.splits + 1, self.splits, dtype=np.int64)
            yield SourceBatch(pa.RecordBatch.from_arrays([pa.array(values)], schema=SCHEMA), position)
            position += rows


class SequenceEnumerator(Enumerator):
    """Plans ranges of each split. With `rows_per_second`, the clock decides how far `latest` goes."""

    def __init__(self, source: SequenceSource, name: str, clock: Clock) -> None:
        self._source = source
        self._name = name
        self._clock = clock
        self._splits = source.split_names
        self._base_rows = 0
        self._started_s = clock.monotonic()
        self._looked_at: int | None = None
        """The total for which `_latest` was computed."""
        self._latest = self.initial()
        self._base_rows = sum(_indexes(self._latest).values())

    def initial(self) -> Offsets:
        starting = self._source.starting or {}
        return {split: starting.get(split, 0) for split in self._source.split_names}

    def latest(self) -> Offsets:
        source = self._source
        total = source.end - source.start
        if source.rows_per_second is not None:
            elapsed_s = self._clock.monotonic() - self._started_s
            total = min(total, self._base_rows + int(elapsed_s * source.rows_per_second))
        if total != self._looked_at:
            self._looked_at = total
            before = _indexes(self._latest)
            each, more = divmod(total, source.splits)
            ends = chain(repeat(each + 1, more), repeat(each))
            self._latest = dict(zip(self._splits, map(max, _at(before, self._splits), ends), strict=False))
        return self._latest

    def plan(self, start: Offsets, until: Offsets, rows_max: int, bytes_max: int) -> SourcePlan:
        budget = max(1, min(rows_max, bytes_max // ROW_BYTES))
        begin = _indexes(start)
        rows = map(sub, _at(_indexes(until), self._splits), _at(begin, self._splits))
        left = {split: each for split, each in zip(self._splits, rows, strict=True) if each > 0}
        shares = {split: each for split, each in divide_evenly(left, budget).items() if each}
        if not shares:
            return SourcePlan(start, [])
        starts = _at(begin, shares)
        stops = list(map(add, starts, shares.values()))
        reads = list(map(SplitRead, shares, starts, stops, shares.values()))
        return SourcePlan(start | dict(zip(shares, stops, strict=True)), reads)

    def open_splits(self, offsets: Offsets) -> Collection[str]:
        source = self._source
        at = _indexes(offsets)
        shortest = source.length(source.splits - 1)
        if max(at.values(), default=0) < shortest:
            return self._splits
        return [
            split
            for split in self._splits
            if (position := at.get(split, 0)) < shortest or position < source.length(int(split))
        ]

    def restore(self, offsets: Offsets, objects: list[str]) -> None:
        if sorted(offsets) != sorted(self._source.split_names):
            raise JobRefused(
                f"source {self._name!r}: the checkpoint holds positions of the splits {sorted(offsets)}, the source "
                f"has {self._source.split_names}: keep splits={len(offsets)}, or give the source a new name"
            )
        found = _indexes(offsets)
        self._latest = {split: found[split] for split in self._splits}
        self._looked_at = None
        self._base_rows = sum(found.values())
        self._started_s = self._clock.monotonic()

    def lag(self, offsets: Offsets) -> Mapping[str, int]:
        latest = _indexes(self._latest)
        rows = list(map(sub, latest.values(), _at(_indexes(offsets), latest)))
        return dict(zip(latest, rows if min(rows) >= 0 else (max(0, each) for each in rows), strict=True))


def divide_evenly(left: Mapping[str, int], budget: int) -> dict[str, int]:
    """Share a budget among splits with these remaining lengths: short splits get all that they have left, the others
    equal shares (±1)."""
    if sum(left.values()) <= budget:
        return dict(left)
    shares = dict.fromkeys(left, 0)
    waiting = len(left)
    for split in sorted(left, key=left.__getitem__):
        share, length = budget // waiting, left[split]
        shares[split] = share = length if length < share else share
        budget -= share
        waiting -= 1
    return shares


def _at(positions: Mapping[str, int], splits: Collection[str]) -> list[int]:
    """The positions of splits, in their order; 0 for a split that has none."""
    return list(map(positions.get, splits, repeat(0)))


def _indexes(offsets: Offsets) -> dict[str, int]:
    return msgspec.convert(offsets, dict[str, int])
