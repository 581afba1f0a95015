"""A subtask's part of a user's function, by row or by batch: its copy, its table, and the time of the batch.

The states that stand in the place of the declared ones, and the calls, are those of `process_operator` and
`batch_operator`.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.errors import UserFunctionError
from holdfast.functions.operator import BatchContext, NewTable, Operator
from holdfast.functions.process.broadcast import Broadcasts
from holdfast.functions.process.entries import Making
from holdfast.functions.timing.expiry import BatchClock
from holdfast.functions.timing.timers import to_datetime

if TYPE_CHECKING:
    from holdfast.functions.process.declared import Context, ProcessSpec


class FunctionOperator(Operator):
    """`_making` is what the tables of its states are made with."""

    def __init__(self, spec: "ProcessSpec", context: "Context", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._context = context
        self._table = new_table(spec.key_schema, spec.value_schema, max_parallelism)
        self.tables = {"state": self._table}
        self._clock = BatchClock()
        self._making = Making(max_parallelism, new_table, self._clock)
        self._function: Any = spec.copy_function()
        self._open()
        self._broadcasts = Broadcasts(spec.name, spec.broadcast, max_parallelism)
        self.tables.update(self._broadcasts.tables)
        self._function.__dict__.update(self._broadcasts.by_name)

    def _open(self) -> None:
        """Before any row; errors name operator and subtask."""
        function, context = self._function, self._context
        try:
            function.open(context)
        except Exception as error:  # user code may raise anything
            raise UserFunctionError(
                f"operator {context.operator!r}, subtask {context.subtask}: {type(function).__name__}.open() raised "
                f"{type(error).__name__}: {error}"
            ) from error

    def _begin(self, inputs: list[tuple[int, pa.RecordBatch]], batch: BatchContext) -> list[tuple[int, pa.RecordBatch]]:
        """Take the broadcast rows, and return the others; the function sees what the plan says of time."""
        self._clock.now_us = batch.batch_time_us
        self._context.batch_time = to_datetime(batch.batch_time_us)
        self._context.watermark = None if batch.watermark_us is None else self._event_time(batch.watermark_us)
        return self._broadcasts.take(inputs)

    def _event_time(self, time_us: int) -> datetime:
        """An event time as values of the watermark's column are: with or without a zone."""
        time, zoned = to_datetime(time_us), self._spec.input.event_time is None or self._spec.input.event_time.zoned
        return time if zoned else time.replace(tzinfo=None)

    def is_snapshot_available(self) -> SnapshotAvailability:
        answer: SnapshotAvailability = self._function.is_snapshot_available()
        return answer

    def close(self) -> None:
        self._function.close()
