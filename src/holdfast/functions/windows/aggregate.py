"""`key_by(…, window(…)).aggregate(…)` as declared.

The state has one row for each key and pane (`declared`): the aggregates of `AggregateSpec`, with the pane as the last
key column. Its key groups are those of the key alone, or of the pane where the window is the only key.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates.declared import Aggregate, AggregateSpec, BadRecords, check_aggregates
from holdfast.functions.operator import Combiner, NewTable, Operator, OperatorInput, OperatorSpec, TableSchema
from holdfast.functions.windows.declared import (
    PANE,
    WINDOW_END,
    WINDOW_START,
    AnyWindow,
    SessionWindow,
    Window,
    bounds_type,
)
from holdfast.functions.windows.sending import PANE_FIELD, WindowSender
from holdfast.functions.windows.window_operator import WindowOperator
from holdfast.state.keys import grouped_by
from holdfast.state.table import StateTable

WindowEmit = Literal["final", "changes"]
LatePolicy = Literal["drop", "dead_letter"]


@dataclass(frozen=True)
class PaneSpec(AggregateSpec):
    """The aggregates of each key and pane."""

    @property
    def key_schema(self) -> pa.Schema:
        keys = self.input.key_schema
        return keys if len(keys) == 1 else grouped_by(keys, len(keys) - 1)


def check_windowed(aggregates: Mapping[str, Aggregate], window: AnyWindow, emit: str, late: str) -> None:
    """What can be known before the schema is: raises `SettingsError`."""
    if emit == "changes" and isinstance(window, SessionWindow):
        raise SettingsError(
            f"emit='changes' is not allowed behind {window}: a session that grows or joins another one gets other "
            "bounds, so that no sink could find the row it replaces; take emit='final' (default)"
        )
    if emit not in ("final", "changes"):
        raise SettingsError(f"emit={emit!r} is not allowed behind a window: 'final' (default) or 'changes'")
    if late not in ("drop", "dead_letter"):
        raise SettingsError(f"late={late!r} is not allowed: 'drop' (counted) or 'dead_letter'")
    check_aggregates(aggregates, "changes")
    for name in aggregates:
        if name in (WINDOW_START, WINDOW_END):
            raise SettingsError(f"aggregate {name!r} has the name of a bound of the window; rename it")


@dataclass(frozen=True)
class WindowedSpec(OperatorSpec):
    """What windows of all kinds share. Raises `SettingsError` or `JobRefused` when made.

    Parameters
    ----------
    emit : {"final", "changes"}
        One row for each key and window, when it closes; or one in each batch that changed it, while it is open.
    lateness_us : int
        For so much longer than its end a window stays open.
    late : {"drop", "dead_letter"}
        What becomes of a row whose windows are closed; it is counted in any case.
    """

    name: str
    input: OperatorInput
    aggregates: Mapping[str, Aggregate]
    emit: WindowEmit = "final"
    bad_records: BadRecords = "fail"
    combine: bool = True
    lateness_us: int = 0
    late: LatePolicy = "drop"

    def __post_init__(self) -> None:
        self._check_input()
        check_windowed(self.aggregates, self.window, self.emit, self.late)
        _ = self.panes  # checks keys and aggregates

    def _check_input(self) -> None:
        schema, window = self.input.schema, self.window
        place = schema.get_field_index(window.column)
        if place < 0 or not pa.types.is_timestamp(schema.field(place).type):
            found = f"has type {schema.field(place).type}" if place >= 0 else f"is not among {', '.join(schema.names)}"
            raise JobRefused(f"operator {self.name!r}: {window}: column {window.column!r} {found}; give a timestamp")
        for column in (WINDOW_START, WINDOW_END):
            if column in self.input.key_columns:
                raise JobRefused(
                    f"operator {self.name!r}: key_by has a column {column!r} and {window}, whose output has a column "
                    "of that name too; rename the column before key_by"
                )
        if self.emit == "final" and self.input.event_time is None:
            raise JobRefused(
                f"operator {self.name!r}: {window} with emit='final' needs a watermark, without which no window would "
                "ever close: add .with_watermark(column, delay) right after read(), or take emit='changes'"
            )

    @property
    @abstractmethod
    def window(self) -> AnyWindow:
        """The window among the keys."""

    @property
    @abstractmethod
    def panes(self) -> AggregateSpec:
        """The aggregates as they are kept."""

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def key_columns(self) -> tuple[str, ...]:
        place = self.input.window_place
        return (*self.input.key_columns[:place], WINDOW_START, WINDOW_END, *self.input.key_columns[place:])

    @property
    def declared_keys(self) -> tuple[str, ...]:
        place = self.input.window_place
        return (*self.input.key_columns[:place], str(self.window), *self.input.key_columns[place:])

    @property
    def bounds_type(self) -> pa.DataType:
        """The type of `window_start` and `window_end`."""
        return bounds_type(self.input.schema.field(self.window.column).type)

    @property
    def output_schema(self) -> pa.Schema:
        keys = {field.name: field for field in self.input.key_schema}
        keys |= {name: pa.field(name, self.bounds_type, nullable=False) for name in (WINDOW_START, WINDOW_END)}
        fields = [keys[name] for name in self.key_columns]
        return pa.schema([*fields, *(bound.output_field for bound in self.panes.bound)])

    @property
    def is_timed(self) -> bool:
        return True


@dataclass(frozen=True)
class WindowSpec(WindowedSpec):
    """Aggregates by windows of a fixed size."""

    @property
    def window(self) -> Window:
        assert isinstance(self.input.window, Window), "declared with a window"
        return self.input.window

    @property
    def panes(self) -> AggregateSpec:
        """The aggregates of each key and pane."""
        schema = self.input.schema.append(PANE_FIELD)
        keys = OperatorInput(schema, (*self.input.key_columns, PANE))
        return PaneSpec(self.name, keys, self.aggregates, "changes", self.bad_records, self.combine)

    def combiner(self, combine: bool, closed_us: int | None) -> Combiner:
        inner = self.panes.combiner(combine, closed_us)
        return WindowSender(self.window, closed_us, self.lateness_us, inner)

    def table_schemas(self) -> dict[str, TableSchema]:
        return self.panes.table_schemas()

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return WindowOperator(self, max_parallelism, new_table)
