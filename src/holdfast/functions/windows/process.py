"""`key_by(…, window(…)).process(function)`: a function of the rows of a whole window, called when it closes.

    ProcessFunction.process(rows, ctx)                  once a window: its rows, a list of named tuples
    BatchFunction.process(batch, keys, groups, ctx)     of many windows: their rows, their keys, each row's window

`ctx.key` and `keys` have the key columns with the window's bounds. A function sees each window once, so it has neither
states nor timers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from holdfast.availability import SnapshotAvailability
from holdfast.code_shipping import pickled
from holdfast.errors import USER_ERRORS, JobRefused, UserFunctionError, in_user_code
from holdfast.functions.operator import (
    BatchContext,
    OperatorInput,
    OperatorResult,
    OperatorSpec,
)
from holdfast.functions.process.declared import BatchFunction, Context, ProcessFunction, ProcessSpec, check_function
from holdfast.functions.process.of_subtask.broadcast import check_broadcasts
from holdfast.functions.process.shared.output import RowFitter, fit_batches, yielded
from holdfast.functions.process.shared.states import declared_states
from holdfast.functions.rows.bad_rows import bad_row, set_apart
from holdfast.functions.rows.calls import named_tuples, raised
from holdfast.functions.rows.times import to_datetime
from holdfast.functions.windows.row_windows import RowWindowsSpec
from holdfast.functions.windows.rows_operator import ClosingRows, WindowFinish
from holdfast.functions.windows.windowed import FINAL, Windowing
from holdfast.python_values import python_values, shown_rows
from holdfast.state.physical import Integers

ROWS_AT_ONCE_MAX = 1 << 17
"""Bound on the rows of windows that a `BatchFunction` gets together; a larger window is passed by itself."""


def process_spec(
    operator: str,
    inputs: tuple[OperatorInput, ...],
    function: ProcessFunction | BatchFunction,
    schema: pa.Schema,
    windowing: Windowing,
) -> OperatorSpec:
    """Make the operator of a user's function: by window if the keyed input, the first input, has a window."""
    keyed, *broadcast = inputs
    if keyed.window is None:
        return ProcessSpec(operator, keyed, function, schema, windowing.bad_records, tuple(broadcast))
    if broadcast:
        raise JobRefused(
            f"operator {operator!r}: process(broadcast=…) behind a window is not possible: key by columns alone, and "
            "use timers"
        )
    return WindowProcessSpec(operator, keyed, function, schema, windowing)


@dataclass(frozen=True)
class WindowProcessSpec(RowWindowsSpec):
    """Raises `SettingsError` or `JobRefused` when made. `schema`: of the rows that the function gives."""

    name: str
    input: OperatorInput
    function: ProcessFunction | BatchFunction
    schema: pa.Schema
    windowing: Windowing = FINAL

    def __post_init__(self) -> None:
        check_function(self.function)
        check_broadcasts(self.name, self.function, ())
        self.check_input()
        kind = type(self.function).__name__
        if declared_states(self.function) or hasattr(self.function, "on_timer"):
            raise JobRefused(
                f"operator {self.name!r}: {kind} has states or timers, but behind a window a function gets the rows of "
                "a whole window, once; key by columns alone to keep states"
            )

    @property
    def result_fields(self) -> list[pa.Field]:
        return list(self.schema)

    @property
    def output_schema(self) -> pa.Schema:
        return self.schema

    @property
    def output_window(self) -> None:
        return None

    def finish_of(self, subtask: int) -> WindowFinish:
        return FunctionFinish(self, Context(self.name, subtask))


