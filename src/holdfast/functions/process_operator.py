"""A subtask of a `ProcessFunction`: rows as named tuples, states as cells, output rows collected to Arrow.

    for each slice of the input: lookup ─► load new cells ─► for each row: process() ─► fitted output rows
    after the last row:          store the cells of all touched keys; a key without any value is absent

Invariants: rows are processed in the order of arrival; the table is written only after the last row; with dead
letters, a row whose call failed leaves no trace in cells or output. Does not own the transaction around it.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.functions.cells import Cells, Cursor, keyed
from holdfast.functions.operator import BatchContext, Operator, OperatorResult
from holdfast.functions.output import OutputMismatch, Row, RowFitter, yielded
from holdfast.functions.running import bad_row, batch_time, call_open, named_tuples, raised, where_of
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.process import Context, ProcessSpec

SLICE_ROWS = 1 << 13
"""Rows that are Python objects at one time."""


class ProcessOperator(Operator):
    def __init__(self, spec: "ProcessSpec", context: "Context", max_parallelism: int) -> None:
        self._spec = spec
        self._context = context
        self._table = StateTable(spec.key_schema, spec.value_schema, max_parallelism)
        self.tables = {"state": self._table}
        self._function = spec.copy_function()
        call_open(self._function, context)
        self._cursor = Cursor()
        self._cells = [Cells(spec.name, name, state, self._cursor) for name, state in spec.states.items()]
        for cells, (name, state) in zip(self._cells, spec.states.items(), strict=True):
            self._function.__dict__[name] = keyed(state, cells)
        self._fitter = RowFitter(spec.schema)
        self._row_of = named_tuples("Row", spec.input_schema.names)
        self._key_of = named_tuples("Key", spec.key_columns)

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(output=[])
        self._context.batch_time = batch_time(context)
        loaded = first_row = 0
        try:
            for _, rows in inputs:
                for start in range(0, rows.num_rows, SLICE_ROWS):
                    part = rows.slice(start, SLICE_ROWS)
                    slots = self._table.lookup(part)
                    touched = self._table.touched()
                    for cells in self._cells:
                        cells.load(self._table, touched[loaded:])
                    loaded = len(touched)
                    self._run(part, slots.tolist(), first_row + start, context, result)
                first_row += rows.num_rows
            self._store()
        finally:
            for cells in self._cells:
                cells.kept.clear()
        return result

    def close(self) -> None:
        self._function.close()

    def _keys(self, columns: list[list[Any]]) -> Iterable[Any]:
        """`ctx.key` of each row: the value, or a named tuple of several."""
        places = [self._spec.input_schema.get_field_index(name) for name in self._spec.key_columns]
        if len(places) == 1:
            return columns[places[0]]
        return map(self._key_of, zip(*(columns[place] for place in places), strict=True))

    def _run(
        self, part: pa.RecordBatch, slots: list[int], first_row: int, context: BatchContext, result: OperatorResult
    ) -> None:
        process, cursor, ctx = self._function.process, self._cursor, self._context
        may_undo = self._spec.bad_records == "dead_letter"
        accept = self._fitter.fit if may_undo else self._fitter.shape
        out: list[Row] = []
        starts: list[int] = []
        old: list[Any] = []
        columns = [column.to_pylist() for column in part.columns]
        rows = map(self._row_of, zip(*columns, strict=True))
        for slot, row, key in zip(slots, rows, self._keys(columns), strict=True):
            cursor.slot, ctx.key = slot, key
            starts.append(len(out))
            if may_undo:
                old = [cells.kept[slot] for cells in self._cells]
            try:
                for item in yielded(process(row, ctx)):
                    out.append(accept(item))
            except Exception as error:  # user code may raise anything
                self._failed(part, len(starts) - 1, first_row, context, result, error)
                del out[starts[-1] :]
                for cells, kept in zip(self._cells, old, strict=True):
                    cells.kept[slot] = kept
        if out:
            try:
                result.output.append(self._fitter.batch(out))
            except OutputMismatch as error:
                self._failed(part, bisect_right(starts, error.row) - 1, first_row, context, result, error)

    def _failed(
        self,
        part: pa.RecordBatch,
        number: int,
        first_row: int,
        context: BatchContext,
        result: OperatorResult,
        error: Exception,
    ) -> None:
        """Raise, or set the row aside."""
        values = part.slice(number, 1).to_pylist()[0]
        key = {name: values[name] for name in self._spec.key_columns}
        reason = raised(self._spec.name, key, where_of(context, first_row + number), error)
        if self._spec.bad_records == "fail":
            raise UserFunctionError(reason) from error
        result.bad.append(bad_row(self._spec.name, context, first_row + number, reason, values))

    def _store(self) -> None:
        slots = self._table.touched()
        some = np.zeros(len(slots), dtype=np.bool_)
        for cells in self._cells:
            some |= cells.store(self._table, slots)
        self._table.present[slots] = some
