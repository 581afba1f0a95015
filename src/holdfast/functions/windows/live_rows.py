"""Windows that keep rows, over changes: rows that went are left out when a window closes, with the rows that they undo.

    rows of closing windows ──► equal rows of a window: how often they came, less how often they went
        ──► rows that are left, in ascending order of their columns ──► sessions: divided anew ──► `WindowFinish`

While a window is open, a row that goes is kept like a row that comes. It has the time of the row that it undoes, so
that both are in the same windows. A session may be held together by rows that went: then it closes with its last part,
and gives each of its parts. Output depends on the rows that are left alone, never on their order.
"""

import numpy as np
import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.equality import normalised
from holdfast.errors import JobRefused
from holdfast.functions.changes.bag import check_found_again
from holdfast.functions.changes.kept_values import same_values
from holdfast.functions.changes.weights import weights_of
from holdfast.functions.operator import BatchContext, OperatorResult
from holdfast.functions.rows.columns import BoolArray
from holdfast.functions.rows.ordering import ordered
from holdfast.functions.windows.declared import WINDOW_END, WINDOW_START, SessionWindow, times_array, times_of
from holdfast.functions.windows.rows_operator import ClosingRows, WindowFinish
from holdfast.functions.windows.session_kernels import join_sessions
from holdfast.functions.windows.windowed import WindowedSpec
from holdfast.schema import CHANGE_TYPE
from holdfast.state.physical import Integers


def check_changes(spec: WindowedSpec) -> None:
    """Refuse, by `JobRefused`, a key of change types, and rows whose values cannot be compared."""
    if CHANGE_TYPE in spec.input.key_columns:
        raise JobRefused(f"operator {spec.name!r}: {CHANGE_TYPE!r} is no key; it says how rows change")
    keys = (*spec.input.key_columns, CHANGE_TYPE)
    check_found_again(spec.name, f"{spec.window}", [field for field in spec.input.schema if field.name not in keys])


class LiveRows(WindowFinish):
    """Gives `inner` the rows that are left, without their change types."""

    def __init__(self, spec: WindowedSpec, inner: WindowFinish) -> None:
        self._spec, self._inner = spec, inner

    def is_snapshot_available(self) -> SnapshotAvailability:
        return self._inner.is_snapshot_available()

    def close(self) -> None:
        self._inner.close()

    def finish(self, closing: ClosingRows, context: BatchContext, result: OperatorResult) -> None:
        rows, keys, groups = closing
        if rows.num_rows:
            rows, groups = left_of(rows, groups, keys.num_rows)
        if not rows.num_rows:
            return
        if isinstance(self._spec.window, SessionWindow):
            rows, keys, groups = self._divided(rows, keys, groups, self._spec.window)
        else:
            with_rows, groups = np.unique(groups, return_inverse=True)
            keys = keys.take(pa.array(with_rows))
        self._inner.finish(ClosingRows(rows, keys, groups), context, result)

    def _divided(
        self, rows: pa.RecordBatch, keys: pa.RecordBatch, groups: Integers, window: SessionWindow
    ) -> tuple[pa.RecordBatch, pa.RecordBatch, Integers]:
        """Divide sessions where no row holds them together; return rows, keys and groups of the parts."""
        starts = times_of(rows.column(window.column))
        of_rows, first, ends = np.empty((3, len(starts)), np.int64)
        order, until = np.lexsort((starts, groups)), starts + window.gap_us
        count = join_sessions(order, groups, starts, until, of_rows, first, ends)
        kind, first = self._spec.bounds_type, first[:count]
        parts = keys.take(pa.array(groups[first]))
        for name, times in ((WINDOW_START, starts[first]), (WINDOW_END, ends[:count])):
            place = parts.schema.get_field_index(name)
            parts = parts.set_column(place, parts.schema.field(place), times_array(times, kind))
        order = np.argsort(of_rows, kind="stable")
        return rows.take(pa.array(order)), parts, of_rows[order]


def left_of(rows: pa.RecordBatch, groups: Integers, count: int) -> tuple[pa.RecordBatch, Integers]:
    """Return the rows of each group that came more often than they went, as often as that, without their change types
    and in ascending order of their columns; and their groups, which are below `count`."""
    weights, rows = weights_of(rows), rows.drop_columns([CHANGE_TYPE])
    columns = [normalised(column) for column in rows.columns]
    order = ordered(groups, count, columns)
    begins = begins_of_equal(groups[order], [column.take(pa.array(order)) for column in columns])
    runs: Integers = np.cumsum(begins) - 1
    counts = np.bincount(runs, weights[order]).astype(np.int64)
    kept = np.repeat(order[begins], np.maximum(counts, 0))
    return rows.take(pa.array(kept)), groups[kept]


def begins_of_equal(groups: Integers, columns: list[pa.Array]) -> BoolArray:
    """Mark the first of each run of rows that are equal by group and columns."""
    begins = np.ones(len(groups), np.bool_)
    begins[1:] = groups[1:] != groups[:-1]
    for column in columns:
        begins[1:] |= ~same_values(column.slice(1), column.slice(0, len(column) - 1))
    return begins