class FunctionFinish(WindowFinish):
    """Calls a copy of the function with the rows of windows."""

    def __init__(self, spec: WindowProcessSpec, ctx: Context) -> None:
        self._spec = spec
        self._ctx = ctx
        self._function: Any = cloudpickle.loads(pickled(spec.function))
        self._fitter = RowFitter(spec.schema)
        self._row_of = named_tuples("Row", spec.seen_schema.names)
        self._key_of = named_tuples("Key", spec.key_columns)
        try:
            self._function.open(ctx)
        except USER_ERRORS as error:
            raise UserFunctionError(
                f"operator {spec.name!r}, subtask {ctx.subtask}: {type(self._function).__name__}.open() raised "
                f"{in_user_code(error)}"
            ) from error

    def is_snapshot_available(self) -> SnapshotAvailability:
        answer: SnapshotAvailability = self._function.is_snapshot_available()
        return answer

    def close(self) -> None:
        self._function.close()

    def finish(self, closing: ClosingRows, context: BatchContext, result: OperatorResult) -> None:
        rows, keys, groups = closing
        ctx = self._ctx
        ctx.batch_time = to_datetime(context.batch_time_us)
        ctx.watermark = None if context.watermark_us is None else to_datetime(context.watermark_us)
        if isinstance(self._function, ProcessFunction):
            rows, groups = self._representable(rows, groups, context, result)
        bounds = np.searchsorted(groups, np.arange(keys.num_rows + 1))
        if isinstance(self._function, ProcessFunction):
            for window in range(keys.num_rows):
                self._call(rows, keys, groups, bounds, (window, window + 1), context, result)
            return
        first = 0
        while first < keys.num_rows:
            stop = int(np.searchsorted(bounds, bounds[first] + ROWS_AT_ONCE_MAX, side="right")) - 1
            stop = min(keys.num_rows, max(stop, first + 1))
            self._call(rows, keys, groups, bounds, (first, stop), context, result)
            first = stop

    def _representable(
        self, rows: pa.RecordBatch, groups: Integers, context: BatchContext, result: OperatorResult
    ) -> tuple[pa.RecordBatch, Integers]:
        """Return the rows that can be Python objects, and their groups; the others are bad records."""
        pieces = set_apart(self._spec.name, rows, 0, self._spec.windowing.bad_records, context, result)
        if len(pieces) == 1 and pieces[0][1].num_rows == rows.num_rows:
            return rows, groups
        kept = [np.arange(first, first + piece.num_rows) for first, piece in pieces]
        numbers = np.concatenate(kept) if kept else np.empty(0, np.int64)
        return rows.take(pa.array(numbers)), groups[numbers]

    def _call(
        self,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch,
        groups: Integers,
        bounds: Integers,
        windows: tuple[int, int],
        context: BatchContext,
        result: OperatorResult,
    ) -> None:
        """Call the function for some windows. If the call fails, and bad rows are dead letters, call it for each half
        of the windows, down to a single window."""
        first, stop = windows
        start, end = int(bounds[first]), int(bounds[stop])
        part, own = rows.slice(start, end - start), keys.slice(first, stop - first)
        try:
            made = self._made(part, own, groups[start:end] - first)
            # Output of a call that may be tried again is held until the call has succeeded.
            for batch in made if self._spec.windowing.bad_records == "fail" else list(made):
                result.output.append(batch)
        except USER_ERRORS as error:
            key = shown_rows(own.slice(0, 1))[0]
            more = "" if stop == first + 1 else f" and {stop - first - 1} more"
            where = f"window{more} in batch {context.batch}, subtask {context.subtask}"
            reason = raised(self._spec.name, key, where, error)
            if self._spec.windowing.bad_records == "fail":
                raise UserFunctionError(reason) from error
            if stop == first + 1:
                result.bad.append(bad_row(self._spec.name, where, reason, {**key, "rows": part.num_rows}))
                return
            half = (first + stop) // 2
            self._call(rows, keys, groups, bounds, (first, half), context, result)
            self._call(rows, keys, groups, bounds, (half, stop), context, result)

    def _made(self, rows: pa.RecordBatch, keys: pa.RecordBatch, groups: Integers) -> Iterable[pa.RecordBatch]:
        if not isinstance(self._function, ProcessFunction):
            return fit_batches(self._function.process(rows, keys, groups, self._ctx), self._spec.schema)
        self._ctx.key = self._key_of([python_values(column)[0] for column in keys.columns])
        columns = [python_values(column) for column in rows.columns]
        made = self._function.process([self._row_of(row) for row in zip(*columns, strict=True)], self._ctx)
        out = [self._fitter.shape(item) for item in yielded(made)]
        return [self._fitter.batch(out)] if out else []
