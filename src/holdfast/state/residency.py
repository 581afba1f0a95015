"""The rows of a table with a base store that stay in memory, and how they come and go.

    look-up of a key that is not in memory ──► base.read ──► cached, clean
    commit: changed rows dirty, deleted ones deleted in the base ──► past the limit: the oldest leave,
                                                                     dirty ones through base.write

Invariants: at a batch boundary at most `entries_max` rows are in memory. A clean row in memory is equal to its record
in the base. A dirty row reaches the base only when it leaves. Does not own undo.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from holdfast.state import kernels
from holdfast.state.growing import enlarge
from holdfast.state.key_index import StoredKeys
from holdfast.state.lru import Recency
from holdfast.state.physical import Bools, Slots
from holdfast.state.row_codec import RowCodec
from holdfast.state.rows import OldRows, Rows

PIECE_BYTES = 256 * 1024
PIECE_ROWS_MIN, PIECE_ROWS_MAX = 256, 8192
"""Bytes, and bounds of the rows, that are read and written at a time. Each step then finds them in the processor's
cache: their records, and about 100 bytes that Python needs for each. Higher values take fewer steps, out of the
cache."""


class HitRatio:
    """The gauge `stateCacheHitRatio`: of the distinct rows that a batch looked up, the share that was in memory.

    It is averaged over each second, as in FLIP-325: the value is that of the last full second with any look-up. Several
    look-ups of a row in a batch count once, so that reuse inside a batch, which is free everywhere, does not show. A
    single thread counts, any thread reads.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.hits = 0
        self.accesses = 0
        self._now_s = now_s
        self._second = int(now_s())
        self._in_second = (0, 0)
        self._full_second = (0, 0)
        """Hits and look-ups of the last full second with any look-up."""

    @property
    def so_far(self) -> tuple[int, int]:
        """All hits and look-ups."""
        return self.hits, self.accesses

    def count(self, hits: int, accesses: int) -> None:
        second = int(self._now_s())
        if second != self._second:
            self._full_second = self.recent
            self._second, self._in_second = second, (0, 0)
        self._in_second = self._in_second[0] + hits, self._in_second[1] + accesses
        self.hits += hits
        self.accesses += accesses

    @property
    def recent(self) -> tuple[int, int]:
        """Hits and look-ups of the last full second; within the first second, those so far; zeros before any."""
        is_over = int(self._now_s()) != self._second
        return self._in_second if self._in_second[1] and (is_over or not self._full_second[1]) else self._full_second


