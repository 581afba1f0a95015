"""States of some rows of a table, added to the states of other keys: panes to windows, sessions to each other."""

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRecord
from holdfast.functions.aggregates.accumulators import Chunk
from holdfast.functions.aggregates.checked_sums import overflowing_rows, try_all
from holdfast.functions.aggregates.table import AggregateTable
from holdfast.functions.operator import BatchContext, OperatorResult
from holdfast.functions.rows.bad_rows import bad_row
from holdfast.functions.rows.columns import RESERVED_PREFIX
from holdfast.python_values import shown_rows


def merge_states(
    into: AggregateTable,
    rows: pa.RecordBatch,
    operator: str,
    bad_records: str,
    context: BatchContext,
    result: OperatorResult,
) -> None:
    """Add states, in columns named like those of `into` and with its keys.

    A state that a sum can't take is a bad record: it is left out of all aggregates of its new key.
    """
    if not rows.num_rows:
        return
    chunk, new = into.look_up(rows, False)
    if try_all(into.of_combined.sums, chunk):
        into.appear(new)
    else:
        chunk = _without_overflow(into, chunk, operator, bad_records, context, result)
        into.appear(np.unique(chunk.slots))
    into.of_combined.add(chunk)


def _without_overflow(
    into: AggregateTable, chunk: Chunk, operator: str, bad_records: str, context: BatchContext, result: OperatorResult
) -> Chunk:
    bad = overflowing_rows(into.of_combined.sums, chunk)
    names = into.table.key_schema.names
    for row, culprit in bad.items():
        values = shown_rows(chunk.rows.slice(row, 1))[0]
        key = {name: values[name] for name in names if not name.startswith(RESERVED_PREFIX)}
        where = f"window that starts at {values[names[-1]]} µs, in batch {context.batch}, subtask {context.subtask}"
        reason = (
            f"operator {operator!r}: aggregate {culprit.bound.name!r} = {culprit.bound.aggregate} does not fit "
            f"{culprit.type} any more for key {key} ({where})"
        )
        if bad_records == "fail":
            raise BadRecord(f'{reason}; cast the column to decimal or double, or use bad_records="dead_letter"')
        result.bad.append(bad_row(operator, where, reason, values))
    good = np.ones(chunk.rows.num_rows, np.bool_)
    good[list(bad)] = False
    chunk = chunk.only(good)
    if not try_all(into.of_combined.sums, chunk):
        raise AssertionError(f"operator {operator!r}: states without overflow overflow")
    return chunk
