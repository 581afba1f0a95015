"""Aggregates that keep their values, to take them back: `min`, `max`, `min_by`, `max_by`, `collect_list`,
`collect_set`, `count_distinct`, `approx_count_distinct`.

Each aggregate keeps a bag of its values (`bag`). The number of distinct values is known at any time. An extreme is kept
beside the bag; when it is removed, the new extreme is searched among all distinct values of the key. Results depend on
the values alone, never on the order of rows: lists are sorted, and of rows that are equal by `by` the least value
counts.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.changes.bag import Bag, BagChange, bag_tables
from holdfast.functions.changes.sums import ReversibleAggregate, numbers
from holdfast.functions.operator import TableSchema
from holdfast.functions.rows.columns import NO_MASK, IntArray, fixed_array
from holdfast.functions.rows.ordering import ordered
from holdfast.state.keys import check_key_types
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable

VALUE, BY = "__value", "__by"


class KeptValues(ReversibleAggregate):
    """An aggregate with a bag of the values that are not null."""

    def __init__(self, operator: str, bound: BoundAggregate, table: StateTable, tables: dict[str, StateTable]) -> None:
        super().__init__(operator, bound, table)
        self.bag = Bag(bound.state_column, table, f"{bound.state_column}.live", tables)

    @classmethod
    def counters(cls, bound: BoundAggregate) -> list[pa.Field]:
        return numbers(bound, pa.int64(), "live")

    @classmethod
    def columns(cls, bound: BoundAggregate) -> list[pa.Field]:
        """The columns of a value of the bag; the first orders them and is never null."""
        return [pa.field(VALUE, bound.input_type)]

    @classmethod
    def tables(cls, operator: str, bound: BoundAggregate, keys: pa.Schema) -> dict[str, TableSchema]:
        """The tables of the bag. Raises `JobRefused` for a type of values that cannot be part of a key."""
        try:
            check_key_types(pa.schema(cls.columns(bound)))
        except JobRefused as error:
            raise JobRefused(
                f"operator {operator!r}: aggregate {bound.name!r} = {bound.aggregate} of a stream of changes finds "
                f"values to take them back, and cannot find values of type {bound.input_type}; cast the column before "
                "key_by, or put .as_append() before it"
            ) from error
        return bag_tables(bound.state_column, keys, cls.columns(bound))

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
            change = self.bag.apply(slots, values, weights)
            self.note(change.came, change.went)

    def note(self, came: BagChange, went: BagChange) -> None:
        """Note the values that came, and those that went for good."""
        return


class ReversibleDistinct(KeptValues):
    """`count_distinct`, and `approx_count_distinct`, which is exact here."""

    def results(self, slots: Slots) -> pa.Array:
        return fixed_array(self.bag.live(slots), NO_MASK, self.type)


class ReversibleList(KeptValues):
    """`collect_list` and `collect_set`, in ascending order."""

    def results(self, slots: Slots) -> pa.Array:
        groups, found = self.bag.of_keys(slots)
        (values,) = self.bag.values(found)
        order = ordered(groups, [values])
        groups, values = groups[order], values.take(pa.array(order))
        if self.bound.aggregate.function == "collect_list":
            counts = self.bag.counts_of(slots[groups], [values])
            groups, values = np.repeat(groups, counts), values.take(pa.array(np.repeat(np.arange(len(groups)), counts)))
        sizes = np.bincount(groups, minlength=len(slots))
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=self.type)


class ReversibleExtreme(KeptValues):
    """`min` and `max`, and by another column `min_by` and `max_by`."""

    @classmethod
    def kept(cls, bound: BoundAggregate) -> list[pa.Field]:
        names = [f"{bound.state_column}.kept{number}" for number in range(len(cls.columns(bound)))]
        return [field.with_name(name) for field, name in zip(cls.columns(bound), names, strict=True)]

    @classmethod
    def columns(cls, bound: BoundAggregate) -> list[pa.Field]:
        by = [] if bound.aggregate.other is None else [pa.field(BY, bound.other_type)]
        return [*by, pa.field(VALUE, bound.input_type)]

    def given(self, rows: pa.RecordBatch) -> list[pa.Array]:
        by = [] if self.bound.aggregate.other is None else [rows.column(self.bound.aggregate.other)]
        return [*by, rows.column(self.bound.aggregate.column)]

    def note(self, came: BagChange, went: BagChange) -> None:
        lost = self._lost(went)
        heads, values = came.heads, came.values
        if len(lost):
            stays = ~np.isin(heads, lost)
            groups, found = self.bag.of_keys(lost)
            others = self.bag.values(found)
            columns = [self.table.column(field.name) for field in self.kept(self.bound)]
            for column in columns:
                column.clear(lost)
            heads = np.concatenate([heads[stays], lost[groups]])
            values = [
                pa.concat_arrays([each.filter(pa.array(stays)), other])
                for each, other in zip(values, others, strict=True)
            ]
        self._keep_best(heads, values)

    def _lost(self, went: BagChange) -> Slots:
        """Return the keys whose extreme went for good. Normalised values are equal exactly if their bytes are equal."""
        same = np.ones(len(went.heads), np.bool_)
        for field, gone in zip(self.kept(self.bound), went.values, strict=True):
            column = self.table.column(field.name)
            kept = column.to_arrow(*column.gather(went.heads))
            same &= same_values(kept, gone)
        lost: Slots = np.unique(went.heads[same])
        return lost

    def _keep_best(self, heads: Slots, values: list[pa.Array]) -> None:
        """Keep the best of the values that are kept and of further ones."""
        if not len(heads):
            return
        distinct = np.unique(heads)
        columns = [self.table.column(field.name) for field in self.kept(self.bound)]
        kept = distinct[columns[0].valid[distinct]]
        owners = np.concatenate([kept, heads])
        arrays = [
            pa.concat_arrays([column.to_arrow(*column.gather(kept)), each])
            for column, each in zip(columns, values, strict=True)
        ]
        greatest = self.bound.aggregate.function in ("max", "max_by")
        order = ordered(owners, arrays, greatest_first=greatest)
        first = np.ones(len(order), np.bool_)
        first[1:] = owners[order][1:] != owners[order][:-1]
        best = order[first]
        for column, array in zip(columns, arrays, strict=True):
            column.scatter(owners[best], *column.from_arrow(array.take(pa.array(best))))

    def results(self, slots: Slots) -> pa.Array:
        column = self.table.column(self.kept(self.bound)[-1].name)
        return column.to_arrow(*column.gather(slots))


def same_values(left: pa.Array, right: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Compare two columns value by value: null is the same as null, and NaN as NaN."""
    equal = pc.fill_null(pc.equal(left, right), False).to_numpy(zero_copy_only=False)
    equal = equal | (pc.is_null(left, nan_is_null=False).to_numpy(False) & pc.is_null(right).to_numpy(False))
    if pa.types.is_floating(left.type):
        nan = [pc.fill_null(pc.is_nan(each), False).to_numpy(zero_copy_only=False) for each in (left, right)]
        equal = equal | (nan[0] & nan[1])
    return np.asarray(equal, np.bool_)
