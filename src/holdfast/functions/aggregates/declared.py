"""The aggregates of `KeyedStream.aggregate`, as declared: constructors, checks, schemas.

Types and nulls follow Spark SQL:

    count()      rows                          int64, never null
    count(c)     values that are not null      int64, never null
    sum(c)       integers → int64, floats → double, decimal(p, s) → decimal(p + 10, s)
    mean(c)      double, of integers, floats and decimals
    min, max     the column's type; NaN is above every other number
    first, last  the column's type; the value of the key's first or last row, which may be null

Without any value the result is null. A sum that leaves its type makes the row bad (`BadRecord`, or a dead letter);
such a row changes no aggregate of the operator.

State columns are named `<aggregate's name>.<function>` (and `….count`, `….seen` where a second one is needed), so an
aggregate whose function was changed starts anew instead of misreading the old one's state.

Does not own the running of them: see `operator.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates.combining import AggregateCombiner
from holdfast.functions.aggregates.operator import AggregateOperator
from holdfast.functions.columns import has_kernels
from holdfast.functions.operator import Combiner, NewTable, Operator, OperatorInput, OperatorSpec, TableSchema
from holdfast.functions.running import RESERVED_PREFIX
from holdfast.state.table import StateTable

Function = Literal["count", "sum", "min", "max", "mean", "first", "last"]
Emit = Literal["changes", "every"]
BadRecords = Literal["fail", "dead_letter"]

FUNCTIONS: tuple[Function, ...] = ("count", "sum", "min", "max", "mean", "first", "last")


@dataclass(frozen=True)
class Aggregate:
    """One aggregate; made by `count`, `sum`, `min`, `max`, `mean`, `first`, `last`."""

    function: Function
    column: str | None

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise SettingsError(f"aggregate function is {self.function!r}; allowed are {', '.join(FUNCTIONS)}")
        if self.column is None and self.function == "count":
            return
        if not isinstance(self.column, str) or not self.column:
            raise SettingsError(f"{self.function}(column) got {self.column!r}; it takes the name of a column")

    def __str__(self) -> str:
        return f"{self.function}({self.column or ''})"


def count(column: str | None = None) -> Aggregate:
    """The number of rows, or of values of `column` that are not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:
    """The sum of the values that are not null; of integers it is int64, and overflow makes the row bad."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:
    """The least value; strings by code points, NaN above every number."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """The greatest value; strings by code points, NaN above every number."""
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """The arithmetic mean as a double."""
    return Aggregate("mean", column)


def first(column: str) -> Aggregate:
    """The value of the key's first row, also where it is null."""
    return Aggregate("first", column)


def last(column: str) -> Aggregate:
    """The value of the key's last row, also where it is null."""
    return Aggregate("last", column)


def _is_number(kind: pa.DataType) -> bool:
    signed = pa.types.is_signed_integer(kind) or kind in (pa.uint8(), pa.uint16(), pa.uint32())
    return signed or kind in (pa.float32(), pa.float64()) or (pa.types.is_decimal(kind) and kind.precision <= 38)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests) or pa.types.is_fixed_size_binary(kind)


def _is_plain(kind: pa.DataType) -> bool:
    """Types whose values have an order and a state column."""
    return has_kernels(kind) or pa.types.is_decimal(kind) or _is_text(kind)


def _is_nested(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)
    return any(test(kind) for test in tests)


def _fits(function: Function, kind: pa.DataType) -> bool:
    if function in ("sum", "mean"):
        return _is_number(kind)
    if function in ("min", "max"):
        return _is_plain(kind)
    return function == "count" or _is_plain(kind) or _is_nested(kind)


_EXPECTED: dict[str, str] = {
    "sum": "an integer of up to 64 bits with a sign or 32 without, a float, a double or a decimal",
    "mean": "an integer of up to 64 bits with a sign or 32 without, a float, a double or a decimal",
    "min": "a number, boolean, date, time, timestamp, string or binary",
    "max": "a number, boolean, date, time, timestamp, string or binary",
    "first": "a number, boolean, date, time, timestamp, string, binary, list, map or struct",
    "last": "a number, boolean, date, time, timestamp, string, binary, list, map or struct",
}


def result_type(function: Function, kind: pa.DataType) -> pa.DataType:
    """What an aggregate over a column of type `kind` gives."""
    if function == "count":
        return pa.int64()
    if function == "mean":
        return pa.float64()
    if function != "sum":
        return kind
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision + 10 if kind.precision < 28 else 38, kind.scale)
    return pa.int64() if pa.types.is_integer(kind) else pa.float64()


