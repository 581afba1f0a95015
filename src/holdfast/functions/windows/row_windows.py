"""Operators that keep the rows of windows until they close, whatever the kind of window."""

from abc import abstractmethod
from typing import ClassVar

import pyarrow as pa

from holdfast.functions.operator import Combiner, NewTable, Operator, TableSchema
from holdfast.functions.windows.declared import SessionWindow, Window
from holdfast.functions.windows.rows_operator import WindowFinish, WindowRowsOperator, rows_schemas
from holdfast.functions.windows.sending import SessionCombiner, WindowCombiner
from holdfast.functions.windows.session_rows_operator import FIRST, PLACE, SessionRowsOperator, session_rows_schemas
from holdfast.functions.windows.windowed import WindowedSpec
from holdfast.schema import CHANGE_TYPE, StreamKind
from holdfast.state.table import StateTable


class RowWindowsSpec(WindowedSpec):
    """An operator that makes its output of all rows of each window; over changes, of the rows that are left."""

    takes: ClassVar[tuple[StreamKind, ...]] = ("append", "changes")

    @property
    def takes_back(self) -> bool:
        """True if rows may go."""
        return self.input.kind != "append"

    @property
    def seen_schema(self) -> pa.Schema:
        """The columns of the rows of which the output is made."""
        left_out = CHANGE_TYPE if self.takes_back else None
        return pa.schema([field for field in self.input.schema if field.name != left_out])

    def check_input(self) -> None:
        super().check_input()
        if self.takes_back:
            from holdfast.functions.windows.live_rows import check_changes  # most jobs need none of it

            check_changes(self)

    @abstractmethod
    def finish_of(self, subtask: int) -> WindowFinish:
        """Make the part that turns the rows of windows into output."""

    def pane_combiner(self) -> Combiner | None:
        """Return the combiner of rows with panes; None: they are sent unchanged, as rows of sessions always are."""
        return None

    def combiner(self, combine: bool, closed_us: int | None) -> Combiner:
        if isinstance(self.window, SessionWindow):
            return SessionCombiner(not self.input.key_columns)
        assert isinstance(self.window, Window)
        combines = combine and self.windowing.combine and not self.takes_back
        inner = self.pane_combiner() if combines else None
        return WindowCombiner(self.window, closed_us, self.lateness_us, inner, self.to_one)

    def table_schemas(self) -> dict[str, TableSchema]:
        return session_rows_schemas(self) if isinstance(self.window, SessionWindow) else rows_schemas(self)

    def described_tables(self) -> dict[str, TableSchema]:
        if not isinstance(self.window, SessionWindow):
            return self.table_schemas()
        return {
            name: TableSchema(keys, pa.schema([field for field in values if field.name not in (PLACE, FIRST)]))
            for name, (keys, values) in self.table_schemas().items()
        }

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        kind = SessionRowsOperator if isinstance(self.window, SessionWindow) else WindowRowsOperator
        finish = self.finish_of(subtask)
        if self.takes_back:
            from holdfast.functions.windows.live_rows import LiveRows  # most jobs need none of it

            finish = LiveRows(self, finish)
        return kind(self, finish, max_parallelism, new_table)
