"""A subtask of a `ProcessFunction`: rows as named tuples, states as cells, output rows collected to Arrow.

    for each slice of the input: lookup ─► load new cells ─► for each row: process() ─► fitted output rows
    after the last row:          fire the timers that are due (`timers`)
                                 store the cells of all touched keys; a key without any value is absent
                                 remove some of what has expired (`sweeping`)

Invariants: rows are processed in the order of arrival. The table is written only after the last row. With dead letters,
a row whose call failed leaves no trace in cells or output. As long as no row fails, this costs nothing. After the first
failed row, the batch is processed again from its beginning, carefully: in this batch and some batches to come, cells
are saved before each slice, and a slice with a failed row is undone and taken row by row. Does not own the transaction
around it.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import repeat
from types import GeneratorType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import USER_ERRORS, UserFunctionError
from holdfast.functions.operator import BatchContext, NewTable, OperatorResult, Timers
from holdfast.functions.process.by_row.cells import Cells
from holdfast.functions.process.by_row.held_objects import HeldObjects
from holdfast.functions.process.by_row.keyed_states import AnyCells, keyed
from holdfast.functions.process.of_subtask.function_operator import FunctionOperator
from holdfast.functions.process.shared.output import OutputMismatch, Row, RowFitter, yielded
from holdfast.functions.process.shared.sweeping import ExpirySweeper, with_sweep
from holdfast.functions.rows.bad_rows import bad_row, set_apart, where_of
from holdfast.functions.rows.calls import Cursor, named_tuples, raised
from holdfast.functions.rows.times import to_datetime
from holdfast.functions.timing.timers import EVENT, PROCESSING, TIMERS, TimerTable
from holdfast.python_values import python_values, shown_rows
from holdfast.state.physical import Slots

if TYPE_CHECKING:
    from holdfast.functions.process.declared import Context, ProcessSpec

SLICE_ROWS = 1 << 13
"""Number of rows that are Python objects at the same time. A higher value takes more memory, and fewer look-ups."""
OUT_ROWS_MAX = 1 << 15
"""Number of output rows that are held as Python objects before they become columns. A higher value takes more memory if
a function makes many rows of one."""
CAREFUL_BATCHES = 100
"""Batches that are taken carefully, row by row, after a batch with a bad row, if there are dead letters."""


@dataclass
class _TimerOutput:
    """Output rows of timers; `starts`: the begin of each timer's rows, its slot and timestamp."""

    rows: list[Row] = field(default_factory=list)
    starts: list[tuple[int, int, datetime]] = field(default_factory=list)


