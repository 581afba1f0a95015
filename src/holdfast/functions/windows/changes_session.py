"""`key_by(…, session_window(…)).aggregate(…)` over changes: the rows of a session are kept until it closes.

A row that goes may divide a session in two, and totals of a session cannot be divided. So the aggregates are made, when
a session closes, of the rows that are left (`live_rows`), and there are only final rows.
"""

from dataclasses import dataclass

import pyarrow as pa

from holdfast.functions.changes.aggregate import ChangesAggregateOperator, ChangesAggregateSpec
from holdfast.functions.operator import BatchContext, OperatorInput, OperatorResult
from holdfast.functions.windows.row_windows import RowWindowsSpec
from holdfast.functions.windows.rows_operator import ClosingRows, WindowFinish
from holdfast.functions.windows.session import SessionAggregating
from holdfast.functions.windows.session_chains import SESSION
from holdfast.ids import FIRST_BATCH
from holdfast.state.table import StateTable


@dataclass(frozen=True)
class ChangesSessionSpec(RowWindowsSpec, SessionAggregating):
    """Raises `SettingsError` or `JobRefused` when made."""

    @property
    def kept(self) -> ChangesAggregateSpec:
        schema = self.seen_schema.append(pa.field(SESSION, pa.int64()))
        return ChangesAggregateSpec(self.name, OperatorInput(schema, (SESSION,)), self.aggregates, "changes")

    @property
    def calls_no_user(self) -> bool:
        return True

    def finish_of(self, subtask: int) -> WindowFinish:
        return AggregatesFinish(self)


class AggregatesFinish(WindowFinish):
    """Puts out the aggregates of sessions."""

    def __init__(self, spec: ChangesSessionSpec) -> None:
        self._schema, self._kept = spec.output_schema, spec.kept

    def finish(self, closing: ClosingRows, context: BatchContext, result: OperatorResult) -> None:
        rows, keys, groups = closing
        aggregates = ChangesAggregateOperator(self._kept, 1, StateTable)
        for table in aggregates.tables.values():
            table.begin(FIRST_BATCH)
        aggregates.apply([rows.append_column(self._kept.key_schema.field(0), pa.array(groups))], None)
        for of_piece, columns in aggregates.results_of(aggregates.tables["state"].touched()):
            bounds = keys.take(of_piece.column(0))
            result.output.append(pa.RecordBatch.from_arrays([*bounds.columns, *columns], schema=self._schema))
