"""`key_by(…).over(by="at", rows=10, mean=hf.mean("price"))` as declared: its checks, its tables and its output.

state: key → number of the next row to wait, number of rows put out
rows:  (key, number) → the other columns of a row that waits for the watermark
last:  (key, place) → the values of a row that was put out, and is in the frames of later rows
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates.declared import Aggregate, BoundAggregate, check_aggregates
from holdfast.functions.operator import NewTable, Operator, OperatorInput, OperatorSpec, TableSchema
from holdfast.functions.over.frames import FUNCTIONS, ValueRead, read_by
from holdfast.functions.over.operator import GIVEN, LAST, NEXT, NUMBER, PLACE, ROWS, OverOperator
from holdfast.functions.rows.columns import has_kernels
from holdfast.functions.rows.policies import BadRecords
from holdfast.functions.windows.declared import AnyWindow
from holdfast.state.keys import grouped_by
from holdfast.state.table import StateTable

ROWS_MAX = 10_001
"""Bound on the rows of a frame. The values of so many rows are kept for each key, and each row reads them."""


@dataclass(frozen=True)
class OverSettings:
    """The arguments of `KeyedStream.over`. Raises `SettingsError` when made.

    `hidden`: columns of the input that are not in the output.
    """

    by: tuple[str, ...]
    rows: int
    aggregates: Mapping[str, Aggregate]
    bad_records: BadRecords
    hidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.by or not all(isinstance(name, str) and name for name in self.by):
            raise SettingsError(f"over(by={self.by!r}): expected the name of a timestamp column, or names of columns")
        if not isinstance(self.rows, int) or isinstance(self.rows, bool) or not 1 <= self.rows <= ROWS_MAX:
            raise SettingsError(f"over(rows={self.rows!r}): allowed is a number of rows from 1 to {ROWS_MAX:,}")
        if not self.aggregates:
            raise SettingsError("over() got nothing to compute; give at least one aggregate, such as n=hf.count()")
        check_aggregates(self.aggregates, "every")
        for name, aggregate in self.aggregates.items():
            if aggregate.function not in FUNCTIONS:
                raise SettingsError(
                    f"over({name}={aggregate}): the aggregates over rows are {', '.join(FUNCTIONS)}; others need a "
                    "function (process)"
                )

    def check(self, window: AnyWindow | None) -> None:
        """Check the key as far as it is known at the declaration. Raises `SettingsError`."""
        if window is not None:
            raise SettingsError(
                "over() does not work behind a window: rows of different windows of a key would be in one frame; key "
                "by the window_start of earlier windows"
            )

    def spec(self, operator: str, inputs: tuple[OperatorInput, ...]) -> OperatorSpec:
        """The operator of this input. Raises `JobRefused`."""
        return OverSpec(operator, inputs[0], self)


@dataclass(frozen=True)
class OverSpec(OperatorSpec):
    """Raises `JobRefused` when made."""

    name: str
    input: OperatorInput
    settings: OverSettings

    def __post_init__(self) -> None:
        schema, (time, *_) = self.input.schema, self.settings.by
        for column in self.settings.by:
            self._field(column, "over(by=…)")
        kind = schema.field(time).type
        if not pa.types.is_timestamp(kind):
            raise JobRefused(f"operator {self.name!r}: over(by={time!r}) has type {kind}; expected a timestamp first")
        if time in self.key_columns:
            raise JobRefused(
                f"operator {self.name!r}: over(by={time!r}) is a key, so that rows of a key are not ordered"
            )
        for column in self.settings.by[1:]:
            if pa.types.is_nested(schema.field(column).type):
                raise JobRefused(
                    f"operator {self.name!r}: over(by={column!r}) has type {schema.field(column).type}, which has no "
                    "order"
                )
        if self.input.event_time is None:
            raise JobRefused(
                f"operator {self.name!r}: over() needs a watermark, by which rows are put in order: add "
                ".with_watermark(column, delay) right after read()"
            )
        for name, aggregate in self.settings.aggregates.items():
            self._check(name, aggregate)

    def _check(self, name: str, aggregate: Aggregate) -> None:
        if name in self.output_schema.names[: -len(self.settings.aggregates)]:
            raise JobRefused(f"operator {self.name!r}: aggregate {name!r} has the name of a column; rename it")
        if aggregate.other is not None:
            kind = self._field(aggregate.other, f"aggregate {name!r}").type
            if not pa.types.is_boolean(kind):
                raise JobRefused(
                    f"operator {self.name!r}: aggregate {name!r} is {aggregate}, and column {aggregate.other!r} has "
                    f"type {kind}; expected boolean"
                )
        if aggregate.column is None:
            return
        kind = self._field(aggregate.column, f"aggregate {name!r}").type
        is_number = (pa.types.is_integer(kind) and kind != pa.uint64()) or kind in (pa.float32(), pa.float64())
        is_ordered = is_number or (has_kernels(kind) and kind not in (pa.bool_(), pa.uint64()))
        function = aggregate.function
        if not (function == "count" or is_number or (function in ("min", "max") and is_ordered)):
            expected = "a whole number other than uint64, a float or a double"
            raise JobRefused(
                f"operator {self.name!r}: aggregate {name!r} is {aggregate}, and column {aggregate.column!r} has type "
                f"{kind}; over rows it takes {expected}{', a date or a time' if function in ('min', 'max') else ''}"
            )

    def _field(self, column: str, user: str) -> pa.Field:
        if column not in self.input.schema.names:
            raise JobRefused(
                f"operator {self.name!r}: {user} reads column {column!r}, but there is no such column in its input "
                f"({', '.join(self.input.schema.names)})"
            )
        return self.input.schema.field(column)

    @property
    def bound(self) -> tuple[BoundAggregate, ...]:
        """The aggregates with their types, in output order."""
        schema = self.input.schema
        return tuple(
            BoundAggregate(name, each, schema.field(each.column).type if each.column else pa.int64())
            for name, each in self.settings.aggregates.items()
        )

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def declared_keys(self) -> tuple[str, ...]:
        return (*self.key_columns, f"{self.settings.rows} rows by {', '.join(self.settings.by)}")

    @property
    def shown(self) -> list[str]:
        """The columns of the input that are in the output."""
        return [name for name in self.input.schema.names if name not in self.settings.hidden]

    @property
    def output_schema(self) -> pa.Schema:
        made = [bound.output_field for bound in self.bound]
        return pa.schema([*(self.input.schema.field(name) for name in self.shown), *made])

    @property
    def is_timed(self) -> bool:
        return True

    @property
    def calls_no_user(self) -> bool:
        return True

    @property
    def kept_fields(self) -> dict[ValueRead, pa.Field]:
        """The columns of the values that are kept of rows that were put out."""
        reads = {read_by(bound): bound.input_type for bound in self.bound}
        return {
            read: pa.field(str(read), pa.bool_() if read.counts else kind)
            for read, kind in reads.items()
            if read.column is not None or read.other is not None
        }

    def table_schemas(self) -> dict[str, TableSchema]:
        keys, groups = self.input.key_schema, len(self.input.key_schema)
        others = [field for field in self.input.schema if field.name not in self.key_columns]
        counters = pa.schema([pa.field(NEXT, pa.int64()), pa.field(GIVEN, pa.int64())])
        return {
            "state": TableSchema(keys, counters),
            ROWS: TableSchema(grouped_by(keys.append(pa.field(NUMBER, pa.int64())), groups), pa.schema(others)),
            LAST: TableSchema(
                grouped_by(keys.append(pa.field(PLACE, pa.int64())), groups), pa.schema(self.kept_fields.values())
            ),
        }

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return OverOperator(self, max_parallelism, new_table)
