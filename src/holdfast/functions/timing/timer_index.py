"""Timers in order of time: the memory that is needed to find due timers. Rows are in the timers' table.

    add ──► runs, each sorted by time, merged as they get more ──► due(until): the begins of runs ──► drop(until)

An entry is a time and the key, in Arrow columns: 8 bytes and the key's own. Deleted timers stay in it until their time
comes, so a due entry is a proposal: the caller looks whether the table has it.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TIME_KEY = "__timer_time"

RUNS_MAX = 8


class TimerRuns:
    """The timers of a single kind. `schema` has the key columns, followed by `TIME_KEY`."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._runs: list[pa.RecordBatch] = []

    def __len__(self) -> int:
        return sum(run.num_rows for run in self._runs)

    @property
    def memory_bytes(self) -> int:
        return sum(run.nbytes for run in self._runs)

    def add(self, timers: pa.RecordBatch) -> None:
        """Add timers, as rows of `schema`, in any order."""
        if not timers.num_rows:
            return
        self._runs.append(_in_order(timers))
        while len(self._runs) > 1 and (
            len(self._runs) > RUNS_MAX or self._runs[-2].num_rows <= 2 * self._runs[-1].num_rows
        ):
            newest = self._runs.pop()
            self._runs.append(_in_order(pa.concat_batches([self._runs.pop(), newest])))

    def due(self, until_us: int) -> pa.RecordBatch:
        """All up to that time, in order of time, then key."""
        parts = [run.slice(0, _count_until(run, until_us)) for run in self._runs]
        found = _concatenated(parts, self.schema)
        names = [TIME_KEY, *(name for name in self.schema.names if name != TIME_KEY)]
        return found.sort_by([(name, "ascending") for name in names])

    def drop(self, until_us: int) -> None:
        """Forget all up to that time."""
        left = [run.slice(_count_until(run, until_us)) for run in self._runs]
        self._runs = [
            # A slice holds the memory of the whole.
            run if run.num_rows * 2 > before.num_rows else run.take(pa.array(np.arange(run.num_rows)))
            for before, run in zip(self._runs, left, strict=True)
            if run.num_rows
        ]

    def earliest(self, after_us: int | None) -> int | None:
        """The first time after that; it may be of a timer that was deleted."""
        first = [0 if after_us is None else _count_until(run, after_us) for run in self._runs]
        times = [_times(run)[start] for run, start in zip(self._runs, first, strict=True) if start < run.num_rows]
        return int(min(times)) if times else None


def _times(run: pa.RecordBatch) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    times: np.ndarray[tuple[int], np.dtype[np.int64]] = run.column(TIME_KEY).to_numpy()
    return times


def _count_until(run: pa.RecordBatch, until_us: int) -> int:
    return int(np.searchsorted(_times(run), until_us, side="right"))


def _in_order(timers: pa.RecordBatch) -> pa.RecordBatch:
    return timers.take(pc.sort_indices(timers.column(TIME_KEY)))


def _concatenated(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], schema)
