"""A subtask's part of a user's function, by row or by batch: its copy, its tables, its lists, the time of the batch.

A function is opened when its operator is made. A function with lists is opened only when the lists hold the entries of
a checkpoint. Each time that the job goes back to a checkpoint, a new copy of such a function is opened, because objects
that `open` made belong to the entries from which it made them.

The calls, and the states in place of the declared states, are those of `row_operator` and `batch_operator`.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.errors import USER_ERRORS, UserFunctionError, in_user_code
from holdfast.functions.operator import BatchContext, NewTable, Opening, Operator, OperatorResult
from holdfast.functions.process.of_subtask.list_states import list_table
from holdfast.functions.process.of_subtask.subtask_broadcast import Broadcasts
from holdfast.functions.process.of_subtask.subtask_list import OpenedUnionList, SubtaskList, opened_list
from holdfast.functions.process.shared.entries import Making
from holdfast.functions.rows.bad_rows import set_apart
from holdfast.functions.rows.times import to_datetime
from holdfast.functions.timing.expiry import BatchClock
from holdfast.functions.undo_log import UndoLog
from holdfast.printable import logger

if TYPE_CHECKING:
    from holdfast.functions.process.declared import Context, ProcessSpec

log = logger(__name__)


class FunctionOperator(Operator):
    """The part of a running function that is the same by row and by array. `_making` makes the tables of its states."""

    def __init__(self, spec: "ProcessSpec", context: "Context", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._context = context
        self._table = new_table(spec.key_schema, spec.value_schema, max_parallelism)
        self._lists = {
            name: SubtaskList(spec.name, name, declared, max_parallelism) for name, declared in spec.lists.items()
        }
        self.tables = {"state": self._table}
        self.tables.update({list_table(name): each.table for name, each in self._lists.items()})
        self._clock = BatchClock()
        self._undo_log = UndoLog(is_kept=spec.bad_records == "dead_letter")
        self._making = Making(max_parallelism, new_table, self._clock)
        self._broadcasts = Broadcasts(spec.name, spec.broadcast, max_parallelism)
        self.tables.update(self._broadcasts.tables)
        self._seen_states: dict[str, Any] = dict(self._broadcasts.by_name)
        """The running states, which replace the declared states."""
        self._function: Any = spec.copy_function()
        self._is_open = False
        if not self._lists:
            self._open()

    def open(self, opening: Opening) -> None:
        if not self._lists:
            return
        self._close_replaced()
        self._function = self._spec.copy_function()
        unions = []
        for name, own in self._lists.items():
            own.open(opening.key_groups)
            seen = opened_list(self._spec.lists[name], own)
            self._function.__dict__[name] = seen
            if isinstance(seen, OpenedUnionList):
                seen.all_rows = opening.whole.get(list_table(name), own.no_rows)
                unions.append(seen)
        self._open()
        for seen in unions:
            seen.all_rows = None
        self._install()

    def _install(self) -> None:
        """Give the copy of the function its states, after it was opened."""
        self._function.__dict__.update(self._seen_states)

    def _open(self) -> None:
        """Call the function's `open`, before any row; an error names operator and subtask."""
        function, context = self._function, self._context
        try:
            function.open(context)
        except USER_ERRORS as error:
            raise UserFunctionError(
                f"operator {context.operator!r}, subtask {context.subtask}: {type(function).__name__}.open() raised "
                f"{in_user_code(error)}"
            ) from error
        self._is_open = True

    def _begin(
        self, inputs: list[tuple[int, pa.RecordBatch]], batch: BatchContext, result: OperatorResult
    ) -> list[pa.RecordBatch]:
        """Take the broadcast rows, and return the others; the function sees the times of the plan.

        Its lists are as they were committed last.
        """
        broadcast: list[tuple[int, pa.RecordBatch]] = []
        for each in self._lists.values():
            each.begin()
        self._clock.now_us = batch.batch_time_us
        self._context.batch_time = to_datetime(batch.batch_time_us)
        self._context.watermark = None if batch.watermark_us is None else self._event_time(batch.watermark_us)
        name, policy = self._spec.name, self._spec.bad_records
        for number, rows in inputs:
            if number > 0:
                pieces = set_apart(name, rows, 0, policy, batch, result)
                broadcast += [(number, piece) for _, piece in pieces]
        self._broadcasts.take(broadcast)
        return [rows for number, rows in inputs if number <= 0]

    def _store_lists(self) -> None:
        for each in self._lists.values():
            each.store()
            each.end()

    def _event_time(self, time_us: int) -> datetime:
        """Return an event time in the form of the watermark's column: with or without a zone."""
        time, zoned = to_datetime(time_us), self._spec.input.event_time is None or self._spec.input.event_time.zoned
        return time if zoned else time.replace(tzinfo=None)

    @property
    def memory_bytes(self) -> int:
        return self._broadcasts.memory_bytes + sum(each.memory_bytes for each in self._lists.values())

    def is_snapshot_available(self) -> SnapshotAvailability:
        answer: SnapshotAvailability = self._function.is_snapshot_available()
        return answer

    def _close_replaced(self) -> None:
        """Close the copy of the function that another one replaces; an error of its `close` must not end the query."""
        try:
            self.close()
        except Exception:
            log.exception(
                "operator %r: the function's close() raised an error; a new copy takes its place", self._spec.name
            )

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._function.close()
