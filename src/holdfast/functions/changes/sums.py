"""Aggregates from which a row is taken back by subtraction: `count`, `sum`, `mean`, `variance`, `stddev`.

Their state is a sum to which each row adds its value times its weight, so the order of rows and batches does not
matter. Counts and sums of integers and decimals are exact. Sums of floating-point values are exact as long as
`kernels.PARTS` doubles hold them. Values that are NaN or infinite are only counted, so they can be taken back too.
"""

from abc import ABC, abstractmethod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadRecord
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.changes import kernels
from holdfast.functions.rows.columns import (
    NO_MASK,
    AnyArray,
    BoolArray,
    IntArray,
    fixed_array,
    has_kernels,
    validity,
)
from holdfast.state.physical import Slots, values_of
from holdfast.state.table import StateTable

SCALE, SCALE_EXPONENT = 2.0**-64, 64
"""Floating-point values are added times `SCALE`, so that sums of large values do not overflow on the way. Values below
1e-288 lose their last bits thereby."""
SQUARED_MAX = 2.0**500
"""Greatest magnitude of values whose squares are added; a variance over greater values is NaN."""


class ReversibleAggregate(ABC):
    """An aggregate over the slots of a table, whose rows have weights. `counters`: its state columns of numbers, which
    are zero and valid in each key that is there; `kept` are others."""

    def __init__(self, operator: str, bound: BoundAggregate, table: StateTable) -> None:
        self.operator = operator
        self.bound = bound
        self.table = table
        self.type: pa.DataType = bound.result_type

    @classmethod
    @abstractmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]: ...

    @classmethod
    def kept(cls, bound: BoundAggregate) -> list[pa.Field]:
        return []

    @abstractmethod
    def add(self, rows: pa.RecordBatch, slots: Slots, weights: IntArray) -> None: ...

    @abstractmethod
    def results(self, slots: Slots) -> pa.Array: ...

    def drop(self, slots: Slots) -> None:
        """Remove all that keys have beside their row of the table."""
        return

    def state(self, suffix: str) -> AnyArray:
        """The numbers of a state column, by slot."""
        return self.table.column(_name(self.bound, suffix)).values


def _name(bound: BoundAggregate, suffix: str) -> str:
    return f"{bound.state_column}.{suffix}"


def numbers(bound: BoundAggregate, kind: pa.DataType, *suffixes: str) -> list[pa.Field]:
    """State columns of an aggregate."""
    return [pa.field(_name(bound, suffix), kind) for suffix in suffixes]


class ReversibleCount(ReversibleAggregate):
    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        return numbers(bound, pa.int64(), "weight")

    def add(self, rows: pa.RecordBatch, slots: Slots, weights: IntArray) -> None:
        kernels.count_weights(slots, self._counted(rows), weights, self.state("weight"))

    def _counted(self, rows: pa.RecordBatch) -> BoolArray:
        aggregate = self.bound.aggregate
        mask = NO_MASK if aggregate.column is None else validity(rows.column(aggregate.column))
        if aggregate.other is None:
            return mask
        wanted = rows.column(aggregate.other)
        true: BoolArray = values_of(wanted).copy()
        for each in (mask, validity(wanted)):
            if len(each):
                true &= each
        return true

    def results(self, slots: Slots) -> pa.Array:
        return fixed_array(self.state("weight")[slots], NO_MASK, self.type)


class ReversibleIntegers(ReversibleAggregate):
    """`sum` and `mean` of integers: two words and the number of values."""

    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        return numbers(bound, pa.int64(), "low", "high", "values")

    def add(self, rows: pa.RecordBatch, slots: Slots, weights: IntArray) -> None:
        array = rows.column(self.bound.aggregate.column)
        valid = validity(array)
        low = self.state("low").view(np.uint64)
        kernels.add_integers_wide(slots, values_of(array), valid, weights, low, self.state("high"))
        kernels.count_weights(slots, valid, weights, self.state("values"))

    def results(self, slots: Slots) -> pa.Array:
        low, high, counts = (self.state(name)[slots] for name in ("low", "high", "values"))
        some = counts != 0
        if self.bound.aggregate.function == "mean":
            return means(in_doubles(low, high), counts)
        if (some & (high != low >> 63)).any():
            raise left_type(self)
        return fixed_array(low, some, self.type)


class ReversibleDecimals(ReversibleAggregate):
    """`sum` and `mean` of decimals: three words and the number of values."""

    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        return numbers(bound, pa.int64(), "low", "middle", "high", "values")

    def add(self, rows: pa.RecordBatch, slots: Slots, weights: IntArray) -> None:
        array = rows.column(self.bound.aggregate.column)
        kind = self.bound.input_type
        if not pa.types.is_decimal128(array.type):
            array = pc.cast(array, pa.decimal128(kind.precision, kind.scale))
        buffer = array.buffers()[1]
        words = np.zeros((0, 2), np.int64) if buffer is None else np.frombuffer(buffer, np.int64).reshape(-1, 2)
        words = words[array.offset : array.offset + len(array)].view(np.uint64)
        valid = validity(array)
        low, middle = (self.state(name).view(np.uint64) for name in ("low", "middle"))
        kernels.add_decimals_wide(slots, words, valid, weights, low, middle, self.state("high"))
        kernels.count_weights(slots, valid, weights, self.state("values"))

    def results(self, slots: Slots) -> pa.Array:
        low, middle, high, counts = (self.state(name)[slots] for name in ("low", "middle", "high", "values"))
        some = counts != 0
        if self.bound.aggregate.function == "mean":
            total = np.where(
                high == middle >> 63,
                in_doubles(low, middle),
                high * 2.0**128 + middle.view(np.uint64) * 2.0**64 + low.view(np.uint64),
            )
            return means(total / 10.0**self.bound.input_type.scale, counts)
        words = np.ascontiguousarray(np.stack([low, middle], axis=1))
        valid = pa.array(some).buffers()[1]
        found = pa.Array.from_buffers(self.type, len(slots), [valid, pa.py_buffer(words)])
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as error:
            raise left_type(self) from error
        if (some & (high != middle >> 63)).any():
            raise left_type(self)
        return found


