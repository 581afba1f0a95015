"""The aggregates of `KeyedStream.aggregate`, as declared: constructors, checks, schemas.

Types and nulls follow Spark SQL:

    count()      rows                          int64, never null
    count(c)     values that are not null      int64, never null
    sum(c)       integers → int64, floats → double, decimal(p, s) → decimal(p + 10, s)
    mean(c)      double, of integers, floats and decimals
    min, max     the column's type; NaN is above every other number
    first, last  the column's type; the value of the key's first or last row, which may be null
    stddev, variance   double, of a sample; null for a single value; NaN if any value is NaN
    max_by, min_by     the column's type; the value where another column is greatest or least, which may be null
    collect_list, collect_set   a list of the values that are not null, never null itself
    count_distinct     int64; -0.0 and 0.0 count as the same value, and so do all NaN
    approx_count_distinct   int64; a sketch of bounded size (`sketches.py`)

Without any value the result is null. A sum that leaves its type makes the row bad (`BadRecord`, or a dead letter);
a bad row changes no aggregate of the operator.

State columns are named `<aggregate's name>.<function>` (and `….count`, `….seen` for a second column), so an aggregate
whose function was changed starts anew instead of misreading the old function's state.

Does not run the aggregates: `operator.py` does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import SettingsError
from holdfast.expressions.declared import SPARK_4, MaskedColumn, SqlExpression, declared
from holdfast.expressions.nodes import SqlSettings
from holdfast.functions.aggregates.precision import precision_for
from holdfast.functions.rows.columns import RESERVED_PREFIX, has_kernels

AggregateFunction = Literal[
    "count",
    "sum",
    "min",
    "max",
    "mean",
    "first",
    "last",
    "stddev",
    "variance",
    "max_by",
    "min_by",
    "collect_list",
    "collect_set",
    "count_distinct",
    "approx_count_distinct",
]
Emit = Literal["changes", "every"]

FUNCTIONS: tuple[AggregateFunction, ...] = get_args(AggregateFunction)
NEVER_NULL = {"count", "count_distinct", "approx_count_distinct", "collect_list", "collect_set"}
COLLECTIONS = {"collect_list", "collect_set", "count_distinct"}
"""Functions whose state is a list of values."""


@dataclass(frozen=True)
class Aggregate:
    """An aggregate; made by `count`, `sum` and so on.

    `other`: the second column of an aggregate that reads two; for `count` the boolean column that marks the rows to
    count. `where`: the condition under which rows count; `without_conditions` turns it into columns.
    """

    function: AggregateFunction
    column: str | None
    other: str | None = None
    where: pc.Expression | SqlExpression | None = None
    rsd: float | None = None
    """Relative standard deviation that results of `approx_count_distinct` may have."""

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS:
            raise SettingsError(f"aggregate function is {self.function!r}; allowed are {', '.join(FUNCTIONS)}")
        if self.other is not None and (not isinstance(self.other, str) or not self.other):
            raise SettingsError(f"{self.function}(…, {self.other!r}): expected the name of a column")
        if self.function in ("max_by", "min_by") and self.other is None:
            raise SettingsError(f"{self.function}({self.column!r}) needs a second column, by which it chooses")
        if self.function == "approx_count_distinct":
            precision_for(self.rsd)
        if self.column is None and self.function == "count":
            return
        if not isinstance(self.column, str) or not self.column:
            raise SettingsError(f"{self.function}(column) got {self.column!r}; it takes the name of a column")

    def __str__(self) -> str:
        if self.function == "count" and self.other is not None:
            return f"count({self.column or ''}{', ' if self.column else ''}where={self.other})"
        given = [self.column, self.other, None if self.where is None else f"where={self.where}"]
        given.append(None if self.rsd is None else f"rsd={self.rsd}")
        return f"{self.function}({', '.join(each for each in given if each)})"


APPROXIMATE_RSD = 0.05
"""The relative standard deviation of an approximate result, as in Spark SQL."""
Condition: TypeAlias = Any
"""The name of a boolean column, an expression in Spark's SQL such as `"price < 10000"`, a `Column` of PySpark, or an
expression of PyArrow such as `pc.field("price") < 10_000`."""


def count(column: str | None = None, *, where: Condition | None = None) -> Aggregate:
    """The number of rows, or of non-null values of `column`, among the rows where the condition `where` is true."""
    if isinstance(where, str) and where.isidentifier():
        return Aggregate("count", column, where)
    return Aggregate("count", column, None, _condition(where))


def stddev(column: str, *, where: Condition | None = None) -> Aggregate:
    """The standard deviation of `column` as a sample, a double; null for a single value (`stddev_samp` of Spark SQL).

    `where`: only the rows for which this condition is true count.
    """
    return Aggregate("stddev", column, None, _condition(where))


def variance(column: str, *, where: Condition | None = None) -> Aggregate:
    """The variance of `column` as a sample, a double; null for a single value (`var_samp` of Spark SQL).

    `where`: only the rows for which this condition is true count.
    """
    return Aggregate("variance", column, None, _condition(where))


def max_by(column: str, by: str, *, where: Condition | None = None) -> Aggregate:
    """The value of `column` in the row where `by` is greatest, the first of equal ones; rows without it are skipped."""
    return Aggregate("max_by", column, by, _condition(where))


def min_by(column: str, by: str, *, where: Condition | None = None) -> Aggregate:
    """The value of `column` in the row where `by` is least, the first of equal ones; rows without it are skipped."""
    return Aggregate("min_by", column, by, _condition(where))


def collect_list(column: str, *, where: Condition | None = None) -> Aggregate:
    """All values of `column` that are not null, of rows for which `where` is true, in the order of their arrival.

    The list is written anew in each batch that adds to it.
    """
    return Aggregate("collect_list", column, None, _condition(where))


def collect_set(column: str, *, where: Condition | None = None) -> Aggregate:
    """The distinct values of `column` that are not null, of rows for which `where` is true.

    The list is written anew in each batch that adds to it.
    """
    return Aggregate("collect_set", column, None, _condition(where))


def count_distinct(column: str, *, where: Condition | None = None) -> Aggregate:
    """The number of distinct values of `column` that are not null, of rows for which `where` is true.

    The state keeps the values: if a key has many, each is a row of its own, except in windows."""
    return Aggregate("count_distinct", column, None, _condition(where))


def approx_count_distinct(column: str, rsd: float = APPROXIMATE_RSD, *, where: Condition | None = None) -> Aggregate:
    """About the number of distinct values of `column` that are not null, from a sketch of bounded size (HyperLogLog).

    `where`: only the rows for which this condition is true count. `rsd`: the relative standard deviation of the result,
    as in Spark SQL. Two of three results deviate by at most this much, and 299 of 300 by at most three times as much. A
    sketch takes at most `(1.11 / rsd) ** 2` bytes, rounded up to a power of two: 512 for 0.05. A higher value takes
    less memory and is less exact.
    """
    return Aggregate("approx_count_distinct", column, None, _condition(where), rsd)


def sum(column: str, *, where: Condition | None = None) -> Aggregate:
    """The sum of the values of `column` that are not null, of rows for which `where` is true.

    Of integers it is int64, and overflow makes the row bad.
    """
    return Aggregate("sum", column, None, _condition(where))


def min(column: str, *, where: Condition | None = None) -> Aggregate:
    """The least value of `column`, of rows for which `where` is true; strings by code points, NaN above all numbers."""
    return Aggregate("min", column, None, _condition(where))


def max(column: str, *, where: Condition | None = None) -> Aggregate:
    """The greatest value of `column`, of rows for which `where` is true; strings by code points, NaN above all
    numbers."""
    return Aggregate("max", column, None, _condition(where))


def mean(column: str, *, where: Condition | None = None) -> Aggregate:
    """The arithmetic mean of `column` as a double, of rows for which `where` is true."""
    return Aggregate("mean", column, None, _condition(where))


def _condition(where: Condition | None) -> Any:
    if where is None:
        return None
    return pc.field(where) if isinstance(where, str) and where.isidentifier() else declared(where, SPARK_4, "where")


def without_conditions(
    aggregates: Mapping[str, Aggregate], settings: SqlSettings
) -> tuple[dict[str, Aggregate], dict[str, Any]]:
    """Replace conditions by columns that are computed on the way to the operator; these columns come second.

    A condition of `count` is a column itself. For other aggregates, which skip nulls, the column that they read is
    null where the condition is not true.
    """
    plain: dict[str, Aggregate] = {}
    computed: dict[str, Any] = {}
    for name, aggregate in aggregates.items():
        where = None if aggregate.where is None else declared(aggregate.where, settings, "where")
        if where is None:
            plain[name] = aggregate
        elif aggregate.function == "count":
            computed[str(where)] = where
            plain[name] = Aggregate("count", aggregate.column, str(where))
        else:
            read = aggregate.other or aggregate.column
            masked = f"{read} where {where}"
            computed[masked] = (
                MaskedColumn(where, str(read))
                if isinstance(where, SqlExpression)
                else pc.if_else(where, pc.field(read), pc.scalar(None))
            )
            changed: dict[str, Any] = {"other" if aggregate.other else "column": masked, "where": None}
            plain[name] = replace(aggregate, **changed)
    return plain, computed


def first(column: str) -> Aggregate:
    """The value of `column` in the key's first row, also where it is null."""
    return Aggregate("first", column)


