"""Keys of a table in order of a time, so that a search need not read the complete table. Never stored.

    add ──► buckets of equal width in time, each of a few pieces ──► between(start, stop) ──► drop(stop)

An entry is a key of the table in Arrow columns; the time is a column of the key or an additional column. An entry may
be out of date, so a found entry is only a candidate: the caller looks it up in the table.

`FollowedIndex` follows its table over batches. The entries that a batch added or dropped are brought into the buckets
when the next batch begins and finds that batch committed. After a restore or a rewind the buckets are made anew from
the table.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.timing.packed_entries import PackedEntries, pack
from holdfast.state.physical import Integers, values_of
from holdfast.state.survey import START
from holdfast.state.table import StateTable

ENTRIES_PER_BUCKET_MIN, ENTRIES_PER_BUCKET_MAX = 16, 65_536
"""Average numbers of entries in a bucket below which buckets become wider, and above which they become narrower. Each
bucket has a fixed cost; a wide bucket has more entries that are compared in vain at its edges."""
BUCKETS_FREE = 64
"""Number of buckets up to which buckets are not made wider, however few entries they have."""
REBUILD_ROWS = 65_536
"""Rows of the table that are looked at together when the buckets are made anew."""


class TimeBuckets:
    """Entries of `schema`, whose int64 column `time` holds microseconds; `width_us`: the least width of a bucket.

    Where entries are far from each other, buckets are wider by a power of two.
    """

    def __init__(self, schema: pa.Schema, time: str, width_us: int) -> None:
        self.schema = schema
        self._time = time
        self._width_us = self._width_us_min = max(1, width_us)
        self._count = self._bytes = 0
        self._buckets: dict[int, list[PackedEntries]] = {}
        self._order: list[int] = []

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        return self._bytes

    def add(self, entries: pa.RecordBatch) -> None:
        """Take in entries, in any order of time."""
        if not entries.num_rows:
            return
        count = self._count + entries.num_rows
        numbers = self.times(entries) // self._width_us
        first, last = int(numbers.min()), int(numbers.max())
        if first == last and count <= ENTRIES_PER_BUCKET_MAX * max(1, len(self._order)):
            self._add_to(first, entries)
            return
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        starts = np.flatnonzero(np.diff(numbers, prepend=first - 1))
        if self._has_other_width(len(self._order) + len(starts), count):
            self._put_anew(entries)
            return
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
            self._add_to(int(numbers[start]), entries.take(pa.array(order[start:stop])))

    def _has_other_width(self, buckets: int, count: int) -> bool:
        """Change the width if `buckets` is far too high or far too low for `count` entries."""
        before = self._width_us
        while buckets > max(BUCKETS_FREE, count // ENTRIES_PER_BUCKET_MIN):
            self._width_us *= 4
            buckets //= 4
        while self._width_us > self._width_us_min and count > buckets * ENTRIES_PER_BUCKET_MAX:
            self._width_us = max(self._width_us_min, self._width_us // 4)
            buckets *= 4
        return self._width_us != before

    def _put_anew(self, entries: pa.RecordBatch) -> None:
        """Put all entries, and `entries` too, into new buckets of the current width."""
        pieces = [piece.to_batch() for number in self._order for piece in self._buckets[number]]
        self._buckets, self._order, self._count, self._bytes = {}, [], 0, 0
        self.add(pa.concat_batches([*pieces, entries]))

    def between(self, start_us: int | None, stop_us: int) -> list[pa.RecordBatch]:
        """Entries with `start_us <= time < stop_us`, bucket by bucket; None: from the first entry on."""
        found = []
        for number in self._order:
            if number * self._width_us >= stop_us:
                break
            if start_us is None or (number + 1) * self._width_us > start_us:
                found += [piece.between(start_us, stop_us) for piece in self._buckets[number]]
        return [piece.to_batch() for piece in found if piece.num_rows]

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """All entries, a piece at a time, in no order."""
        for number in self._order:
            yield from (piece.to_batch() for piece in self._buckets[number])

    def drop(self, stop_us: int) -> None:
        """Forget entries with a time below that."""
        kept = bisect_left(self._order, stop_us // self._width_us)
        for number in self._order[:kept]:
            self._note(-1, self._buckets.pop(number))
        self._order = self._order[kept:]
        if self._order and self._order[0] * self._width_us < stop_us:
            number = self._order[0]
            before = self._buckets[number]
            left = [piece.between(stop_us, None) for piece in before]
            self._note(-1, before)
            self._note(1, left)
            self._buckets[number] = [piece for piece in left if piece.num_rows]
            if not self._buckets[number]:
                del self._buckets[self._order.pop(0)]

    def earliest(self, from_us: int | None = None) -> int | None:
        """The first time that is not below `from_us`."""
        for number in self._order:
            if from_us is None or (number + 1) * self._width_us > from_us:
                found = [piece.earliest(from_us) for piece in self._buckets[number]]
                if times := [time for time in found if time is not None]:
                    return min(times)
        return None

    def times(self, entries: pa.RecordBatch) -> Integers:
        """Return the times of these entries."""
        times: Integers = values_of(entries.column(self._time))
        return times

    def _add_to(self, number: int, entries: pa.RecordBatch) -> None:
        pieces = self._buckets.get(number)
        if pieces is None:
            pieces = self._buckets[number] = []
            insort(self._order, number)
        while pieces and pieces[-1].num_rows <= 2 * entries.num_rows:
            merged = pieces.pop()
            self._note(-1, [merged])
            entries = pa.concat_batches([merged.to_batch(), entries])
        pieces.append(pack(entries, self._time))
        self._note(1, pieces[-1:])

    def _note(self, sign: int, pieces: Sequence[PackedEntries]) -> None:
        """Count pieces that came (1) or went (-1)."""
        self._count += sign * sum(piece.num_rows for piece in pieces)
        self._bytes += sign * sum(piece.nbytes for piece in pieces)


def _within(buckets: TimeBuckets, entries: pa.RecordBatch, start_us: int | None, stop_us: int | None) -> pa.RecordBatch:
    times = buckets.times(entries)
    wanted = np.ones(len(times), np.bool_)
    if start_us is not None:
        wanted &= times >= start_us
    if stop_us is not None:
        wanted &= times < stop_us
    return entries if wanted.all() else entries.filter(pa.array(wanted))


@dataclass
class _Batch:
    """Changes of the batch in flight, which the buckets do not have yet. `commits`: the table's commit count when the
    batch began."""

    commits: int | None
    added: list[pa.RecordBatch] = field(default_factory=list)
    dropped_us: int | None = None


Entries = Callable[[StateTable], Iterator[pa.RecordBatch]]
"""Function that yields all entries of a table, as it is between batches."""


def keys_of_table(table: StateTable) -> Iterator[pa.RecordBatch]:
    """Yield the keys of all rows, without the changes of a batch in flight."""
    place = START
    while len(table):
        found = table.survey(place, REBUILD_ROWS, None)
        yield found.keys
        place = found.place
        if place == START:
            return


ColumnValues = Callable[[str], Any]
"""The values of a value column of some rows, by its name."""


def keys_with_times(
    table: StateTable, name: str, times_of: Callable[[pa.RecordBatch, ColumnValues], Integers]
) -> Iterator[pa.RecordBatch]:
    """Yield the keys of all rows, without the changes of a batch in flight, with a column `name` of times. `times_of`
    computes the times of some rows from their keys and value columns."""
    place = START
    while len(table):
        noted: list[Any] = []

        def note(cells: Any, noted: list[Any] = noted) -> np.ndarray[Any, np.dtype[np.bool_]]:
            noted.append(cells)
            return np.ones(len(next(iter(cells.values()))[0]), np.bool_)

        found = table.survey(place, REBUILD_ROWS, note if len(table.value_schema) else None)
        if found.keys.num_rows:
            (cells,) = noted or [{}]
            times = times_of(found.keys, lambda column, cells=cells: cells[column][0])  # type: ignore[misc]
            yield found.keys.append_column(pa.field(name, pa.int64()), pa.array(times, pa.int64()))
        place = found.place
        if place == START:
            return


class FollowedIndex:
    """`TimeBuckets` over the keys of a table. Call `begin` when a batch begins, before anything else.

    `outdated_least`: for tables whose rows are deleted long before their time. The buckets are made anew once the
    entries without a row reach this number and also outnumber the rows. None: such entries stay until their time comes.
    """

    def __init__(
        self,
        table: StateTable,
        new_buckets: Callable[[], TimeBuckets],
        entries: Entries = keys_of_table,
        outdated_least: int | None = None,
    ) -> None:
        self._table = table
        self._new_buckets = new_buckets
        self._entries = entries
        self._outdated_least = outdated_least
        self._buckets = new_buckets()
        self._batch: _Batch | None = None

    @property
    def memory_bytes(self) -> int:
        return self._buckets.memory_bytes

    def __len__(self) -> int:
        """Entries of committed batches."""
        return len(self._buckets)

    def begin(self) -> None:
        """Bring the buckets to where the table is."""
        before, commits = self._batch, self._table.commits
        if before is None or commits is None or commits not in (before.commits, (before.commits or 0) + 1):
            self._make_anew()
        elif commits != before.commits:
            self._apply(before)
        self._batch = _Batch(commits)

    def add(self, entries: pa.RecordBatch) -> None:
        """Add entries of the batch in flight."""
        if entries.num_rows:
            self._in_batch.added.append(entries)

    def drop(self, stop_us: int) -> None:
        """Note that the batch in flight removes entries with a time below that."""
        self._in_batch.dropped_us = stop_us

    def between(self, start_us: int | None, stop_us: int) -> list[pa.RecordBatch]:
        """Entries with `start_us <= time < stop_us`: first those of committed batches, then those of the batch in
        flight."""
        found = self._buckets.between(start_us, stop_us)
        added = [_within(self._buckets, entries, start_us, stop_us) for entries in self._in_batch.added]
        return [*found, *(entries for entries in added if entries.num_rows)]

    def pieces(self) -> Iterator[pa.RecordBatch]:
        """All entries, a piece at a time, in no order."""
        yield from self._buckets.pieces()
        yield from self._in_batch.added

    def earliest(self) -> int | None:
        """The earliest time that is left after the batch in flight. Its entry may be out of date."""
        batch = self._in_batch
        parts = [_within(self._buckets, entries, batch.dropped_us, None) for entries in batch.added]
        times = [int(self._buckets.times(part).min()) for part in parts if part.num_rows]
        first_us = self._buckets.earliest(batch.dropped_us)
        return min([*times, *([] if first_us is None else [first_us])], default=None)

    @property
    def _in_batch(self) -> _Batch:
        assert self._batch is not None, "begun"
        return self._batch

    def _apply(self, batch: _Batch) -> None:
        if batch.dropped_us is not None:  # first: pieces that go are not joined with those that come
            self._buckets.drop(batch.dropped_us)
        for entries in batch.added:
            self._buckets.add(_within(self._buckets, entries, batch.dropped_us, None))
        rows, least = len(self._table), self._outdated_least
        if least is not None and len(self._buckets) - rows > max(least, rows):
            self._make_anew()

    def _make_anew(self) -> None:
        self._buckets = self._new_buckets()
        for entries in self._entries(self._table):
            self._buckets.add(entries)
