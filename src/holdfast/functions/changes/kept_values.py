"""Aggregates that keep their values, to take them back: `min`, `max`, `min_by`, `max_by`, `collect_list`,
`collect_set`, `count_distinct`, `approx_count_distinct`.

Distinct values are counted (`bag`). An extreme is the first of the values in their order (`first_rows`), and lists are
read from the log of the values (`row_log`). Results depend on the values alone, never on the order of rows: lists are
sorted, and of rows that are equal by `by` the least value counts.
"""

from abc import abstractmethod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.changes.bag import ValueCounts, count_table
from holdfast.functions.changes.first_rows import FirstRowsOfKeys, FirstRowsState
from holdfast.functions.changes.row_log import RowLog, log_column, log_counters, log_table
from holdfast.functions.changes.sums import ReversibleAggregate, numbers
from holdfast.functions.operator import TableSchema
from holdfast.functions.rows.columns import NO_MASK, BoolArray, IntArray, fixed_array
from holdfast.functions.rows.grouping import distinct_slots
from holdfast.functions.rows.ordering import ordered
from holdfast.state.keys import check_key_types
from holdfast.state.physical import Slots, physical_dtype, values_of
from holdfast.state.table import StateTable

VALUE, BY = "__value", "__by"


class KeptValues(ReversibleAggregate):
    """An aggregate that keeps the values that are not null."""

    def __init__(self, operator: str, bound: BoundAggregate, table: StateTable, tables: dict[str, StateTable]) -> None:
        super().__init__(operator, bound, table)

    @classmethod
    def columns(cls, bound: BoundAggregate) -> list[pa.Field]:
        """The columns of a kept value; the first orders them and is never null."""
        return [pa.field(VALUE, bound.input_type)]

    @classmethod
    def tables(cls, operator: str, bound: BoundAggregate, keys: pa.Schema) -> dict[str, TableSchema]:
        """The tables of the values. Raises `JobRefused` for a type of values that cannot be part of a key."""
        try:
            check_key_types(pa.schema(cls.columns(bound)))
        except JobRefused as error:
            raise JobRefused(
                f"operator {operator!r}: aggregate {bound.name!r} = {bound.aggregate} of a stream of changes finds "
                f"values to take them back, and cannot find values of type {bound.input_type}; cast the column before "
                "key_by, or put .as_append() before it"
            ) from error
        return cls.tables_of(bound, keys)

    @classmethod
    @abstractmethod
    def tables_of(cls, bound: BoundAggregate, keys: pa.Schema) -> dict[str, TableSchema]:
        """The tables of values of types that can be part of keys."""

    def given(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The columns of the values that rows bring."""
        return [rows.column(self.bound.aggregate.column)]

    def add(self, rows: pa.RecordBatch, slots: Slots, weights: IntArray) -> None:
        values = self.given(rows)
        if values[0].null_count:
            there = values[0].is_valid()
            chosen = there.to_numpy(zero_copy_only=False)
            values, slots, weights = [each.filter(there) for each in values], slots[chosen], weights[chosen]
        if len(slots):
            self.take(slots, values, weights)

    @abstractmethod
    def take(self, slots: Slots, values: list[pa.Array], weights: IntArray) -> None:
        """Take values that come or go, given the slots of their keys."""


class ReversibleDistinct(KeptValues):
    """`count_distinct`, and `approx_count_distinct`, which is exact here."""

    def __init__(self, operator: str, bound: BoundAggregate, table: StateTable, tables: dict[str, StateTable]) -> None:
        super().__init__(operator, bound, table, tables)
        self._counts = ValueCounts(table, f"{bound.state_column}.live", tables[f"{bound.state_column}.places"])

    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        return numbers(bound, pa.int64(), "live")

    @classmethod
    def tables_of(cls, bound: BoundAggregate, keys: pa.Schema) -> dict[str, TableSchema]:
        return {f"{bound.state_column}.places": count_table(keys, cls.columns(bound))}

    def take(self, slots: Slots, values: list[pa.Array], weights: IntArray) -> None:
        self._counts.add(slots, values, weights)

    def results(self, slots: Slots) -> pa.Array:
        return fixed_array(self._counts.live(slots), NO_MASK, self.type)


class ReversibleList(KeptValues):
    """`collect_list` and `collect_set`, in ascending order."""

    def __init__(self, operator: str, bound: BoundAggregate, table: StateTable, tables: dict[str, StateTable]) -> None:
        super().__init__(operator, bound, table, tables)
        self._log = RowLog(bound.state_column, table, tables[f"{bound.state_column}.blocks"])

    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        return log_counters(bound.state_column)

    @classmethod
    def kept(cls, bound: BoundAggregate) -> list[pa.Field]:
        return [log_column(bound.state_column)]

    @classmethod
    def tables_of(cls, bound: BoundAggregate, keys: pa.Schema) -> dict[str, TableSchema]:
        return {f"{bound.state_column}.blocks": log_table(keys, cls.columns(bound))}

    def take(self, slots: Slots, values: list[pa.Array], weights: IntArray) -> None:
        distinct, groups = distinct_slots(slots, len(self.table.present))
        self._log.append(distinct, groups, values, weights)

    def drop(self, slots: Slots) -> None:
        self._log.drop(slots)

    def results(self, slots: Slots) -> pa.Array:
        found = self._log.rows_of(slots).there()
        order = ordered(found.groups, len(slots), found.columns)
        if self.bound.aggregate.function == "collect_list":
            order = np.repeat(order, found.counts[order])
        sizes = np.bincount(found.groups[order], minlength=len(slots))
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, found.columns[0].take(pa.array(order)), type=self.type)


class ReversibleSize(ReversibleList):
    """`count_distinct` and `approx_count_distinct` of keys that are dropped as a whole."""

    def results(self, slots: Slots) -> pa.Array:
        found = self._log.rows_of(slots).there()
        return fixed_array(np.bincount(found.groups, minlength=len(slots)), NO_MASK, self.type)


class ReversibleExtreme(KeptValues):
    """`min` and `max`, and by another column `min_by` and `max_by`."""

    def __init__(self, operator: str, bound: BoundAggregate, table: StateTable, tables: dict[str, StateTable]) -> None:
        super().__init__(operator, bound, table, tables)
        greatest = bound.aggregate.function in ("max", "max_by")
        self._first = FirstRowsOfKeys(self.state_of(bound), table, tables, descends=greatest)
        self._kept = self.state_of(bound).first[-1].name

    @classmethod
    def state_of(cls, bound: BoundAggregate) -> FirstRowsState:
        return FirstRowsState(bound.state_column, cls.columns(bound))

    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        return cls.state_of(bound).counters

    @classmethod
    def kept(cls, bound: BoundAggregate) -> list[pa.Field]:
        return cls.state_of(bound).kept

    @classmethod
    def tables_of(cls, bound: BoundAggregate, keys: pa.Schema) -> dict[str, TableSchema]:
        return cls.state_of(bound).tables(keys)

    @classmethod
    def columns(cls, bound: BoundAggregate) -> list[pa.Field]:
        by = [] if bound.aggregate.other is None else [pa.field(BY, bound.other_type)]
        return [*by, pa.field(VALUE, bound.input_type)]

    def given(self, rows: pa.RecordBatch) -> list[pa.Array]:
        by = [] if self.bound.aggregate.other is None else [rows.column(self.bound.aggregate.other)]
        return [*by, rows.column(self.bound.aggregate.column)]

    def take(self, slots: Slots, values: list[pa.Array], weights: IntArray) -> None:
        self._first.apply(slots, values, weights, lambda *_: None)

    def drop(self, slots: Slots) -> None:
        self._first.drop(slots)

    def results(self, slots: Slots) -> pa.Array:
        column = self.table.column(self._kept)
        return column.to_arrow(*column.gather(slots))


def same_values(left: pa.Array, right: pa.Array) -> BoolArray:
    """Compare two columns value by value: null is the same as null, and NaN as NaN."""
    if physical_dtype(left.type) is not None:
        return _same_fixed(left, right)
    equal = pc.fill_null(pc.equal(left, right), False).to_numpy(zero_copy_only=False)
    return np.asarray(equal | (left.is_null().to_numpy(False) & right.is_null().to_numpy(False)), np.bool_)


def _same_fixed(left: pa.Array, right: pa.Array) -> BoolArray:
    one, other = values_of(left), values_of(right)
    equal: BoolArray = one == other
    if one.dtype.kind == "f":
        equal |= np.isnan(one) & np.isnan(other)
    if left.null_count or right.null_count:
        nulls = [each.is_null().to_numpy(zero_copy_only=False) for each in (left, right)]
        equal = np.where(nulls[0] | nulls[1], nulls[0] & nulls[1], equal)
    return equal
