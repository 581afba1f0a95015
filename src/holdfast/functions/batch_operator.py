"""A subtask of a `BatchFunction`: rows as Arrow batches, states as arrays with one entry per distinct key.

Invariants: rows are processed in the order of arrival; a key without any value is absent. With dead letters, a call
that raises is undone and its rows are halved until single rows are to blame, so a function may see rows again
whose first call was undone. Does not own the transaction around it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.errors import UserFunctionError
from holdfast.functions import kernels
from holdfast.functions.columns import AnyArray, BoolArray, IntArray, column_array, object_array, validity
from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorResult
from holdfast.functions.output import fit_batches
from holdfast.functions.running import bad_row, batch_time, call_open, raised, where_of
from holdfast.functions.states import State, ValueState
from holdfast.functions.values import Misfit
from holdfast.state.physical import values_of
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.process import Context, ProcessSpec


class ArrayState(ValueState):
    """What stands in a declared `ValueState`'s place: entries of the distinct keys of the current call."""

    def __init__(self, operator: str, name: str, declared: ValueState, table: StateTable) -> None:
        super().__init__(declared.type, declared.default)
        self._operator = operator
        self._name = name
        self._table = table
        self._codec = declared.codec()
        kept = self._codec.put(declared.default)
        self._default: pa.Scalar | None = None if kept is None else pa.scalar(kept, self._codec.column_type)
        self.slots: IntArray = np.zeros(0, dtype=np.int64)

    def values(self) -> Any:
        column = self._table.column(self._name)
        array = column_array(column.values[self.slots], column.valid[self.slots], self._codec.column_type)
        if self._default is not None and array.null_count:
            array = _fill(array, self._default)
        get = self._codec.get
        return array if self.type is not None or get is None else [get(kept) for kept in array.to_pylist()]

    def update(self, value: Any) -> None:
        array = self._fitted(value)
        if len(array) != len(self.slots):
            raise self._misfit(
                f"found {len(array)} values, expected one for each of the {len(self.slots)} distinct keys"
            )
        column = self._table.column(self._name)
        mask = validity(array)
        is_object = column.values.dtype == object
        column.values[self.slots] = object_array(array.to_pylist()) if is_object else values_of(array)
        column.valid[self.slots] = mask if len(mask) else True

    def clear(self) -> None:
        self._table.column(self._name).valid[self.slots] = False

    def _fitted(self, value: Any) -> pa.Array:
        """Numbers are cast where nothing is lost, other arrays must have the type; lists are checked by value."""
        kind = self._codec.column_type
        if isinstance(value, pa.ChunkedArray):
            value = value.combine_chunks()
        try:
            if self.type is not None and isinstance(value, np.ndarray) and value.dtype != object:
                value = pa.array(value)
            if self.type is not None and isinstance(value, pa.Array):
                return value if value.type == kind else _cast(value, kind)
            return pa.array([self._codec.put(item) for item in value], type=kind)
        except (pa.ArrowException, Misfit, TypeError) as error:
            raise self._misfit(str(error)) from error

    def _misfit(self, problem: str) -> UserFunctionError:
        kind = "any msgpack-able object" if self.type is None else str(self.type)
        return UserFunctionError(f"operator {self._operator!r}: state {self._name!r} of type {kind}: {problem}")


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    numbers = (pa.types.is_integer, pa.types.is_floating)
    if array.null_count == len(array) or all(any(test(one) for test in numbers) for one in (array.type, kind)):
        return array.cast(kind) if array.null_count < len(array) else pa.nulls(len(array), kind)
    raise TypeError(f"found an array of {array.type}, expected {kind}; cast it")


def _fill(array: pa.Array, default: pa.Scalar) -> pa.Array:
    if pa.types.is_nested(array.type):
        plain = default.as_py()
        return pa.array([plain if value is None else value for value in array.to_pylist()], type=array.type)
    return array.fill_null(default)


@dataclass(frozen=True)
class _Saved:
    """The rows of some slots, to undo one call."""

    slots: IntArray
    present: BoolArray
    columns: list[tuple[AnyArray, BoolArray]]


