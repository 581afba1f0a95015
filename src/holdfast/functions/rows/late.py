"""Rows that come too late: they are always counted, and then dropped, put out as a stream, or put aside as bad
records."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from holdfast.functions.operator import COMBINED_INPUT, BatchContext, OperatorResult
from holdfast.functions.rows.bad_rows import bad_row, where_of
from holdfast.functions.rows.columns import RESERVED_PREFIX, BoolArray
from holdfast.functions.rows.times import to_datetime
from holdfast.python_values import shown_rows

WhichAreLate = Callable[[pa.RecordBatch], BoolArray | None]
"""Function from rows to the mask of late rows; None if no row is late."""


class LateRows:
    """Takes late rows out of a batch's input. `policy` is "drop", "dead_letter" or "stream"."""

    def __init__(self, operator: str, policy: str) -> None:
        self._operator = operator
        self._policy = policy
        self._count = 0
        self._rows: list[pa.RecordBatch] = []

    def put_aside(
        self,
        inputs: Sequence[tuple[int, pa.RecordBatch]],
        late_of: WhichAreLate,
        context: BatchContext,
        result: OperatorResult,
    ) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows on time. Combined rows are always on time, because senders never combine late rows."""
        self._count, self._rows = 0, []
        on_time: list[tuple[int, pa.RecordBatch]] = []
        first_row = 0
        for number, rows in inputs:
            late = None if number == COMBINED_INPUT else late_of(rows)
            if late is None:
                on_time.append((number, rows))
            else:
                self._take(rows, late, first_row, context, result)
                on_time.append((number, rows.filter(pa.array(np.logical_not(late)))))
            first_row += rows.num_rows
        return on_time

    @property
    def count(self) -> int:
        """Number of late rows in the batch."""
        return self._count

    @property
    def rows(self) -> list[pa.RecordBatch]:
        """Late rows for the stream of them."""
        return self._rows

    def _take(
        self, rows: pa.RecordBatch, late: BoolArray, first_row: int, context: BatchContext, result: OperatorResult
    ) -> None:
        self._count += int(np.count_nonzero(late))
        names = [name for name in rows.schema.names if not name.startswith(RESERVED_PREFIX)]
        found = rows.select(names).filter(pa.array(late))
        if self._policy == "stream":
            self._rows.append(found)
        elif self._policy == "dead_letter":
            watermark = "" if context.closed_us is None else to_datetime(context.closed_us).isoformat()
            reason = f"operator {self._operator!r}: late: the watermark {watermark} says that its time was complete"
            places = np.flatnonzero(late).tolist()
            for place, values in zip(places, shown_rows(found), strict=True):
                result.bad.append(bad_row(self._operator, where_of(context, first_row + place), reason, values))
