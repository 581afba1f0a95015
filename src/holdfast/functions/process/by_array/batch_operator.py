"""A subtask of a `BatchFunction`: rows as Arrow batches, states as arrays with an entry for each distinct key.

Invariants: rows are processed in the order of arrival; a key without any value is absent. With dead letters, a call
that raises is undone and repeated with half of its rows at a time until the bad rows are found, so a function may see
rows again whose first call was undone. Does not own the transaction around it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import USER_ERRORS, UserFunctionError
from holdfast.functions.operator import BatchContext, NewTable, OperatorResult, Timers
from holdfast.functions.process.by_array.array_states import AnyArrayState, ArrayValueState, array_state
from holdfast.functions.process.of_subtask.function_operator import FunctionOperator
from holdfast.functions.process.shared.entries import save_rows
from holdfast.functions.process.shared.output import fit_batches
from holdfast.functions.process.shared.sweeping import ExpirySweeper, with_sweep
from holdfast.functions.rows.bad_rows import bad_row, where_of
from holdfast.functions.rows.calls import raised
from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.grouping import distinct_slots
from holdfast.functions.timing.array_timers import ArrayTimers
from holdfast.functions.timing.timers import EVENT, PROCESSING, TIMERS
from holdfast.python_values import shown_rows, shown_values
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.process.declared import Context, ProcessSpec


class BatchOperator(FunctionOperator):
    def __init__(self, spec: "ProcessSpec", context: "Context", max_parallelism: int, new_table: NewTable) -> None:
        super().__init__(spec, context, max_parallelism, new_table)
        self._states: list[AnyArrayState] = []
        for name, declared in spec.states.items():
            state = array_state(spec.name, name, declared, self._table, spec.key_schema, self._making)
            self._states.append(state)
            self.tables.update(state.own_tables)
            self._seen_states[name] = state
        entries = {state.name: state.entries for state in self._states if not isinstance(state, ArrayValueState)}
        self._sweeper = ExpirySweeper(self._table, spec.states, entries, self._clock)
        self._timers: ArrayTimers | None = None
        if spec.has_timers:
            watermarked = spec.input.event_time is not None
            self._timers = ArrayTimers(spec.key_schema, max_parallelism, new_table, watermarked, self._save)
            self.tables[TIMERS] = self._timers.table
            context.timers = self._timers.service
        self._install()

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + (0 if self._timers is None else self._timers.index_bytes)

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        batches = self._begin(inputs, context, result)
        if self._timers is not None:
            self._timers.begin()
        first_row = 0
        for rows in batches:
            if rows.num_rows:
                self._run(rows, self._table.lookup(rows), first_row, context, result)
            first_row += rows.num_rows
        timers: Timers | None = None
        if self._timers is not None:
            self._fire(self._timers, context, result)
            timers = self._timers.left()
        self._store_lists()
        return replace(result, timers=with_sweep(timers, self._sweeper.sweep()))

    def _fire(self, timers: ArrayTimers, context: BatchContext, result: OperatorResult) -> None:
        """Call `on_timers` for all that is due, until nothing more is."""
        fired = True
        while fired:
            fired = False
            for kind, until_us in ((EVENT, context.watermark_us), (PROCESSING, context.batch_time_us)):
                for keys, times in timers.due(kind, until_us):
                    fired = True
                    self._call_timers(keys, times, context, result)

    def _call_timers(
        self, keys: pa.RecordBatch, times: IntArray, context: BatchContext, result: OperatorResult
    ) -> None:
        """Make a call for all keys; after a failure with dead letters, two calls with half the keys each."""
        slots = self._table.lookup(keys)
        zone = None if self._spec.input.event_time is not None and not self._spec.input.event_time.zoned else "UTC"
        stamps = pa.array(times).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz=zone))
        self._save_all(slots)
        try:
            self._in_call(slots, lambda: self._function.on_timers(keys, stamps, self._context), result)
            return
        except USER_ERRORS as error:
            place = f"{keys.num_rows} timers in batch {context.batch}, subtask {context.subtask}"
            key = shown_rows(keys.slice(0, 1))[0]
            reason = raised(self._spec.name, key, place, error, "on_timers")
            if not self._undo_log.is_kept:
                raise UserFunctionError(reason) from error
            self._undo_log.back_to(0)
            if keys.num_rows == 1:
                result.bad.append(
                    bad_row(self._spec.name, place, reason, {**key, "timestamp": shown_values(stamps[:1])[0]})
                )
                return
        half = keys.num_rows // 2
        self._call_timers(keys.slice(0, half), times[:half], context, result)
        self._call_timers(keys.slice(half), times[half:], context, result)

    def _save_all(self, slots: Slots) -> None:
        """Save everything that the next call may change directly: the rows of its keys, and the lists."""
        self._undo_log.clear()
        if self._undo_log.is_kept:
            save_rows(self._table, slots, self._undo_log)
            for each in self._lists.values():
                each.save(self._undo_log)

    def _save(self, table: StateTable, slots: Slots) -> None:
        """Save rows of the timers' table that the running call is about to change."""
        if self._undo_log.is_kept:
            save_rows(table, slots, self._undo_log)

    def _run(
        self, rows: pa.RecordBatch, slots: Slots, first_row: int, context: BatchContext, result: OperatorResult
    ) -> None:
        """Make a call for all rows; after a failure with dead letters, two calls with half the rows each."""
        distinct, groups = distinct_slots(slots, len(self._table.present))
        self._save_all(distinct)
        try:
            keys = self._table.keys_of(distinct)
            self._in_call(distinct, lambda: self._function.process(rows, keys, groups, self._context), result)
            return
        except USER_ERRORS as error:
            if not self._undo_log.is_kept:
                last_row = first_row + rows.num_rows - 1
                where = f"rows {first_row} to {last_row} of batch {context.batch}, subtask {context.subtask}"
                keys = shown_rows(self._table.keys_of(distinct[:1]))[0]
                more = f" and {len(distinct) - 1} more" if len(distinct) > 1 else ""
                reason = raised(self._spec.name, None, f"keys {keys!r}{more}, {where}", error)
                raise UserFunctionError(reason) from error
            self._undo_log.back_to(0)
            if rows.num_rows == 1:
                values = shown_rows(rows)[0]
                key = {name: values[name] for name in self._spec.key_columns}
                reason = raised(self._spec.name, key, where_of(context, first_row), error)
                result.bad.append(bad_row(self._spec.name, where_of(context, first_row), reason, values))
                return
        half = rows.num_rows // 2
        self._run(rows.slice(0, half), slots[:half], first_row, context, result)
        self._run(rows.slice(half), slots[half:], first_row + half, context, result)

    def _in_call(self, distinct: Slots, call: Callable[[], Any], result: OperatorResult) -> None:
        """Put out the output of a call, with the states and timers of distinct keys.

        Output of a call that may be undone is held until the call has succeeded.
        """
        keys = self._table.keys_of(distinct)
        for state in self._states:
            state.enter(keys, distinct, self._undo_log if self._undo_log.is_kept else None)
        if self._timers is not None:
            self._timers.enter(keys)
        output = self.new_output() if self._undo_log.is_kept else result.output
        for rows in fit_batches(call(), self._spec.schema):
            output.append(rows)
        some = np.zeros(len(distinct), dtype=np.bool_)
        for state in self._states:
            some |= state.some()
        self._table.present[distinct] = some
        if output is not result.output:
            for rows in output:
                result.output.append(rows)
            output.clear()