class BatchOperator(Operator):
    def __init__(self, spec: "ProcessSpec", context: "Context", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._context = context
        self._table = new_table(spec.key_schema, spec.value_schema, max_parallelism)
        self.tables = {"state": self._table}
        self._function = spec.copy_function()
        call_open(self._function, context)
        self._states = [self._bind(name, state) for name, state in spec.states.items()]
        self._numbers: IntArray = np.zeros(0, dtype=np.int64)

    def _bind(self, name: str, state: State) -> ArrayState:
        if not isinstance(state, ValueState):
            raise TypeError(f"{state.kind} in a BatchFunction")
        bound = ArrayState(self._spec.name, name, state, self._table)
        self._function.__dict__[name] = bound
        return bound

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(output=[])
        self._context.batch_time = batch_time(context)
        first_row = 0
        for _, rows in inputs:
            if rows.num_rows:
                self._run(rows, self._table.lookup(rows), first_row, context, result)
            first_row += rows.num_rows
        return result

    def close(self) -> None:
        self._function.close()

    def _run(
        self, rows: pa.RecordBatch, slots: IntArray, first_row: int, context: BatchContext, result: OperatorResult
    ) -> None:
        """One call; after a failure with dead letters, two calls with half the rows each."""
        distinct, groups = self._group(slots)
        saved = self._save(distinct) if self._spec.bad_records == "dead_letter" else None
        try:
            result.output.extend(self._call(rows, distinct, groups))
            return
        except Exception as error:  # user code may raise anything
            if saved is None:
                last_row = first_row + rows.num_rows - 1
                where = f"rows {first_row} to {last_row} of batch {context.batch}, subtask {context.subtask}"
                keys = self._table.keys_of(distinct[:1]).to_pylist()[0]
                more = f" and {len(distinct) - 1} more" if len(distinct) > 1 else ""
                reason = raised(self._spec.name, None, f"keys {keys!r}{more}, {where}", error)
                raise UserFunctionError(reason) from error
            self._put_back(saved)
            if rows.num_rows == 1:
                values = rows.to_pylist()[0]
                key = {name: values[name] for name in self._spec.key_columns}
                reason = raised(self._spec.name, key, where_of(context, first_row), error)
                result.bad.append(bad_row(self._spec.name, context, first_row, reason, values))
                return
        half = rows.num_rows // 2
        self._run(rows.slice(0, half), slots[:half], first_row, context, result)
        self._run(rows.slice(half), slots[half:], first_row + half, context, result)

    def _group(self, slots: IntArray) -> tuple[IntArray, IntArray]:
        """The distinct slots in order of first appearance, and for each row the index of its own."""
        if len(self._numbers) < len(self._table.present):
            self._numbers = np.full(len(self._table.present), -1, dtype=np.int64)
        groups = np.empty(len(slots), dtype=np.int64)
        distinct = np.empty(len(slots), dtype=np.int64)
        count = kernels.number_keys(slots, self._numbers, groups, distinct)
        return distinct[:count], groups

    def _call(self, rows: pa.RecordBatch, distinct: IntArray, groups: IntArray) -> list[pa.RecordBatch]:
        for state in self._states:
            state.slots = distinct
        produced = self._function.process(rows, self._table.keys_of(distinct), groups, self._context)
        batches = fit_batches(produced, self._spec.schema)
        some = np.zeros(len(distinct), dtype=np.bool_)
        for name in self._spec.states:
            some |= self._table.column(name).valid[distinct]
        self._table.present[distinct] = some
        return batches

    def _save(self, slots: IntArray) -> _Saved:
        columns = [self._table.column(name).gather(slots) for name in self._spec.states]
        return _Saved(slots, self._table.present[slots], columns)

    def _put_back(self, saved: _Saved) -> None:
        self._table.present[saved.slots] = saved.present
        for name, (values, valid) in zip(self._spec.states, saved.columns, strict=True):
            self._table.column(name).scatter(saved.slots, values, valid)