@dataclass(frozen=True)
class BoundAggregate:
    """An aggregate with its output name and the type of the column it reads (int64 for `count()`)."""

    name: str
    aggregate: Aggregate
    input_type: pa.DataType

    @property
    def result_type(self) -> pa.DataType:
        return result_type(self.aggregate.function, self.input_type)

    @property
    def state_column(self) -> str:
        return f"{self.name}.{self.aggregate.function}"

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.result_type, nullable=self.aggregate.function != "count")

    def state_fields(self) -> list[pa.Field]:
        fields = [pa.field(self.state_column, self.result_type)]
        if self.aggregate.function == "mean":
            fields.append(pa.field(f"{self.state_column}.count", pa.int64()))
        if self.aggregate.function == "first":
            fields.append(pa.field(f"{self.state_column}.seen", pa.bool_()))
        return fields

    @property
    def running_extremes(self) -> "tuple[BoundAggregate, ...]":
        """Of a sum that can leave its type: the least and the greatest of its running values, read from a column that
        is named as its state. They travel with combined rows and are not kept."""
        if self.aggregate.function != "sum" or pa.types.is_floating(self.result_type):
            return ()
        of_running: tuple[Function, Function] = ("min", "max")
        return tuple(
            BoundAggregate(self.state_column, Aggregate(function, self.state_column), self.result_type)
            for function in of_running
        )


def check_aggregates(aggregates: Mapping[str, Aggregate], emit: str) -> None:
    """What can be known before the schema is: raises `SettingsError`."""
    if emit not in ("changes", "every"):
        raise SettingsError(f"emit is {emit!r}; allowed are 'changes' and 'every'")
    if not aggregates:
        raise SettingsError("aggregate() got nothing to compute; give at least one aggregate, such as rows=hf.count()")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise SettingsError(f"aggregate {name!r} is {aggregate!r}; expected one such as hf.count() or hf.sum('c')")
        if not name or name.startswith(RESERVED_PREFIX) or "." in name:
            raise SettingsError(f"aggregate name {name!r}: it may not be empty, begin with '__' or contain '.'")


@dataclass(frozen=True)
class AggregateSpec(OperatorSpec):
    """`KeyedStream.aggregate` as declared. Raises `SettingsError` or `JobRefused` when made.

    Parameters
    ----------
    aggregates : mapping
        Output name → aggregate, in output order.
    emit : {"changes", "every"}
        One row per key touched in the batch, at its end, in order of first touch; or one row per input row.
    bad_records : {"fail", "dead_letter"}
        What a row does whose sum overflows.
    combine : bool
        With `emit="changes"`: whether senders may combine the rows of a key before they send them.
    """

    name: str
    input: OperatorInput
    aggregates: Mapping[str, Aggregate]
    emit: Emit = "changes"
    bad_records: BadRecords = "fail"
    combine: bool = True

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
            if not _fits(aggregate.function, kind):
                raise JobRefused(
                    f"operator {self.name!r}: aggregate {name!r} is {aggregate}, and column {aggregate.column!r} has "
                    f"type {kind}; expected {_EXPECTED[aggregate.function]}: cast the column before key_by"
                )
        for field in self._bind(name, aggregate).state_fields():
            if field.name in self.key_columns:
                raise JobRefused(
                    f"operator {self.name!r}: aggregate {name!r} keeps state named {field.name!r}, which is also a key "
                    "column; rename one of them"
                )

    @property
    def bound(self) -> tuple[BoundAggregate, ...]:
        """The aggregates with their types, in output order."""
        return tuple(self._bind(name, aggregate) for name, aggregate in self.aggregates.items())

    def _bind(self, name: str, aggregate: Aggregate) -> BoundAggregate:
        kind = self.input.schema.field(aggregate.column).type if aggregate.column else pa.int64()
        return BoundAggregate(name, aggregate, kind)

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def key_schema(self) -> pa.Schema:
        return self.input.key_schema

    @property
    def value_schema(self) -> pa.Schema:
        return pa.schema([field for bound in self.bound for field in bound.state_fields()])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.key_schema, *(bound.output_field for bound in self.bound)])

    @property
    def combined_schema(self) -> pa.Schema:
        """What combined rows have besides the key columns: all state, and the extremes of sums."""
        extremes = [each for bound in self.bound for each in bound.running_extremes]
        return pa.schema([*self.value_schema, *(field for bound in extremes for field in bound.state_fields())])

    def combiner(self, combine: bool = True, closed_us: int | None = None) -> Combiner | None:
        if (
            not combine
            or not self.combine
            or self.emit != "changes"
            or set(self.combined_schema.names) & set(self.key_columns)
        ):
            return None
        return AggregateCombiner(self)

    def table_schemas(self) -> dict[str, TableSchema]:
        return {"state": TableSchema(self.key_schema, self.value_schema)}

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return AggregateOperator(self, max_parallelism, new_table)