class ProcessOperator(FunctionOperator):
    def __init__(self, spec: "ProcessSpec", context: "Context", max_parallelism: int, new_table: NewTable) -> None:
        super().__init__(spec, context, max_parallelism, new_table)
        self._cursor = Cursor()
        self._cells: list[AnyCells] = []
        for name, declared in spec.states.items():
            cells, state = keyed(spec.name, name, declared, self._cursor, self._undo_log, spec.key_schema, self._making)
            self._cells.append(cells)
            self.tables.update(cells.tables)
            self._seen_states[name] = state
        entries = {cells.name: cells.entries for cells in self._cells if not isinstance(cells, Cells)}
        self._sweeper = ExpirySweeper(self._table, spec.states, entries, self._clock)
        self._timers: TimerTable | None = None
        if spec.has_timers:
            watermarked = spec.input.event_time is not None
            self._timers = TimerTable(
                spec.key_schema, max_parallelism, new_table, self._table, self._cursor, self._undo_log, watermarked
            )
            self.tables[TIMERS] = self._timers.table
            context.timers = self._timers.service
        self._loaded = 0
        self._timer_keys: dict[int, Any] = {}
        self._keyed = 0
        """Number of touched slots, counted from the first, whose keys are in `_timer_keys`."""
        self._careful = 0
        self._held = HeldObjects(self._cells)
        self._fitter = RowFitter(spec.schema)
        self._install()
        self._row_of = named_tuples("Row", spec.input.schema.names)
        self._key_of = named_tuples("Key", spec.key_columns)

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        batches = self._begin(inputs, context, result)
        pieces = self._representable(batches, context, result)
        timers: Timers | None = None
        if self._timers is not None:
            self._timers.begin()
        try:
            self._take_rows(pieces, context, result)
            if self._timers is not None:
                self._fire(self._timers, context, result)
                timers = self._timers.store()
            self._store()
            self._store_lists()
            timers = with_sweep(timers, self._sweeper.sweep())
        finally:
            self._forget()
        return replace(result, timers=timers)

    def _representable(
        self, batches: list[pa.RecordBatch], context: BatchContext, result: OperatorResult
    ) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows that can be Python objects, in pieces, each with the number of its first row."""
        pieces: list[tuple[int, pa.RecordBatch]] = []
        first_row = 0
        for rows in batches:
            pieces += set_apart(self._spec.name, rows, first_row, self._spec.bad_records, context, result)
            first_row += rows.num_rows
        return pieces

    def _take_rows(
        self, pieces: list[tuple[int, pa.RecordBatch]], context: BatchContext, result: OperatorResult
    ) -> None:
        """Process all rows of the batch. When a row fails for the first time, and bad rows are dead letters, process
        the batch again from its beginning."""
        self._careful = max(0, self._careful - 1)
        known = len(result.bad)
        try:
            for first_row, rows in pieces:
                for start in range(0, rows.num_rows, SLICE_ROWS):
                    part = rows.slice(start, SLICE_ROWS)
                    slots = self._look_up(part)
                    self._run(part, slots.tolist(), first_row + start, context, result)
                    self._held.measure(slots, self.room)
        except UserFunctionError:
            if self._spec.bad_records == "fail":
                raise
            self._forget()
            for each in self._lists.values():
                each.reset()
            result.output.clear()
            self._careful = CAREFUL_BATCHES + 1
            self._take_rows(pieces, context, result)
        if len(result.bad) > known:
            self._careful = CAREFUL_BATCHES

    def _forget(self) -> None:
        """Forget the batch in cells and timers."""
        self._undo_log.clear()
        self._loaded = self._keyed = 0
        self._timer_keys.clear()
        self._held.reset()
        for cells in self._cells:
            cells.reset()
        if self._timers is not None:
            self._timers.reset()

    def _look_up(self, rows: pa.RecordBatch) -> Slots:
        """Return the slots of the rows' keys, after loading their states."""
        slots = self._table.lookup(rows)
        touched = self._table.touched()
        for cells in self._cells:
            cells.load(self._table, touched[self._loaded :])
        self._loaded = len(touched)
        return slots

    def _save(self, slots: list[int]) -> int:
        """Save everything that a call for these slots may change; return the mark to which a failure goes back."""
        mark: int = self._undo_log.mark()
        for cells in self._cells:
            cells.save(slots, self._undo_log)
        for each in self._lists.values():
            each.save(self._undo_log)
        return mark

    def _fire(self, timers: TimerTable, context: BatchContext, result: OperatorResult) -> None:
        """Call `on_timer` for all that is due, until nothing more is."""
        ctx, fired, made = self._context, True, _TimerOutput()
        called: list[int] = []
        while fired:
            fired = False
            for kind, until_us in ((EVENT, context.watermark_us), (PROCESSING, context.batch_time_us)):
                for time_us in timers.fire(kind, until_us, self._look_up):
                    fired = True
                    ctx.key = self._key_at(self._cursor.slot)
                    ctx.timestamp = self._event_time(time_us) if kind == EVENT else to_datetime(time_us)
                    called.append(self._cursor.slot)
                    self._call_timer(ctx.timestamp, made, context, result)
                    if len(called) >= SLICE_ROWS:
                        self._held.measure(np.array(called, np.int32), self.room)
                        called.clear()
                    if len(made.rows) >= SLICE_ROWS:
                        self._put_out_timers(made, context, result)
        self._put_out_timers(made, context, result)

    def _call_timer(
        self, timestamp: datetime, made: "_TimerOutput", context: BatchContext, result: OperatorResult
    ) -> None:
        slot, may_fail = self._cursor.slot, self._spec.bad_records == "dead_letter"
        mark = self._save([slot]) if may_fail else 0
        try:
            produced = self._function.on_timer(timestamp, self._context)
            out = [self._fitter.shape(item) for item in yielded(produced)]
            if may_fail:
                out = [self._fitter.fitted(row) for row in out]
        except USER_ERRORS as error:
            place, reason, values = self._timer_failed(slot, timestamp, context, error)
            if not may_fail:
                raise UserFunctionError(reason) from error
            self._undo_log.back_to(mark)
            result.bad.append(bad_row(self._spec.name, place, reason, values))
            return
        self._undo_log.clear()
        if out:
            made.starts.append((len(made.rows), slot, timestamp))
            made.rows += out

    def _put_out_timers(self, made: "_TimerOutput", context: BatchContext, result: OperatorResult) -> None:
        """Put out the rows of many timers as a single batch."""
        if not made.rows:
            return
        try:
            result.output.append(self._fitter.batch(made.rows))
        except OutputMismatch as error:
            number = bisect_right(made.starts, error.row, key=lambda start: start[0]) - 1
            _, slot, timestamp = made.starts[number]
            raise UserFunctionError(self._timer_failed(slot, timestamp, context, error)[1]) from error
        made.rows.clear()
        made.starts.clear()

    def _timer_failed(
        self, slot: int, timestamp: datetime, context: BatchContext, error: BaseException
    ) -> tuple[str, str, dict[str, Any]]:
        """Return the place of a failed timer, the reason, and its key and timestamp."""
        key = shown_rows(self._table.keys_of(np.array([slot], np.int32)))[0]
        place = f"timer {timestamp.isoformat()} in batch {context.batch}, subtask {context.subtask}"
        reason = raised(self._spec.name, key, place, error, "on_timer")
        return place, reason, {**key, "timestamp": timestamp}

    def _key_at(self, slot: int) -> Any:
        """The key of a touched slot; the keys of all slots touched so far are made together."""
        if slot not in self._timer_keys:
            touched = self._table.touched()[self._keyed :]
            self._keyed += len(touched)
            columns = [python_values(column) for column in self._table.keys_of(touched).columns]
            keys = columns[0] if len(columns) == 1 else map(self._key_of, zip(*columns, strict=True))
            self._timer_keys.update(zip(touched.tolist(), keys, strict=True))
        return self._timer_keys[slot]

    @property
    def memory_bytes(self) -> int:
        indexed = 0 if self._timers is None else self._timers.index_bytes
        return super().memory_bytes + indexed + self._held.bytes

    def _keys(self, columns: list[list[Any]]) -> Iterable[Any]:
        """`ctx.key` of each row: the value, or a named tuple of several."""
        places = [self._spec.input.schema.get_field_index(name) for name in self._spec.key_columns]
        if len(places) == 1:
            return columns[places[0]]
        return map(self._key_of, zip(*(columns[place] for place in places), strict=True))

    def _run(
        self, part: pa.RecordBatch, slots: list[int], first_row: int, context: BatchContext, result: OperatorResult
    ) -> None:
        """Take a slice. If a row fails, and bad rows are dead letters, undo the slice and take it again row by row."""
        if not self._careful:
            self._take_all(part, slots, first_row, context, result)
            self._undo_log.clear()
            return
        mark = self._save(slots)
        try:
            self._take_all(part, slots, first_row, context, result)
        except UserFunctionError:
            self._undo_log.back_to(mark)
            self._take_each(part, slots, first_row, context, result)
        self._undo_log.clear()

    def _calls(self, part: pa.RecordBatch, slots: list[int]) -> Iterable[tuple[int, int, Any, Any, datetime | None]]:
        """Number, slot, values, key and event time of each row."""
        columns = [python_values(column) for column in part.columns]
        time = self._spec.input.event_time
        at: Iterable[datetime | None] = repeat(None, len(slots))
        if time is not None and time.column is not None:
            at = columns[self._spec.input.schema.get_field_index(time.column)]
        rows = map(self._row_of, zip(*columns, strict=True))
        return zip(range(len(slots)), slots, rows, self._keys(columns), at, strict=True)

    def _take_all(
        self, part: pa.RecordBatch, slots: list[int], first_row: int, context: BatchContext, result: OperatorResult
    ) -> None:
        """Take all rows, until a row fails. This loop decides the cost of a row."""
        process, cursor, ctx, shape = self._function.process, self._cursor, self._context, self._fitter.shape
        out: list[Row] = []
        numbers: list[int] = []
        append, note = out.append, numbers.append
        # Output of a slice that may be undone is held until the slice has succeeded.
        held_max = sys.maxsize if self._careful else OUT_ROWS_MAX
        number = 0
        try:
            for number, slot, row, key, at in self._calls(part, slots):
                cursor.slot = slot
                ctx.key = key
                ctx._timestamp = at  # without the call that `timestamp` would be
                produced = process(row, ctx)
                if produced is None:
                    continue
                for item in produced if type(produced) is GeneratorType else yielded(produced):
                    append(shape(item))
                    note(number)
                    if len(out) >= held_max:
                        self._put_out(out, numbers, part, first_row, context, result)
                        out.clear()
                        numbers.clear()
        except USER_ERRORS as error:
            if isinstance(error, UserFunctionError) and isinstance(error.__cause__, OutputMismatch):
                raise  # The error of output that was put out before the slice's end names its row itself.
            raise self._error(part, number, first_row, context, error) from error
        self._put_out(out, numbers, part, first_row, context, result)

    def _put_out(
        self,
        out: list[Row],
        numbers: list[int],
        part: pa.RecordBatch,
        first_row: int,
        context: BatchContext,
        result: OperatorResult,
    ) -> None:
        """Put out rows, which rows of the input with these `numbers` have made."""
        if out:
            try:
                result.output.append(self._fitter.batch(out))
            except OutputMismatch as error:
                raise self._error(part, numbers[error.row], first_row, context, error) from error

    def _take_each(
        self, part: pa.RecordBatch, slots: list[int], first_row: int, context: BatchContext, result: OperatorResult
    ) -> None:
        """Take the slice row by row; a row that fails becomes a bad row, and leaves no trace in cells or output."""
        cursor, ctx = self._cursor, self._context
        fitter, rows = self._fitter, list[Row]()
        for number, slot, row, key, at in self._calls(part, slots):
            cursor.slot, ctx.key, ctx.timestamp = slot, key, at
            mark = self._save([slot])
            try:
                rows += [fitter.fitted(fitter.shape(item)) for item in yielded(self._function.process(row, ctx))]
            except USER_ERRORS as error:
                self._undo_log.back_to(mark)
                values = shown_rows(part.slice(number, 1))[0]
                reason = str(self._error(part, number, first_row, context, error))
                result.bad.append(bad_row(self._spec.name, where_of(context, first_row + number), reason, values))
        if rows:
            result.output.append(fitter.batch(rows))

    def _error(
        self, part: pa.RecordBatch, number: int, first_row: int, context: BatchContext, error: BaseException
    ) -> UserFunctionError:
        values = shown_rows(part.slice(number, 1))[0]
        key = {name: values[name] for name in self._spec.key_columns}
        return UserFunctionError(raised(self._spec.name, key, where_of(context, first_row + number), error))

    def _store(self) -> None:
        slots = self._table.touched()
        some = np.zeros(len(slots), dtype=np.bool_)
        for cells in self._cells:
            some |= cells.store(self._table, slots)
        self._table.present[slots] = some