class ReversibleFloats(ReversibleAggregate):
    """`sum` and `mean` of floating-point values: the parts of an exact total, and how many values there are, with those
    that are NaN or infinite."""

    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        parts = numbers(bound, pa.float64(), *(f"part{number}" for number in range(kernels.PARTS)))
        return [*parts, *numbers(bound, pa.int64(), "values", "nan", "above", "below")]

    def add(self, rows: pa.RecordBatch, slots: Slots, weights: IntArray) -> None:
        array = rows.column(self.bound.aggregate.column)
        values, valid = values_of(array), validity(array)
        finite = np.isfinite(values)
        kernels.count_weights(slots, valid, weights, self.state("values"))
        if not finite.all():
            there = np.ones(len(values), np.bool_) if not len(valid) else valid
            for name, chosen in (("nan", np.isnan(values)), ("above", values == np.inf), ("below", values == -np.inf)):
                kernels.count_weights(slots, chosen & there, weights, self.state(name))
            valid = finite & there
        kernels.add_exactly(slots, values, valid, weights, SCALE, parts_of(self, "part"))

    def results(self, slots: Slots) -> pa.Array:
        total = np.empty(len(slots), np.float64)
        kernels.totals(slots, parts_of(self, "part"), total)
        counts, nan, above, below = (self.state(name)[slots] for name in ("values", "nan", "above", "below"))
        mean = self.bound.aggregate.function == "mean"
        with np.errstate(over="ignore"):
            total = total / np.where(mean & (counts != 0), counts, 1) / SCALE
        total = np.where(above > 0, np.inf, np.where(below > 0, -np.inf, total))
        total = np.where((nan > 0) | ((above > 0) & (below > 0)), np.nan, total)
        return fixed_array(total + 0.0, counts != 0, self.type)


def parts_of(aggregate: ReversibleAggregate, prefix: str) -> tuple[AnyArray, ...]:
    """The parts of an exact total, by slot, the greatest first."""
    return tuple(aggregate.state(f"{prefix}{number}") for number in range(kernels.PARTS))


class ReversibleMoments(ReversibleAggregate):
    """`variance` and `stddev`: exact totals of the values and of their squares."""

    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        names = [f"{prefix}{number}" for prefix in ("part", "square") for number in range(kernels.PARTS)]
        return [*numbers(bound, pa.float64(), *names), *numbers(bound, pa.int64(), "values", "outside")]

    def add(self, rows: pa.RecordBatch, slots: Slots, weights: IntArray) -> None:
        array = rows.column(self.bound.aggregate.column)
        if not has_kernels(array.type):
            array = pc.cast(array, pa.float64(), safe=False)  # decimals: each becomes the same double every time
        values, valid = values_of(array), validity(array)
        kernels.count_weights(slots, valid, weights, self.state("values"))
        inside = np.abs(values) <= SQUARED_MAX
        if not inside.all():
            there = np.ones(len(values), np.bool_) if not len(valid) else valid
            kernels.count_weights(slots, ~inside & there, weights, self.state("outside"))
            valid = inside & there
        kernels.add_exactly(slots, values, valid, weights, 1.0, parts_of(self, "part"))
        kernels.add_squares(slots, values, valid, weights, parts_of(self, "square"))

    def results(self, slots: Slots) -> pa.Array:
        counts, outside = self.state("values")[slots], self.state("outside")[slots]
        found = np.empty(len(slots), np.float64)
        kernels.deviations(slots, self.state("values"), parts_of(self, "part"), parts_of(self, "square"), found)
        some = counts > 1
        found = np.divide(found, counts - 1, out=np.zeros(len(slots)), where=some)
        found = np.where(outside > 0, np.nan, found)
        root = self.bound.aggregate.function == "stddev"
        return fixed_array(np.sqrt(found) if root else found, some, self.type)


def in_doubles(low: IntArray, high: IntArray) -> AnyArray:
    """Convert totals of two words to doubles. A total that fits a single word is converted from this word alone, so
    that no digits cancel."""
    doubles: AnyArray = np.where(high == low >> 63, low.astype(np.float64), high * 2.0**64 + low.view(np.uint64))
    return doubles


def means(totals: AnyArray, counts: IntArray) -> pa.Array:
    """Totals divided by their numbers of values; null without any."""
    some = counts != 0
    return fixed_array(np.divide(totals, counts, out=np.zeros(len(totals)), where=some), some, pa.float64())


def left_type(aggregate: ReversibleAggregate) -> BadRecord:
    """The error of a sum that left its type."""
    return BadRecord(
        f"operator {aggregate.operator!r}: aggregate {aggregate.bound.name!r} = {aggregate.bound.aggregate} of a "
        f"stream of changes does not fit {aggregate.type} any more; cast the column to decimal or double before key_by"
    )