def last(column: str) -> Aggregate:
    """The value of `column` in the key's last row, also where it is null."""
    return Aggregate("last", column)


def _is_number(kind: pa.DataType) -> bool:
    signed = pa.types.is_signed_integer(kind) or kind in (pa.uint8(), pa.uint16(), pa.uint32())
    return signed or kind in (pa.float32(), pa.float64()) or (pa.types.is_decimal(kind) and kind.precision <= 38)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests) or pa.types.is_fixed_size_binary(kind)


def is_plain(kind: pa.DataType) -> bool:
    """Return whether values of the type have an order and fit a state column."""
    return has_kernels(kind) or pa.types.is_decimal(kind) or _is_text(kind)


def _is_nested(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_struct, pa.types.is_map)
    return any(test(kind) for test in tests)


def fits(function: AggregateFunction, kind: pa.DataType) -> bool:
    if function in ("sum", "mean", "stddev", "variance"):
        return _is_number(kind)
    if function in ("min", "max", "collect_set", "count_distinct", "approx_count_distinct"):
        return is_plain(kind)
    return function == "count" or is_plain(kind) or _is_nested(kind)


EXPECTED: dict[str, str] = {
    "sum": "an integer of up to 64 bits with a sign or 32 without, a float, a double or a decimal",
    "mean": "an integer of up to 64 bits with a sign or 32 without, a float, a double or a decimal",
    "min": "a number, boolean, date, time, timestamp, string or binary",
    "max": "a number, boolean, date, time, timestamp, string or binary",
    "stddev": "an integer of up to 64 bits with a sign or 32 without, a float, a double or a decimal",
    "variance": "an integer of up to 64 bits with a sign or 32 without, a float, a double or a decimal",
    "collect_set": "a number, boolean, date, time, timestamp, string or binary",
    "count_distinct": "a number, boolean, date, time, timestamp, string or binary",
    "approx_count_distinct": "a number, boolean, date, time, timestamp, string or binary",
    "collect_list": "a number, boolean, date, time, timestamp, string, binary, list, map or struct",
    "max_by": "a number, boolean, date, time, timestamp, string, binary, list, map or struct",
    "min_by": "a number, boolean, date, time, timestamp, string, binary, list, map or struct",
    "first": "a number, boolean, date, time, timestamp, string, binary, list, map or struct",
    "last": "a number, boolean, date, time, timestamp, string, binary, list, map or struct",
}


