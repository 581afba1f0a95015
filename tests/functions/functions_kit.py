"""Helpers that tests of functions share."""

import pyarrow as pa

from holdfast.functions.operator import UNBOUNDED, BatchRoom, Operator
from holdfast.functions.rows.pieces import sliced


def end(operator: Operator, *, undo: bool = False) -> None:
    """The batch in flight is committed, or undone."""
    for table in operator.tables.values():
        if undo:
            table.undo()
        else:
            table.changes()
            table.commit()


Inputs = list[tuple[int, pa.RecordBatch]]


def divided(operator: Operator, number: int, inputs: Inputs) -> Inputs:
    """The input of a batch; some batches are too large for the memory, and the operator takes them in a few pieces."""
    size = sum(rows.nbytes for _, rows in inputs)
    operator.room = BatchRoom(1 + size // 3 * operator.copies_of_a_row) if number % 4 == 1 else UNBOUNDED
    return list(sliced(inputs, operator.room))
