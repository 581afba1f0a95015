"""`key_by(…, window(…)).aggregate(…)` as declared.

The state has a row for each key and pane (`declared`): the aggregates of `AggregateSpec`, with the pane as the last key
column. Its key groups are the key groups of the key alone, or of the pane if the window is the only key.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import SettingsError
from holdfast.functions.aggregates.declared import Aggregate, check_aggregates
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.operator import Combiner, NewTable, Operator, OperatorInput, TableSchema
from holdfast.functions.windows.declared import WINDOW_END, WINDOW_START, Window
from holdfast.functions.windows.sending import WindowCombiner
from holdfast.functions.windows.window_operator import WindowOperator
from holdfast.functions.windows.windowed import FINAL, WindowedSpec, Windowing
from holdfast.state.keys import grouped_by
from holdfast.state.table import StateTable


@dataclass(frozen=True)
class PaneSpec(AggregateSpec):
    """The aggregates of each key and pane."""

    spreads = False

    @property
    def key_schema(self) -> pa.Schema:
        keys = self.input.key_schema
        return keys if len(keys) == 1 else grouped_by(keys, len(keys) - 1)


@dataclass(frozen=True)
class WindowedAggregates(WindowedSpec):
    """Aggregates by windows of any kind. Raises `SettingsError` or `JobRefused` when made."""

    name: str
    input: OperatorInput
    aggregates: Mapping[str, Aggregate]
    windowing: Windowing = FINAL

    def __post_init__(self) -> None:
        check_aggregates(self.aggregates, "changes")
        for name in self.aggregates:
            if name in (WINDOW_START, WINDOW_END):
                raise SettingsError(f"aggregate {name!r} has the name of a bound of the window; rename it")
        self.check_input()
        _ = self.kept  # checks keys and aggregates

    @property
    @abstractmethod
    def kept(self) -> AggregateSpec:
        """The aggregates as they are kept."""

    @property
    def result_fields(self) -> list[pa.Field]:
        return [bound.output_field for bound in self.kept.bound]


@dataclass(frozen=True)
class WindowSpec(WindowedAggregates):
    """Aggregates by windows of a fixed size, kept by pane."""

    @property
    def window(self) -> Window:
        assert isinstance(self.input.window, Window), "declared with a window"
        return self.input.window

    @property
    def kept(self) -> AggregateSpec:
        panes = self.pane_keys
        schema = pa.schema([*self.input.schema, *panes[len(self.input.key_columns) :]])
        keys = OperatorInput(schema, tuple(field.name for field in panes))
        windowing = self.windowing
        return PaneSpec(self.name, keys, self.aggregates, "changes", windowing.bad_records, windowing.combine)

    def combiner(self, combine: bool, closed_us: int | None) -> Combiner:
        inner = self.kept.combiner(combine, closed_us)
        return WindowCombiner(self.window, closed_us, self.lateness_us, inner, self.to_one)

    @property
    def calls_no_user(self) -> bool:
        return True

    def table_schemas(self) -> dict[str, TableSchema]:
        return self.kept.table_schemas()

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return WindowOperator(self, max_parallelism, new_table)