def result_type(function: AggregateFunction, kind: pa.DataType) -> pa.DataType:
    """Return the type of an aggregate over a column of type `kind`."""
    if function in ("count", "count_distinct", "approx_count_distinct"):
        return pa.int64()
    if function in ("mean", "stddev", "variance"):
        return pa.float64()
    if function in ("collect_list", "collect_set"):
        return pa.list_(pa.field("element", kind, nullable=False))
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
    other_type: pa.DataType | None = None

    @property
    def result_type(self) -> pa.DataType:
        return result_type(self.aggregate.function, self.input_type)

    @property
    def state_column(self) -> str:
        other = "" if self.aggregate.other is None else f"({self.aggregate.other})"
        if self.aggregate.rsd is not None:
            other = f"({self.precision})"
        return f"{self.name}.{self.aggregate.function}{other}"

    @property
    def precision(self) -> int:
        """The precision of the sketch of `approx_count_distinct`."""
        return precision_for(self.aggregate.rsd)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.result_type, nullable=self.aggregate.function not in NEVER_NULL)

    def state_fields(self) -> list[pa.Field]:
        function, name = self.aggregate.function, self.state_column
        if function == "approx_count_distinct":
            return [pa.field(name, pa.binary())]
        if function in COLLECTIONS:
            return [pa.field(name, pa.list_(pa.field("element", self.input_type, nullable=False)))]
        fields = [pa.field(name, self.result_type)]
        if function in ("stddev", "variance"):
            fields += [pa.field(f"{name}.m2", pa.float64()), pa.field(f"{name}.count", pa.int64())]
        if function in ("max_by", "min_by"):
            fields.append(pa.field(f"{name}.by", self.other_type))
        if self.aggregate.function == "mean":
            fields.append(pa.field(f"{self.state_column}.count", pa.int64()))
        if self.aggregate.function == "first":
            fields.append(pa.field(f"{self.state_column}.seen", pa.bool_()))
        return fields

    @property
    def running_extremes(self) -> "tuple[BoundAggregate, ...]":
        """The least and the greatest running value of a sum that can leave its type, read from a column named as its
        state. Both travel with combined rows and are not kept."""
        if self.aggregate.function != "sum" or pa.types.is_floating(self.result_type):
            return ()
        of_running: tuple[AggregateFunction, AggregateFunction] = ("min", "max")
        return tuple(
            BoundAggregate(self.state_column, Aggregate(function, self.state_column), self.result_type)
            for function in of_running
        )


