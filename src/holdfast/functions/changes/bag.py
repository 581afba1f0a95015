"""Values, or whole rows, of keys with the number of times that each is there: the count is known with each change.

    places   (key, value) → how often it is there; in a bag also its number among the values of the key
    rows     (key, number) → the value, and how often it is there: in a bag; numbers are dense, from 0 on
    live     key → how many distinct values are there: a column of the table of the keys

A change of a value costs a look-up, and a few writes if the value comes or goes for good: the key's last value then
takes the number of the value that goes. Each distinct value is stored twice, and all values of a key are found by their
numbers. A value that is removed before it comes has a negative count, and becomes visible once its count is positive.
Null is a value like any other; floating-point values are normalised like keys. `row_log` is for operators that need no
count with each change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.functions.operator import TableSchema
from holdfast.functions.rows.columns import BoolArray, IntArray
from holdfast.functions.rows.grouping import distinct_slots, ranks, spans
from holdfast.state.keys import check_key_types, group_columns, grouped_by
from holdfast.state.physical import Integers, Slots
from holdfast.state.table import StateTable

NUMBER, COUNT = "__number", "__count"


def count_table(keys: pa.Schema, values: Sequence[pa.Field], *more: pa.Field) -> TableSchema:
    """The table of the counts of values of some columns, with more columns beside the count."""
    places = grouped_by(pa.schema([*keys, *values]), group_columns(keys))
    return TableSchema(places, pa.schema([*more, pa.field(COUNT, pa.int64())]))


def bag_tables(name: str, keys: pa.Schema, values: Sequence[pa.Field]) -> dict[str, TableSchema]:
    """The tables of a bag of values of some columns."""
    number = pa.field(NUMBER, pa.int64(), nullable=False)
    numbered = pa.schema([*values, pa.field(COUNT, pa.int64())])
    return {
        f"{name}.places": count_table(keys, values, pa.field(NUMBER, pa.int64())),
        f"{name}.rows": TableSchema(grouped_by(keys.append(number), group_columns(keys)), numbered),
    }


def check_found_again(operator: str, shown: str, values: Sequence[pa.Field]) -> None:
    """Refuse, by `JobRefused`, rows with values that cannot be looked up; `shown`: the reader of the rows."""
    try:
        if values:
            check_key_types(pa.schema(list(values)))
    except JobRefused as error:
        raise JobRefused(
            f"operator {operator!r}: {shown} over a stream of changes finds rows by all of their values to take them "
            f"back: {error} Or leave the column out, or put .as_append() before key_by"
        ) from error


@dataclass(frozen=True)
class BagChange:
    """Distinct values whose counts changed: the slots of their keys and of their places, the values' columns, and how
    often each was there and is there now, 0 for a value that went before it comes."""

    heads: Slots
    places: Slots
    values: list[pa.Array]
    before: Integers
    after: Integers

    def chosen(self, mask: BoolArray) -> "BagChange":
        """Return some of the changes."""
        values = [each.filter(pa.array(mask)) for each in self.values]
        return BagChange(self.heads[mask], self.places[mask], values, self.before[mask], self.after[mask])

    @cached_property
    def came(self) -> "BagChange":
        """The values that were not there before."""
        return self.chosen(self.before == 0)

    @cached_property
    def went(self) -> "BagChange":
        """The values that are not there any more."""
        return self.chosen(self.after == 0)


class ValueCounts:
    """How often values are there. `heads` is the table of the keys, and `live` the name of its column of the number of
    distinct values."""

    def __init__(self, heads: StateTable, live: str, places: StateTable) -> None:
        self._heads = heads
        self._live = live
        self._places = places

    def live(self, heads: Slots) -> Integers:
        """How many distinct values keys have."""
        return self._heads.column(self._live).values[heads]

    def add(self, heads: Slots, values: Sequence[pa.Array], weights: IntArray) -> None:
        """Add the weights of values to their counts, and keep the numbers of distinct values."""
        of_keys, _, before, after = self._count(heads, values, weights)
        np.add.at(self._heads.column(self._live).values, of_keys, (after > 0).astype(np.int64) - (before > 0))

    def _count(
        self, heads: Slots, values: Sequence[pa.Array], weights: IntArray
    ) -> tuple[Slots, Slots, Integers, Integers]:
        """Return the slots of the keys and of the places of distinct values, and how often each was there and is now:
        0 for a value that went before it comes."""
        keys = self._heads.keys_of(heads).columns
        slots = self._places.lookup(pa.RecordBatch.from_arrays([*keys, *values], schema=self._places.key_schema))
        distinct, groups = distinct_slots(slots, len(self._places.present))
        of_keys = np.empty(len(distinct), heads.dtype)
        of_keys[groups] = heads
        count = self._places.column(COUNT)
        before = np.where(count.valid[distinct], count.values[distinct], 0)
        after = before + np.bincount(groups, weights, len(distinct)).astype(np.int64)
        count.scatter(distinct, after, np.ones(len(distinct), np.bool_))
        self._places.present[distinct] = after != 0
        return of_keys, distinct, np.maximum(before, 0), np.maximum(after, 0)


class Bag(ValueCounts):
    """Values with their counts, of which all those of a key can be found."""

    def __init__(self, name: str, heads: StateTable, live: str, tables: dict[str, StateTable]) -> None:
        super().__init__(heads, live, tables[f"{name}.places"])
        self._rows = tables[f"{name}.rows"]
        self._width = len(heads.key_schema)
        """Number of key columns before the value."""
        self._fields = self._rows.value_schema.names[: len(self._places.key_schema) - self._width]

    def apply(self, heads: Slots, values: Sequence[pa.Array], weights: IntArray) -> BagChange:
        """Add the weights of values to their counts; return the values whose counts changed."""
        of_keys, distinct, before, after = self._count(heads, values, weights)
        changed = before != after
        distinct = distinct[changed]
        found: list[pa.Array] = self._places.keys_of(distinct).columns[self._width :]
        change = BagChange(of_keys[changed], distinct, found, before[changed], after[changed])
        if len(change.came.heads) or len(change.went.heads):
            self._number(change.came, change.went)
        again = change.chosen((change.before > 0) & (change.after > 0))
        self._put_counts(self.rows_of(again), again.after)
        return change

    def rows_of(self, change: BagChange) -> Slots:
        """Return the slots of the numbered values of changes, which all exist."""
        return self._rows.lookup(self._numbered(change.heads, self._places.column(NUMBER).values[change.places]))

    def of_keys(self, heads: Slots) -> tuple[Integers, Slots]:
        """Return all distinct values of keys: the index of each value's key, and the slot of the value."""
        groups, found = spans(self.live(heads))
        return groups, self._rows.lookup(self._numbered(heads[groups], found))

    def values(self, rows: Slots) -> list[pa.Array]:
        """The columns of the values in these slots."""
        columns = [self._rows.column(name) for name in self._fields]
        return [column.to_arrow(*column.gather(rows)) for column in columns]

    def counts(self, rows: Slots) -> Integers:
        """Return the counts of the values in these slots."""
        return self._rows.column(COUNT).values[rows]

    def _numbered(self, heads: Slots, found: Integers) -> pa.RecordBatch:
        keys = self._heads.keys_of(heads).columns
        return pa.RecordBatch.from_arrays([*keys, pa.array(found, pa.int64())], schema=self._rows.key_schema)

    def _number(self, came: BagChange, went: BagChange) -> None:
        """Number the values that came: first with the numbers of values that went, then with new ones. If more values
        went than came, the last values of the key move to the free numbers."""
        number = self._places.column(NUMBER)
        heads, groups = np.unique(np.concatenate([came.heads, went.heads]), return_inverse=True)
        of_came, of_went = groups[: len(came.heads)], groups[len(came.heads) :]
        by_number = np.lexsort((number.values[went.places], of_went))
        of_went, free = of_went[by_number], number.values[went.places][by_number]
        number.clear(went.places)
        size = len(heads)
        comes, goes = np.bincount(of_came, minlength=size), np.bincount(of_went, minlength=size)
        live = self.live(heads)
        left = live + comes - goes
        rank_came, rank_went = ranks(of_came, size), ranks(of_went, size)
        given = live[of_came] + rank_came - goes[of_came]
        reused = rank_came < goes[of_came]
        given[reused] = free[(np.cumsum(goes) - goes)[of_came[reused]] + rank_came[reused]]
        self._put(came.heads, given, came.values, came.after)
        number.scatter(came.places, given, np.ones(len(given), np.bool_))
        unused = rank_went >= comes[of_went]
        if unused.any():
            self._close_gaps(heads, left, live, of_went[unused], free[unused])
        self._heads.column(self._live).scatter(heads, left, np.ones(size, np.bool_))

    def _close_gaps(self, heads: Slots, left: Integers, live: Integers, of_gap: Integers, gaps: Integers) -> None:
        """Move the values whose numbers are too high now into the gaps below, and remove the rows at these high
        numbers."""
        of_tail, tail = spans(np.maximum(live - left, 0), left)
        span = int(live.max()) + 1
        moves = ~np.isin(of_tail * span + tail, of_gap * span + gaps)
        targets = gaps < left[of_gap]
        order = np.argsort(of_gap[targets], kind="stable")
        moving = heads[of_tail[moves]]
        found = self._rows.lookup(self._numbered(moving, tail[moves]))
        values, counts = self.values(found), self.counts(found)
        to = gaps[targets][order]
        self._put(moving, to, values, counts)
        keys = self._heads.keys_of(moving).columns
        places = self._places.lookup(pa.RecordBatch.from_arrays([*keys, *values], schema=self._places.key_schema))
        self._places.column(NUMBER).scatter(places, to, np.ones(len(to), np.bool_))
        self._rows.present[self._rows.lookup(self._numbered(heads[of_tail], tail))] = False

    def _put(self, heads: Slots, found: Integers, values: Sequence[pa.Array], counts: Integers) -> None:
        slots = self._rows.lookup(self._numbered(heads, found))
        for name, array in zip(self._fields, values, strict=True):
            column = self._rows.column(name)
            column.scatter(slots, *column.from_arrow(array))
        self._put_counts(slots, counts)
        self._rows.present[slots] = True

    def _put_counts(self, slots: Slots, counts: Integers) -> None:
        self._rows.column(COUNT).scatter(slots, counts, np.ones(len(slots), np.bool_))
