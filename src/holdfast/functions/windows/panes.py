"""Rules that operators of panes share: which rows are late, which panes are due, which windows they are in."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.functions.operator import Operator
from holdfast.functions.rows.columns import BoolArray, concatenated
from holdfast.functions.rows.kernels import mark_first
from holdfast.functions.rows.late import LateRows
from holdfast.functions.timing.time_index import FollowedIndex, TimeBuckets
from holdfast.functions.windows import kernels
from holdfast.functions.windows.declared import PANE, WINDOW_END, WINDOW_START, Window, times_array
from holdfast.functions.windows.sending import late_panes
from holdfast.functions.windows.windowed import WindowedSpec
from holdfast.state.physical import Integers, Slots, values_of
from holdfast.state.table import StateTable

LONG_AGO_US = -(1 << 62)


def windows_of(
    window: Window, panes: Integers, after_us: int | None, until_us: int = -LONG_AGO_US
) -> tuple[Integers, Integers]:
    """Return the windows of panes that end after `after_us` and not after `until_us`: the index of the pane, and the
    start of the window."""
    if window.tumbles:
        return np.arange(len(panes)), panes
    after_us = LONG_AGO_US if after_us is None else after_us
    shape = (window.pane_us, window.size_us, window.slide_us, window.start_us)
    counts = np.empty(len(panes), np.int64)
    kernels.count_windows(panes, *shape, after_us, until_us, counts)
    rows, starts = np.empty((2, int(counts.sum())), np.int64)
    kernels.windows_of(panes, *shape, after_us, counts, rows, starts)
    return rows, starts


class TimePiece(NamedTuple):
    """Some panes, by their indexes, with the windows that end later than `after_us` and no later than `until_us`."""

    panes: Integers
    after_us: int
    until_us: int


def in_time_pieces(
    window: Window, panes: Integers, after_us: int | None, until_us: int, pairs_max: int
) -> Iterator[TimePiece]:
    """Divide the time in which windows end, so that no piece has more than `pairs_max` pairs of a pane and a window.

    Each window is in a single piece, with all of its panes, in order of time. A piece that spans a single slide has one
    pair for each pane.
    """
    if not len(panes):
        return
    first_us = int(panes.min()) if after_us is None else max(after_us, int(panes.min()))
    last_us = min(until_us, int(panes.max()) + window.size_us)
    left = [TimePiece(np.arange(len(panes)), first_us, last_us)]
    while left:
        piece = left.pop()
        own = panes[piece.panes]
        earliest_us = own + (window.size_us if window.tumbles else 1)  # at which a window with this pane may end
        meant = piece.panes[(own + window.size_us > piece.after_us) & (earliest_us <= piece.until_us)]
        piece = piece._replace(panes=meant)
        span_us = piece.until_us - piece.after_us
        if span_us > window.slide_us and len(meant) * window.size_us > pairs_max * window.slide_us:
            middle_us = piece.after_us + span_us // 2
            left += [piece._replace(after_us=middle_us), piece._replace(until_us=middle_us)]
        elif len(meant):
            yield piece


class PaneOperator(Operator):
    """Keeps `table`, whose last key column is a pane, and an index of its keys in order of time."""

    def __init__(self, spec: WindowedSpec, table: StateTable) -> None:
        window = spec.window
        assert isinstance(window, Window), "windows of a fixed size have panes"
        self._windowed = spec
        self._window = window
        self._table = table
        self._keys = table.key_schema
        self._late = LateRows(spec.name, spec.windowing.late)
        self._index = FollowedIndex(table, lambda: TimeBuckets(self._keys, PANE, window.pane_us))

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes

    def _ends(self, watermark_us: int | None) -> int | None:
        """The time by which windows must end to be closed at that watermark."""
        return None if watermark_us is None else watermark_us - self._windowed.lateness_us

    def _late_rows(self, rows: pa.RecordBatch, closed_us: int | None) -> BoolArray | None:
        return late_panes(self._window, values_of(rows.column(PANE)), closed_us, self._windowed.lateness_us)

    def _next_us(self, until_us: int | None) -> int | None:
        """Return the next watermark at which there is work."""
        pane = self._index.earliest()
        if pane is None:
            return None
        if self._windowed.windowing.emit == "changes":
            last_us = int(self._window.last_starts(np.array([pane]))[0])
            return last_us + self._window.size_us + self._windowed.lateness_us
        return self._window.next_end(pane, until_us) + self._windowed.lateness_us

    def _slots_before(self, stop_us: int) -> Slots:
        """The panes that begin before a time, each once: after a restore the index may have a key twice."""
        slots = self._table.lookup(concatenated(self._index.between(None, stop_us), self._keys))
        first = np.empty(len(slots), np.bool_)
        mark_first(slots, np.zeros(len(self._table.present), np.bool_), first)
        chosen: Slots = slots[first & self._table.present[slots]]
        return chosen

    def _panes_at(self, slots: Slots) -> Integers:
        panes: Integers = values_of(self._table.keys_of(slots).column(PANE))
        return panes

    def _windows_of(self, panes: Integers, after_us: int | None, until_us: int) -> tuple[Integers, Integers]:
        """The windows, as from `windows_of`."""
        return windows_of(self._window, panes, after_us, until_us)

    def _with_bounds(self, keys: pa.RecordBatch) -> list[pa.Array]:
        """Return the key columns of the output, made of keys that have a window's start in place of the pane."""
        starts, kind = values_of(keys.column(PANE)), self._windowed.bounds_type
        arrays = dict(zip(keys.schema.names, keys.columns, strict=True))
        arrays[WINDOW_START] = times_array(starts, kind)
        arrays[WINDOW_END] = times_array(starts + self._window.size_us, kind)
        return [arrays[name] for name in self._windowed.key_columns]
