"""The skew of a table: how unevenly its rows are spread over the key groups.

    in memory: a sample of the rows       in RocksDB: a walk over all rows, a piece at a time, far apart

A job cannot be scaled beyond its fullest key group, because a key group is never divided. The skew is measured again
once the number of rows has changed by a share, so that the cost does not grow with the number of batches. RocksDB keeps
rows in order of their key groups, so no part of the rows is a sample, and it does not count rows: only a walk over all
rows gives the skew.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from holdfast.state.keys import encode_keys, key_groups
from holdfast.state.survey import START
from holdfast.state.table import StateTable

SAMPLE_MAX = 16_384
"""Rows of a sample. A higher value is more exact and costs more, some 0.2 µs a row."""
PIECE_ROWS = 1024
"""Rows of RocksDB that are walked at once, some 2 ms of a batch. A higher value ends the walk sooner."""
PAUSE_RATIO = 200.0
"""Pause between two pieces, as a multiple of the time that a piece takes: with 200, the walk takes half a percent of
the time, and some seven minutes for a million rows. With a higher value, the figure is older."""
ROWS_PER_GROUP_MIN = 16
"""Least average number of rows in a key group; with fewer, the figure shows chance more than skew."""
CHANGE_SHARE = 0.1


class KeyGroupSkew:
    """Skew of a table with `groups` key groups out of `max_parallelism`. Used by the thread that owns the table."""

    def __init__(self, table: StateTable, groups: int, max_parallelism: int, monotonic: Callable[[], float]) -> None:
        self._table = table
        self._groups = groups
        self._monotonic = monotonic
        self._rows = 0
        self._counts = np.zeros(max_parallelism, np.int64)
        """Rows by key group, as far as the walk has come."""
        self._place = START
        """The position from which the walk continues; `START`: no walk is under way."""
        self._next_s = 0.0
        self.value: float | None = None
        """Rows of the fullest key group, divided by the mean of all key groups; None while there are too few rows, and
        until the first walk has ended."""

    def look(self) -> None:
        """Measure again if the number of rows has changed enough, or continue a walk."""
        if self._place != START:
            if self._monotonic() >= self._next_s:
                self._walk()
            return
        rows = len(self._table)
        if abs(rows - self._rows) <= CHANGE_SHARE * self._rows:
            return
        self._rows = rows
        if rows < ROWS_PER_GROUP_MIN * self._groups:
            self.value = None
            return
        found = self._table.survey(START, SAMPLE_MAX, None)
        self._counts = self._counted(found.keys)
        if found.keys.num_rows >= ROWS_PER_GROUP_MIN * self._groups and not found.place.key:
            self._conclude()
            return
        self._place = found.place
        if not found.place.key:  # skips the round's rows in memory: the base store has them too
            self._counts[:] = 0

    def _walk(self) -> None:
        """Count a piece of the rows in RocksDB."""
        began_s = self._monotonic()
        found = self._table.survey(self._place, PIECE_ROWS, None)
        self._counts += self._counted(found.keys)
        self._place = found.place
        ended_s = self._monotonic()
        self._next_s = ended_s + PAUSE_RATIO * (ended_s - began_s)
        if self._place == START:
            self._conclude()

    def _counted(self, keys: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        groups = key_groups(encode_keys(keys, keys.schema.names), len(self._counts))
        return np.bincount(groups, minlength=len(self._counts))

    def _conclude(self) -> None:
        total = int(self._counts.sum())
        self.value = float(self._counts.max() * self._groups / total) if total else None
