"""A table as of a batch boundary, read piece by piece while later batches run: copy-on-write.

    capture ──► wanted, by slot: the rows that were there (over a base store: those it does not have as they are)
    later touch of a wanted row, eviction, rewind, compaction ──► saved as it was, with its key; no longer wanted
    rows() ──► in order of key groups: what is still wanted from the table, the rest from what was saved

So a boundary costs 1 byte a row, and each row is copied once. The touches are the same that undo relies on
(`transaction`). The table's lock is held while a piece is copied, not while it is put into Arrow arrays. Does not own
the table's rows, nor the further use of `files`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state import kernels
from holdfast.state.changes import stored_rows
from holdfast.state.columns import placed
from holdfast.state.physical import Bools, Slots
from holdfast.state.rows import KeyedRows, OldRows, Rows

KeyGroups = npt.NDArray[np.int32]

PIECE_ROWS = 65_536


@dataclass(frozen=True)
class _Saved:
    """Saved rows; `first` is the number of the first of them."""

    first: int
    copies: KeyedRows


class Captured:
    """A captured table: `files` of its base store (None if the store is empty), and `rows()` on top of them.

    Whoever captured the table closes this object, and deletes the folder `files`.

    Attributes
    ----------
    count
        How many rows the table had.
    """

    def __init__(
        self,
        rows: Rows,
        wanted: Bools,
        files: Path | None,
        count: int,
        schema: pa.Schema,
        max_parallelism: int,
        lock: AbstractContextManager[Any],
    ) -> None:
        self.files = files
        self.count = count
        self._rows = rows
        self._wanted = wanted
        self._schema = schema
        self._max_parallelism = max_parallelism
        self._lock = lock
        self._saved: list[_Saved] = []
        self._saved_count = 0
        self._number_of = np.zeros(len(wanted), np.int32)
        """The number of each slot's saved row, from 1 on."""
        self._listed_to = 0
        self._unlisted: list[tuple[Slots, KeyGroups]] = []
        """Slots and key groups of rows that were saved before `_in_order` listed their slots."""
        self._closed = False

    @property
    def memory_bytes(self) -> int:
        return self._wanted.nbytes + self._number_of.nbytes + sum(each.copies.memory_bytes for each in self._saved)

    def touched(self, old: OldRows) -> None:
        """Save rows that are about to change or to lose their slots, as they are in `old`. Under the table's lock."""
        claimed = old.take(kernels.claim(old.slots, self._wanted))
        slots = claimed.slots
        if not len(slots):
            return
        copies = self._rows.with_keys(claimed)
        self._saved.append(_Saved(self._saved_count, copies))
        self._number_of[slots] = np.arange(self._saved_count, self._saved_count + len(slots)) + 1
        self._saved_count += len(slots)
        unlisted = slots >= self._listed_to
        self._unlisted.append((slots[unlisted], copies.groups[unlisted]))

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows in the stored schema, sorted by key group, at most `PIECE_ROWS` at once. Any thread may call it,
        once.

        The iterator ends early if `close` is called meanwhile.
        """
        slots = self._in_order()
        for start in range(0, len(slots), PIECE_ROWS):
            stop = start + PIECE_ROWS
            piece = self._piece(slots[start:stop])
            if piece is None:
                return
            yield piece

    def close(self) -> None:
        """Stop saving rows, and free the saved rows."""
        with self._lock:
            self._closed = True
            self._wanted = self._wanted[:0]
            self._number_of = self._number_of[:0]
            self._saved = []
            self._unlisted = []

    def _in_order(self) -> Slots:
        """The slots that the rows had, sorted by key group."""
        listed = []
        while self._listed_to < len(self._wanted):
            with self._lock:
                start, stop = self._listed_to, min(self._listed_to + PIECE_ROWS, len(self._wanted))
                slots = start + kernels.where(self._wanted[start:stop])
                listed.append((slots, self._rows.index.key_groups(slots, self._max_parallelism)))
                self._listed_to = stop
        with self._lock:
            listed += self._unlisted
            self._unlisted = []
        all_slots = np.concatenate([np.empty(0, np.int32), *(each[0] for each in listed)])
        all_groups = np.concatenate([np.empty(0, np.int32), *(each[1] for each in listed)])
        targets, _ = kernels.targets_by_group(all_groups, self._max_parallelism)
        return placed(all_slots, targets)

    def _piece(self, slots: Slots) -> pa.RecordBatch | None:
        with self._lock:
            if self._closed:
                return None
            still = kernels.claim(slots, self._wanted)
            now = self._rows.with_keys(self._rows.copy(slots[still]))
            saved = list(self._saved)
            numbers = kernels.gather(self._number_of, slots) - 1
        places, parts = [still], [self._batch(now)]
        gone = np.setdiff1d(np.arange(len(slots), dtype=np.int32), still, assume_unique=True)
        gone = gone[np.argsort(numbers[gone])]
        for each in saved if len(gone) else []:
            start, stop = np.searchsorted(numbers[gone], [each.first, each.first + len(each.copies)])
            if start < stop:
                places.append(gone[start:stop])
                parts.append(self._batch(each.copies.take(numbers[gone[start:stop]] - each.first)))
        if len(parts) == 1:
            return parts[0]
        order = np.empty(len(slots), np.int64)
        order[np.concatenate(places)] = np.arange(len(slots))
        return pa.concat_batches(parts).take(pa.array(order))

    def _batch(self, copies: KeyedRows) -> pa.RecordBatch:
        return stored_rows(self._schema, self._rows, copies)
