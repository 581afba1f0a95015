"""`key_by(…, window(…)).top(n, by=…)`: the rows of each window that are the greatest by a column.

Output: the key columns with the window's bounds, then the other columns of the input; for each window in order. Nulls
come after all values, NaN is above every number. With `ties` as RANK() <= n in SQL, else as ROW_NUMBER() <= n, where
the row that came first wins.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.functions.operator import (
    BatchContext,
    Combiner,
    OperatorInput,
    OperatorResult,
)
from holdfast.functions.ranking.greatest import check_order, check_top
from holdfast.functions.rows.greatest import greatest
from holdfast.functions.rows.grouping import distinct_keys
from holdfast.functions.windows.row_windows import RowWindowsSpec
from holdfast.functions.windows.rows_operator import ClosingRows, WindowFinish
from holdfast.functions.windows.sending import PANE_FIELD
from holdfast.functions.windows.windowed import FINAL, Windowing


@dataclass(frozen=True)
class TopSpec(RowWindowsSpec):
    """Raises `JobRefused` when made."""

    name: str
    input: OperatorInput
    n: int
    by: str
    ties: bool = False
    least: bool = False
    windowing: Windowing = FINAL

    def __post_init__(self) -> None:
        check_top(self.n, self.by)
        self.check_input()
        check_order(self.name, self.by, self.seen_schema)

    @property
    def result_fields(self) -> list[pa.Field]:
        return [field for field in self.seen_schema if field.name not in self.key_columns]

    def pane_combiner(self) -> Combiner:
        return WindowTopCombiner(self)

    def finish_of(self, subtask: int) -> WindowFinish:
        return TopFinish(self)


class WindowTopCombiner(Combiner):
    """Sends those of the given rows that may be among a window's greatest: the greatest of each pane."""

    def __init__(self, spec: TopSpec) -> None:
        self._spec = spec
        self._keys = pa.schema([*spec.input.key_schema, PANE_FIELD])

    def take(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        spec = self._spec
        count, groups = distinct_keys(rows, self._keys)
        if count * spec.n * 2 > rows.num_rows:
            return [(0, rows)]
        kept = np.sort(greatest(rows.column(spec.by), groups, spec.n, spec.ties, spec.least))
        return [(0, rows.take(pa.array(kept)))]

    def finish(self) -> list[tuple[int, pa.RecordBatch]]:
        return []


class TopFinish(WindowFinish):
    """Puts out the greatest rows of windows."""

    def __init__(self, spec: TopSpec) -> None:
        self._spec = spec

    def finish(self, closing: ClosingRows, context: BatchContext, result: OperatorResult) -> None:
        rows, keys, groups = closing
        spec = self._spec
        kept = greatest(rows.column(spec.by), groups, spec.n, spec.ties, spec.least)
        names = [field.name for field in spec.result_fields]
        columns = [*keys.take(pa.array(groups[kept])).columns, *rows.select(names).take(pa.array(kept)).columns]
        result.output.append(pa.RecordBatch.from_arrays(columns, schema=spec.output_schema))
