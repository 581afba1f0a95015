"""The event times of a source's rows: the newest time, and times that no calendar has.

Times outside the years 1 to 9999 are mistakes, such as milliseconds that were read as seconds. One of them would carry
the watermark past all windows, and sums with it would leave int64. So their rows are bad records.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.casts import UNITS_PER_SECOND
from holdfast.ids import SplitPosition
from holdfast.python_values import payload_of, shown_rows
from holdfast.sources.base import BadRow, SourceBatch
from holdfast.state.physical import validity_of, values_of
from holdfast.watermarks import END_US, FIRST_US

RowNumbers = npt.NDArray[np.int64]


def newest_us(times: pa.Array) -> int | None:
    """The greatest of the times in microseconds; None if all are null."""
    newest: int | None = pc.max(times).value
    return None if newest is None else newest * 1_000_000 // UNITS_PER_SECOND[times.type.unit]


def odd_times(times: pa.Array) -> RowNumbers:
    """The numbers of the rows whose time is outside the years 1 to 9999."""
    first, last = (limit_us * UNITS_PER_SECOND[times.type.unit] // 1_000_000 for limit_us in (FIRST_US, END_US))
    extremes = pc.min_max(times)
    least, greatest = extremes["min"].value, extremes["max"].value
    if least is None or (first <= least and greatest <= last):
        return np.empty(0, np.int64)
    values, valid = values_of(times), validity_of(times)
    odd = (values < first) | (values > last)
    return np.flatnonzero(odd if valid is None else odd & valid)


def rows_with_odd_times(batch: SourceBatch, column: str, odd: RowNumbers, split: str) -> list[BadRow]:
    """Return the rows with those numbers as bad records."""
    if not len(odd):
        return []
    kind, shown = batch.rows.column(column).type, shown_rows(batch.rows.take(pa.array(odd)))
    reason = f"the event time {column!r} ({kind}) is outside the years 1 to 9999: check its unit"
    return [
        BadRow("", split, str(_position(batch, number)), reason, payload_of(row))
        for number, row in zip(odd.tolist(), shown, strict=True)
    ]


def pieces_between(batch: SourceBatch, odd: RowNumbers) -> Iterator[tuple[SplitPosition, pa.RecordBatch]]:
    """Return the other rows, in contiguous pieces of the batch, each with the position of its first row."""
    if not len(odd):
        yield batch.position, batch.rows
        return
    begins, stops = [0, *(odd + 1).tolist()], [*odd.tolist(), batch.rows.num_rows]
    for begin, stop in zip(begins, stops, strict=True):
        if begin < stop:
            yield _position(batch, begin), batch.rows.slice(begin, stop - begin)


def _position(batch: SourceBatch, number: int) -> SplitPosition:
    return batch.position + number if isinstance(batch.position, int) else batch.position