class BaseStore(Protocol):
    """Records by key, both bytes. Used by a single thread, except `memory_bytes`."""

    is_empty: bool
    """True as long as nothing was written to the store."""

    @property
    def memory_bytes(self) -> int: ...

    @property
    def settled(self) -> bool:
        """Tell that a table's files are, for now, about as small as their content. Any thread may call it."""
        ...

    def read(self, keys: list[bytes]) -> list[bytes | None]:
        """The record of each key; `keys` are sorted."""
        ...

    def write(self, keys: list[bytes], records: list[bytes], deleted: list[bytes]) -> None:
        """Put the records, sorted by key, and delete other keys."""
        ...

    def scan(self, start: bytes = b"", rows_max: int = ...) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Keys from `start` on and their records, in order of the keys, `rows_max` at a time."""
        ...

    def flush(self) -> None:
        """Write out the records in memory, so that `checkpoint` takes little time. By any thread."""
        ...

    def flush_ahead(self) -> None:
        """Write out the records in memory now, after a checkpoint, if they would be written before the next checkpoint.

        So the writing does not coincide with that checkpoint. Returns at once. Any thread may call it, also after
        `close`.
        """
        ...

    def checkpoint(self) -> Path:
        """Return a folder with files of its current state; the caller deletes the folder."""
        ...

    def adopt(self, folder: Path) -> None:
        """Start from the state in these files, in place of an empty store; the files are moved."""
        ...

    def close(self) -> None:
        """Free the memory, and delete the files on disk."""
        ...


class Residency:
    """The rows in memory above a base store. `dirty` marks, by slot, rows changed since the base store last got them.

    `slots_go` is called with slots before these lose their keys.
    """

    def __init__(
        self, rows: Rows, base: BaseStore, entries_max: int, max_parallelism: int, slots_go: Callable[[Slots], None]
    ) -> None:
        self.base = base
        self.entries_max = entries_max
        self.hit_ratio = HitRatio()
        self.codec = RowCodec(rows.columns)
        self._rows = rows
        self._max_parallelism = max_parallelism
        self._slots_go = slots_go
        self._recency = Recency(rows.capacity) if entries_max else None
        self.dirty: Bools = np.zeros(rows.capacity, np.bool_)
        self._sorted: tuple[Slots, Slots, StoredKeys] | None = None
        """Slots of the batch in flight, and their stored keys."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the order and the flags, and of the base itself."""
        order = 0 if self._recency is None else self._recency.memory_bytes
        return self.dirty.nbytes + order + self.base.memory_bytes

    def looked_up(self, slots: Slots, fresh: Slots, *, read: bool = True) -> OldRows:
        """Note a look-up of `slots`; return the rows of `fresh`, the slots that the batch looked up for the first time.

        With `read`, rows that are not in memory are first read from the base store.
        """
        if len(self.dirty) < self._rows.capacity:
            self._grow()
        if self._recency is not None:
            self._recency.touch(slots, distinct=len(slots) == len(fresh))
        missing = self._rows.absent(fresh)
        self.hit_ratio.count(len(fresh) - len(missing), len(fresh))
        if len(missing) and read and not self.base.is_empty:
            self._read(missing)
        return self._rows.copy(fresh)

    def committed(self, old: OldRows, present: Bools, changed: Bools | None) -> OldRows:
        """Note a committed batch: `old` has the touched rows as they were, and `present` marks those that are there
        now.

        Returns the old rows that the batch changed; `changed` marks them if they are known already. Changed rows are
        dirty from now on, and deleted rows are deleted in the base store. A row that was dirty before counts as
        changed.
        """
        dirty = kernels.gather(self.dirty, old.slots)
        if not dirty.all():
            dirty |= self._rows.changed(old) if changed is None else changed
            kernels.fill(self.dirty, old.slots[dirty & present], True)
            old, present = (old, present) if dirty.all() else (old.only(dirty), present[dirty])
        if not present.all():
            gone = ~present
            kernels.fill(self.dirty, old.slots[gone], False)
            self._delete(old.slots[gone & old.present])
        return old

    def put_anew(self, slots: Slots) -> None:
        """Note rows that were written outside a batch; rows that are not present may be in the base all the same."""
        if len(self.dirty) < self._rows.capacity:
            self._grow()
        absent = self._rows.absent(slots)
        kernels.fill(self.dirty, slots, True)
        self._delete(absent)
        if self._recency is not None:
            self._recency.touch(slots)

    def removed(self, slots: Slots) -> None:
        """Prepare for rows that are taken out of memory."""
        kernels.fill(self.dirty, slots, False)
        if self._recency is not None:
            self._recency.remove(slots)

    def enforce(self) -> None:
        """Evict the oldest rows until the limit holds. Called at a batch boundary, where all rows in memory are
        present."""
        surplus = len(self._rows) - self.entries_max
        if surplus > 0:
            leaving = self._rows.live() if self._recency is None else self._recency.pop_oldest(surplus)
            self._slots_go(leaving)
            dirty = kernels.gather(self.dirty, leaving)
            self._write(leaving if dirty.all() else leaving[dirty])
            kernels.fill(self.dirty, leaving, False)
            self._rows.remove(leaving)
        self._sorted = None

    def renumber(self, live: Slots) -> None:
        """Follow rows that moved: the i-th of `live`, which are all rows, is at slot i now."""
        dirty = kernels.gather(self.dirty, live)
        self.dirty = np.zeros(self._rows.capacity, np.bool_)
        self.dirty[: len(live)] = dirty
        if self._recency is not None:
            self._recency.renumber(live, self._rows.capacity)

    def _grow(self) -> None:
        enlarge(self, "dirty", self._rows.capacity)
        if self._recency is not None:
            self._recency.grow(self._rows.capacity)

    def _read(self, slots: Slots) -> None:
        order, keys = self._stored_keys(slots)
        slots = kernels.gather(slots, order)
        for piece in self._pieces(len(slots)):
            self._load(slots[piece], self.base.read(keys[piece]))

    def _load(self, slots: Slots, read: list[bytes | None]) -> None:
        records = cast(list[bytes], read)
        if not all(read):  # a record is never empty
            records = [record for record in read if record is not None]
            slots = slots[np.fromiter((record is not None for record in read), np.bool_, len(read))]
        for column, (values, valid) in zip(
            self._rows.columns, self.codec.decode(records, self._rows.arena), strict=True
        ):
            column.scatter(slots, values, valid)
        kernels.fill(self._rows.present, slots, True)

    def _stored_keys(self, slots: Slots) -> tuple[Slots, StoredKeys]:
        """Return the stored keys of `slots`, kept until the batch ends: without a cache, a batch often writes the rows
        it read."""
        if self._sorted is not None and np.array_equal(self._sorted[0], slots):
            return self._sorted[1:]
        order, keys = self._rows.index.stored_keys(slots, self._max_parallelism)
        if self._recency is None:
            self._sorted = slots, order, keys
        return order, keys

    def _delete(self, slots: Slots) -> None:
        """Delete rows in the base; rows that it does not have may be among them."""
        if len(slots) and not self.base.is_empty:
            _, keys = self._rows.index.stored_keys(slots, self._max_parallelism)
            self.base.write([], [], keys[:])

    def _write(self, slots: Slots) -> None:
        if not len(slots):
            return
        order, keys = self._stored_keys(slots)
        slots = kernels.gather(slots, order)
        for piece in self._pieces(len(slots)):
            some = slots[piece]
            records = self.codec.encode(len(some), [column.gather(some) for column in self._rows.columns])
            self.base.write(keys[piece], records, [])

    def _pieces(self, count: int) -> Iterator[slice]:
        fit = int(PIECE_BYTES / (self.codec.head_bytes + self._rows.object_bytes))
        rows = min(max(fit, PIECE_ROWS_MIN), PIECE_ROWS_MAX)
        return (slice(start, start + rows) for start in range(0, count, rows))
