"""Rows on their way to a windowed operator: each gets its pane, late ones stay as they are, the others are combined.

A row is late when all its windows were closed before the batch. The operator finds late rows again by the same rule,
and decides how to treat them. Senders only keep late rows apart, since single rows cannot be recognised in a combined
row.
"""

import numpy as np
import pyarrow as pa

from holdfast.functions.operator import Combiner
from holdfast.functions.rows.columns import BoolArray
from holdfast.functions.windows.declared import ALL, PANE, Window
from holdfast.state.physical import Integers

Parts = list[tuple[int, pa.RecordBatch]]

PANE_FIELD = pa.field(PANE, pa.int64(), nullable=False)
ALL_FIELD = pa.field(ALL, pa.int64(), nullable=False)


def late_panes(window: Window, panes: Integers, closed_us: int | None, lateness_us: int) -> BoolArray | None:
    """Return a mask of the panes all of whose windows are closed; None if there is no such pane."""
    if closed_us is None or not len(panes):
        return None
    before_us = window.closed_before(closed_us - lateness_us)
    if int(panes.min()) >= before_us:
        return None
    late: BoolArray = panes < before_us
    return late


def with_panes(window: Window, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Integers]:
    """Rows with the column of their panes; no time is null."""
    panes = window.panes_of(rows)
    return rows.append_column(PANE_FIELD, pa.array(panes)), panes


class SessionCombiner(Combiner):
    """Sends the rows of sessions as they are; if there is no other key, with a column by which they are divided."""

    def __init__(self, alone: bool) -> None:
        self._alone = alone

    def take(self, rows: pa.RecordBatch) -> Parts:
        if self._alone:
            rows = rows.append_column(PANE_FIELD, pa.array(np.zeros(rows.num_rows, np.int64)))
        return [(0, rows)]

    def finish(self) -> Parts:
        return []


class WindowCombiner(Combiner):
    """Adds panes to rows, and `ALL` with `to_one`. `inner` combines the rows that are not late; if it is None, they are
    sent as they are."""

    def __init__(
        self, window: Window, closed_us: int | None, lateness_us: int, inner: Combiner | None, to_one: bool = False
    ) -> None:
        self._window = window
        self._to_one = to_one
        self._closed_us = closed_us
        self._lateness_us = lateness_us
        self._inner = inner

    def take(self, rows: pa.RecordBatch) -> Parts:
        if self._to_one:
            rows = rows.append_column(ALL_FIELD, pa.array(np.zeros(rows.num_rows, np.int64)))
        rows, panes = with_panes(self._window, rows)
        if self._inner is None:
            return [(0, rows)]
        late = late_panes(self._window, panes, self._closed_us, self._lateness_us)
        if late is None:
            return self._inner.take(rows)
        out: Parts = [(0, rows.filter(pa.array(late)))]
        if not late.all():
            out += self._inner.take(rows.filter(pa.array(np.logical_not(late))))
        return out

    def finish(self) -> Parts:
        return [] if self._inner is None else self._inner.finish()
