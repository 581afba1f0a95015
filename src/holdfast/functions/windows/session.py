"""`key_by(…, session_window(…)).aggregate(…)` as declared; `session_operator` runs it."""

from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import SettingsError
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import Combiner, NewTable, Operator, OperatorInput, TableSchema
from holdfast.functions.windows.aggregate import WindowedAggregates
from holdfast.functions.windows.declared import PANE, SessionWindow
from holdfast.functions.windows.sending import PANE_FIELD, SessionCombiner
from holdfast.functions.windows.session_chains import BEFORE, END, SESSION
from holdfast.functions.windows.session_operator import NEWEST, SessionOperator
from holdfast.state.keys import grouped_by
from holdfast.state.table import StateTable


@dataclass(frozen=True)
class SessionAggregates(AggregateSpec):
    """The aggregates of each key and session, beside the session's end and the link to the session before."""

    spreads = False

    @property
    def key_schema(self) -> pa.Schema:
        keys = self.input.key_schema
        return grouped_by(keys, len(keys) - 1)

    @property
    def value_schema(self) -> pa.Schema:
        links = [pa.field(END, pa.int64()), pa.field(BEFORE, pa.int64())]
        return pa.schema([*super().value_schema, *links])


@dataclass(frozen=True)
class SessionAggregating(WindowedAggregates):
    """Aggregates by session. There are only final rows, because a row of a session that was merged later could not be
    taken back from a sink."""

    def __post_init__(self) -> None:
        if self.windowing.emit == "changes":
            raise SettingsError(
                f"emit='changes' is not allowed behind {self.window}: a session that grows or joins another session "
                "gets other bounds, so no sink could find the row to replace; use emit='final' (default)"
            )
        super().__post_init__()

    @property
    def window(self) -> SessionWindow:
        """The window among the keys."""
        assert isinstance(self.input.window, SessionWindow), "declared with a session"
        return self.input.window


@dataclass(frozen=True)
class SessionSpec(SessionAggregating):
    """Aggregates that are kept by session, and merged when sessions join."""

    @property
    def sent_schema(self) -> pa.Schema:
        """The rows as senders send them."""
        return self.input.schema if self.input.key_columns else self.input.schema.append(PANE_FIELD)

    @property
    def kept(self) -> AggregateSpec:
        schema = self.sent_schema.append(pa.field(SESSION, pa.int64()))
        keys = OperatorInput(schema, (*(self.input.key_columns or (PANE,)), SESSION))
        return SessionAggregates(self.name, keys, self.aggregates, "changes", self.windowing.bad_records, False)

    def combiner(self, combine: bool, closed_us: int | None) -> Combiner:
        return SessionCombiner(not self.input.key_columns)

    def table_schemas(self) -> dict[str, TableSchema]:
        keys = pa.schema(list(self.kept.key_schema)[:-1])
        return {**self.kept.table_schemas(), NEWEST: TableSchema(keys, pa.schema([pa.field(SESSION, pa.int64())]))}

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return SessionOperator(self, max_parallelism, new_table)
