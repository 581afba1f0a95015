"""The operator of `KeyedStream.aggregate`: its checks against its input, its tables and its output."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates.combining import AggregateCombiner
from holdfast.functions.aggregates.declared import (
    EXPECTED,
    Aggregate,
    BoundAggregate,
    Emit,
    check_aggregates,
    fits,
    is_plain,
)
from holdfast.functions.aggregates.large_sets import count_column, values_table
from holdfast.functions.aggregates.operator import AggregateOperator
from holdfast.functions.operator import Combiner, NewTable, Operator, OperatorInput, OperatorSpec, TableSchema
from holdfast.functions.rows.policies import BadRecords
from holdfast.state.table import StateTable


@dataclass(frozen=True)
class AggregateSpec(OperatorSpec):
    """`KeyedStream.aggregate` as declared. Raises `SettingsError` or `JobRefused` when made.

    Parameters
    ----------
    aggregates : mapping
        Output name → aggregate, in output order.
    emit : {"changes", "every"}
        `changes`: at the end of a batch, a row for each key that it touched, in order of first touch. `every`: a row
        for each input row.
    bad_records : {"fail", "dead_letter"}
        The treatment of a row whose sum overflows.
    combine : bool
        With `emit="changes"`: whether senders may combine the rows of a key before they send them.
    """

    name: str
    input: OperatorInput
    aggregates: Mapping[str, Aggregate]
    emit: Emit = "changes"
    bad_records: BadRecords = "fail"
    combine: bool = True

    spreads: ClassVar[bool] = True
    """True if large sets become rows of their own. The sets of windows are merged with each other, so they do not."""

    def __post_init__(self) -> None:
        check_aggregates(self.aggregates, self.emit)
        if self.bad_records not in ("fail", "dead_letter"):
            raise SettingsError(f"bad_records is {self.bad_records!r}; allowed are 'fail' and 'dead_letter'")
        for column in self.input.key_columns:
            self._field(column, "its key")
        for name, aggregate in self.aggregates.items():
            self._check(name, aggregate)

    def _field(self, column: str, user: str) -> pa.Field:
        found = self.input.schema.get_all_field_indices(column)
        if len(found) == 1:
            return self.input.schema.field(found[0])
        what = "there is no such column" if not found else f"there are {len(found)} columns of that name"
        raise JobRefused(
            f"operator {self.name!r}: {user} reads column {column!r}, but {what} in its input "
            f"({', '.join(self.input.schema.names)})"
        )

    def _check(self, name: str, aggregate: Aggregate) -> None:
        if name in self.key_columns:
            raise JobRefused(f"operator {self.name!r}: aggregate {name!r} has the name of a key column; rename it")
        if aggregate.column is not None:
            kind = self._field(aggregate.column, f"aggregate {name!r}").type
            if not fits(aggregate.function, kind):
                raise JobRefused(
                    f"operator {self.name!r}: aggregate {name!r} is {aggregate}, and column {aggregate.column!r} has "
                    f"type {kind}; expected {EXPECTED[aggregate.function]}: cast the column before key_by"
                )
        if aggregate.other is not None:
            self._check_other(name, aggregate, self._field(aggregate.other, f"aggregate {name!r}").type)
        bound = self._bind(name, aggregate)
        counts = [count_column(bound)] if aggregate.function == "count_distinct" else []
        for field in [*bound.state_fields(), *counts]:
            if field.name in self.key_columns:
                raise JobRefused(
                    f"operator {self.name!r}: aggregate {name!r} keeps state named {field.name!r}, which is also a key "
                    "column; rename one of them"
                )

    def _check_other(self, name: str, aggregate: Aggregate, kind: pa.DataType) -> None:
        condition = aggregate.function == "count"
        if not (pa.types.is_boolean(kind) if condition else is_plain(kind)):
            expected = "boolean" if condition else "a type with an order"
            raise JobRefused(
                f"operator {self.name!r}: aggregate {name!r} is {aggregate}, and column {aggregate.other!r} has type "
                f"{kind}; expected {expected}"
            )

    @property
    def bound(self) -> tuple[BoundAggregate, ...]:
        """The aggregates with their types, in output order."""
        return tuple(self._bind(name, aggregate) for name, aggregate in self.aggregates.items())

    def _bind(self, name: str, aggregate: Aggregate) -> BoundAggregate:
        kind = self.input.schema.field(aggregate.column).type if aggregate.column else pa.int64()
        other = None if aggregate.other is None else self.input.schema.field(aggregate.other).type
        return BoundAggregate(name, aggregate, kind, other)

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def key_schema(self) -> pa.Schema:
        return self.input.key_schema

    @property
    def value_schema(self) -> pa.Schema:
        return pa.schema([*self._state_fields, *(count_column(bound) for bound, _ in self._large_sets)])

    @property
    def _state_fields(self) -> list[pa.Field]:
        return [field for bound in self.bound for field in bound.state_fields()]

    @property
    def _large_sets(self) -> list[tuple[BoundAggregate, tuple[str, TableSchema]]]:
        """The aggregates whose large sets have a table each, and these tables."""
        found = ((bound, values_table(bound, self.key_schema)) for bound in self.bound if self.spreads)
        return [(bound, table) for bound, table in found if table is not None]

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.key_schema, *(bound.output_field for bound in self.bound)])

    @property
    def combined_schema(self) -> pa.Schema:
        """Columns of combined rows besides the key columns: all state, and the extremes of sums."""
        extremes = [each for bound in self.bound for each in bound.running_extremes]
        return pa.schema([*self._state_fields, *(field for bound in extremes for field in bound.state_fields())])

    def combiner(self, combine: bool = True, closed_us: int | None = None) -> Combiner | None:
        if (
            not combine
            or not self.combine
            or self.emit != "changes"
            or set(self.combined_schema.names) & set(self.key_columns)
        ):
            return None
        return AggregateCombiner(self)

    @property
    def calls_no_user(self) -> bool:
        return True

    def table_schemas(self) -> dict[str, TableSchema]:
        return {
            "state": TableSchema(self.key_schema, self.value_schema),
            **dict(table for _, table in self._large_sets),
        }

    def described_tables(self) -> dict[str, TableSchema]:
        return {"state": TableSchema(self.key_schema, pa.schema(self._state_fields))}

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return AggregateOperator(self, max_parallelism, new_table)
