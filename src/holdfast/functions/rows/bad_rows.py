"""Bad rows: rows that an operator puts aside with the reason and the place where they were."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from holdfast.errors import BadRecord
from holdfast.functions.operator import BatchContext, OperatorResult
from holdfast.python_values import payload_of, shown_rows, unrepresentable
from holdfast.sources.base import BadRow


def where_of(context: BatchContext, row: int) -> str:
    """A row's place; rows are numbered from 0 within a subtask's part of a batch."""
    return f"row {row} of batch {context.batch}, subtask {context.subtask}"


def bad_row(operator: str, where: str, reason: str, values: Mapping[str, Any]) -> BadRow:
    """Make a row for the dead letters; `where` as in `where_of`. Source and split are no longer known behind an
    exchange."""
    return BadRow("", "", where, reason, payload_of(values), operator=operator)


def set_apart(
    operator: str,
    rows: pa.RecordBatch,
    first_row: int,
    bad_records: str,
    context: BatchContext,
    result: OperatorResult,
) -> list[tuple[int, pa.RecordBatch]]:
    """Return the rows in pieces, each with the number of its first row. Rows that Python objects cannot hold are left
    out: they are bad records.
    """
    odd = unrepresentable(rows)
    for row, reason in odd.items():
        where = where_of(context, first_row + row)
        reason = f"operator {operator!r}: {reason} ({where})"
        if bad_records == "fail":
            raise BadRecord(
                f'{reason}; leave the column out, cast it to text or a number, or use bad_records="dead_letter"'
            )
        result.bad.append(bad_row(operator, where, reason, shown_rows(rows.slice(row, 1))[0]))
    begins, stops = [0, *(row + 1 for row in odd)], [*odd, rows.num_rows]
    pairs = zip(begins, stops, strict=True)
    return [(first_row + begin, rows.slice(begin, stop - begin)) for begin, stop in pairs if begin < stop]
