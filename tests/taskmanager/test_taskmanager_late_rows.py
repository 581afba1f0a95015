"""Late rows are counted once, with the batch that is committed."""

import pyarrow as pa

from holdfast.functions.operator import BatchContext, Operator, OperatorResult
from holdfast.taskmanager.subtask import Subtask


class AlwaysLate(Operator):
    tables = {}

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        return OperatorResult(output=[], late=3)


def test_rows_of_a_batch_that_was_undone_are_not_counted_as_late() -> None:
    subtask = Subtask("windows", 0, AlwaysLate(), {})
    subtask.process(BatchContext(1, 0, "windows", 0), [])
    subtask.undo()
    assert subtask.counted.committed.late == 0
    subtask.process(BatchContext(1, 0, "windows", 0), [])
    subtask.commit(1)
    subtask.commit(1)
    assert subtask.metrics()["numLateRecordsDropped"] == 3
