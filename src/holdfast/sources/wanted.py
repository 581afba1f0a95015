"""The rows that readers want from a source: a source may skip groups of rows in which no row is wanted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.expressions.group_bounds import KnownGroups, ValueBounds
from holdfast.expressions.nodes import SqlSettings


@dataclass(frozen=True, eq=False)
class WantedRows:
    """Rows of a schema for which a condition is true. The readers ask the condition of each row themselves.

    `condition`: its tree.
    """

    condition: Any
    schema: pa.Schema
    settings: SqlSettings
    time: str | None = None
    """The column of event time: the newest time of skipped rows has to be known."""
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Columns that have a single value in all groups."""

    @cached_property
    def _pruning(self) -> Any:
        from holdfast.expressions.pruning import Pruning  # the parser, which most readers do without

        return Pruning(self.condition, self.schema, self.settings)

    @property
    def columns(self) -> set[str]:
        """The columns whose bounds tell whether rows are wanted."""
        found: set[str] = self._pruning.columns
        return found - self.constants.keys()

    def may_hold(self, bounds: Mapping[str, ValueBounds], rows: Any) -> Any:
        """Return which groups may hold a wanted row. `bounds`: of columns, by name; `rows`: of each group."""
        given = dict(bounds)
        for name, value in self.constants.items():
            values = pa.repeat(value, len(rows)) if value.is_valid else pa.nulls(len(rows), value.type)
            given[name] = ValueBounds(values, values, np.zeros(len(rows), np.int64) if value.is_valid else rows)
        return self._pruning.may_hold(KnownGroups(given, rows))

    def with_constants(self, values: Mapping[str, pa.Scalar]) -> "WantedRows":
        return replace(self, constants={**self.constants, **values})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_pruning"}

    def __str__(self) -> str:
        return f"where({self.condition.sql('spark')!r})"
