"""A condition on two rows that would meet otherwise: only pairs for which it is true do."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRecord, JobRefused
from holdfast.expressions.declared import SqlExpression
from holdfast.expressions.failing import in_parts
from holdfast.expressions.nodes import ExpressionRefused
from holdfast.functions.joins.bounds import LEFT, RIGHT, SIDES
from holdfast.functions.joins.meeting import Pairs
from holdfast.functions.joins.output import SideRows
from holdfast.functions.operator import BatchContext, OperatorInput, OperatorResult
from holdfast.functions.rows.bad_rows import bad_row
from holdfast.functions.rows.columns import BoolArray
from holdfast.functions.rows.pieces import rows_at_once
from holdfast.python_values import shown_rows

if TYPE_CHECKING:
    from holdfast.functions.joins.declared import JoinSpec


def name_in_pair(side: int, column: str) -> str:
    """The name of a side's column in a condition."""
    return f"{SIDES[side]}.{column}"


def bound_condition(declared: SqlExpression, operator: str, sides: tuple[OperatorInput, OperatorInput]) -> Any:
    """Return a condition over pairs of rows. Raises `JobRefused`."""
    schema = pa.schema(
        [field.with_name(name_in_pair(side, field.name)) for side in (LEFT, RIGHT) for field in sides[side].schema]
    )
    try:
        made = declared.bound(schema)
    except ExpressionRefused as error:
        raise JobRefused(f"operator {operator!r}: join(on={declared}): {error}") from error
    if made.type != pa.bool_():
        raise JobRefused(f"operator {operator!r}: join(on={declared}): is of type {made.type}; expected a boolean")
    return made


class PairCondition:
    """The condition of a join; call `begin` in each batch. Pairs for which it fails are bad records, and do not meet.

    In a join that fails for bad records the batch does.
    """

    def __init__(self, spec: "JoinSpec") -> None:
        self._name = spec.name
        self._bad_records = spec.bad_records
        self._condition = spec.condition
        reads = {} if spec.condition is None else dict.fromkeys(spec.condition.reads)
        self._read: tuple[Mapping[str, str], ...] = tuple(
            {name: made for name in spec.sides[side].schema.names if (made := name_in_pair(side, name)) in reads}
            for side in (LEFT, RIGHT)
        )
        self._result = OperatorResult([])
        self._where = ""

    def begin(self, result: OperatorResult, context: BatchContext) -> None:
        """Bad records go into `result` from now on."""
        self._result = result
        self._where = f"batch {context.batch}, subtask {context.subtask}"

    @property
    def is_there(self) -> bool:
        return self._condition is not None

    def true_pairs(self, left: SideRows, right: SideRows, pairs: Pairs) -> Pairs:
        """Return the pairs that meet."""
        if self._condition is None or not len(pairs.left):
            return pairs
        at_once = rows_at_once(left.row_bytes + right.row_bytes)
        parts = [slice(start, start + at_once) for start in range(0, len(pairs.left), at_once)]
        true = np.concatenate([self._true(left, right, pairs.left[each], pairs.right[each]) for each in parts])
        return Pairs(pairs.left[true], pairs.right[true])

    def _true(self, left: SideRows, right: SideRows, of_left: Any, of_right: Any) -> BoolArray:
        rows = self._rows(left.take(of_left), right.take(of_right))
        found, failed = in_parts(rows, self._condition)
        made = np.zeros(rows.num_rows, np.bool_)
        values = [np.asarray(pc.fill_null(each, False)) for each in found]
        made[np.delete(np.arange(rows.num_rows), list(failed))] = np.concatenate(values) if values else []
        for row, reason in failed.items():
            self._put_aside(rows.slice(row, 1), f"join(on={self._condition}) failed: {reason}")
        return made

    def _rows(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        sides = zip((left, right), self._read, strict=True)
        columns = {made: rows.column(name) for rows, read in sides for name, made in read.items()}
        if not columns:  # A constant is asked of each pair as well.
            columns = {"": pa.nulls(left.num_rows)}
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def _put_aside(self, row: pa.RecordBatch, reason: str) -> None:
        (shown,) = shown_rows(row)
        if self._bad_records == "fail":
            raise BadRecord(
                f"operator {self._name!r}, {self._where}: {reason}; the rows that would meet have {shown}. Correct "
                "them, or keep such pairs apart with Job(bad_records='dead_letter')"
            )
        self._result.bad.append(bad_row(self._name, self._where, f"operator {self._name!r}: {reason}", shown))