def named_aggregates(
    call: str, columns: Mapping[str, Aggregate] | None, keywords: Mapping[str, Aggregate], **parameters: object
) -> dict[str, Aggregate]:
    """Join the aggregates of a mapping with those of keywords.

    Raises `SettingsError` if a parameter of the method `call` was given an aggregate, which was meant as a column.
    """
    for name, value in parameters.items():
        if isinstance(value, Aggregate):
            raise SettingsError(
                f"{name}= is a parameter of {call}(), not a column; for a column of this name give a mapping: "
                f'{call}({{"{name}": hf.{value.function}(…)}})'
            )
    if columns is not None and not isinstance(columns, Mapping):
        raise SettingsError(
            f"{call}({columns!r}) is not allowed: aggregates by column, such as {{'rows': hf.count()}}, or keywords"
        )
    twice = sorted(set(columns or {}) & set(keywords))
    if twice:
        raise SettingsError(f"{call}(…): column {twice[0]!r} is given twice, in the mapping and as a keyword")
    return {**(columns or {}), **keywords}


def check_aggregates(aggregates: Mapping[str, Aggregate], emit: str) -> None:
    """Check all that needs no schema; raises `SettingsError`."""
    if emit not in ("changes", "every"):
        raise SettingsError(f"emit is {emit!r}; allowed are 'changes' and 'every'")
    if not aggregates:
        raise SettingsError("aggregate() got nothing to compute; give at least one aggregate, such as rows=hf.count()")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise SettingsError(f"aggregate {name!r} is {aggregate!r}; expected an aggregate such as hf.count()")
        if not name or name.startswith(RESERVED_PREFIX) or "." in name:
            raise SettingsError(f"aggregate name {name!r}: it may not be empty, begin with '__' or contain '.'")
