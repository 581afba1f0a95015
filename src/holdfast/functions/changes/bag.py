"""Bags of values by key: each distinct value with the number of times that it is there.

    places   (key, value) → how often it is there, and its number among the values of the key
    rows     (key, number) → the value; numbers are dense, from 0 on
    live     key → how many distinct values are there: a column of the table of the keys

A change of a value costs a look-up, and a few writes if the value comes or goes for good: the key's last value then
takes the number of the value that goes. Each distinct value is stored twice, and all values of a key are found by their
numbers. A value that is removed before it comes has a negative count, and becomes visible once its count is positive.
Null is a value like any other; floating-point values are normalised like keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.functions.operator import TableSchema
from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.grouping import distinct_slots, ranks, spans
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Integers, Slots
from holdfast.state.table import StateTable

NUMBER, COUNT = "__number", "__count"


def bag_tables(name: str, keys: pa.Schema, values: Sequence[pa.Field]) -> dict[str, TableSchema]:
    """The tables of a bag of values of some columns."""
    number = pa.field(NUMBER, pa.int64(), nullable=False)
    places = grouped_by(pa.schema([*keys, *values]), len(keys))
    return {
        f"{name}.places": TableSchema(places, pa.schema([pa.field(NUMBER, pa.int64()), pa.field(COUNT, pa.int64())])),
        f"{name}.rows": TableSchema(grouped_by(keys.append(number), len(keys)), pa.schema(list(values))),
    }


@dataclass(frozen=True)
class BagChange:
    """Distinct values that came, or that went for good: the slots of their keys, and the columns of the values."""

    heads: Slots
    values: list[pa.Array]


class Bag:
    """`heads` is the table of the keys, and `live` the name of its column of numbers."""

    def __init__(self, name: str, heads: StateTable, live: str, tables: dict[str, StateTable]) -> None:
        self._heads = heads
        self._live = live
        self._places, self._rows = tables[f"{name}.places"], tables[f"{name}.rows"]
        self._width = len(heads.key_schema)
        """Number of key columns before the value."""

    def live(self, heads: Slots) -> Integers:
        """How many distinct values keys have."""
        return self._heads.column(self._live).values[heads]

    def apply(self, heads: Slots, values: Sequence[pa.Array], weights: IntArray) -> tuple[BagChange, BagChange]:
        """Add the weights of values to their counts; return the values that came, and those that went for good."""
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
        came, went = (before <= 0) & (after > 0), (before > 0) & (after <= 0)
        if not came.any() and not went.any():
            nothing = BagChange(of_keys[:0], self._values(distinct[:0]))
            return nothing, nothing
        changes = tuple(BagChange(of_keys[each], self._values(distinct[each])) for each in (came, went))
        self._number(changes[0], distinct[came], changes[1].heads, distinct[went])
        return changes[0], changes[1]

    def of_keys(self, heads: Slots) -> tuple[Integers, list[pa.Array]]:
        """All distinct values of keys: the index of each value's key, and the values' columns."""
        groups, found = spans(self.live(heads))
        slots = self._rows.lookup(self._numbered(heads[groups], found))
        return groups, self._columns(slots)

    def counts(self, heads: Slots, values: Sequence[pa.Array]) -> Integers:
        """Return the count of each value, given the slot of its key."""
        keys = self._heads.keys_of(heads).columns
        slots = self._places.lookup(pa.RecordBatch.from_arrays([*keys, *values], schema=self._places.key_schema))
        count = self._places.column(COUNT)
        return np.where(count.valid[slots], count.values[slots], 0)

    def _values(self, places: Slots) -> list[pa.Array]:
        columns: list[pa.Array] = self._places.keys_of(places).columns[self._width :]
        return columns

    def _columns(self, rows: Slots) -> list[pa.Array]:
        columns = [self._rows.column(field.name) for field in self._rows.value_schema]
        return [column.to_arrow(*column.gather(rows)) for column in columns]

    def _numbered(self, heads: Slots, found: Integers) -> pa.RecordBatch:
        keys = self._heads.keys_of(heads).columns
        return pa.RecordBatch.from_arrays([*keys, pa.array(found, pa.int64())], schema=self._rows.key_schema)

    def _number(self, came: BagChange, places_came: Slots, heads_went: Slots, places_went: Slots) -> None:
        """Number the values that came: first with the numbers of values that went, then with new ones. If more values
        went than came, the last values of the key move to the free numbers."""
        number = self._places.column(NUMBER)
        heads, groups = np.unique(np.concatenate([came.heads, heads_went]), return_inverse=True)
        of_came, of_went = groups[: len(came.heads)], groups[len(came.heads) :]
        by_number = np.lexsort((number.values[places_went], of_went))
        of_went, free = of_went[by_number], number.values[places_went][by_number]
        number.clear(places_went)
        size = len(heads)
        comes, goes = np.bincount(of_came, minlength=size), np.bincount(of_went, minlength=size)
        live = self.live(heads)
        left = live + comes - goes
        rank_came, rank_went = ranks(of_came, size), ranks(of_went, size)
        given = live[of_came] + rank_came - goes[of_came]
        reused = rank_came < goes[of_came]
        given[reused] = free[(np.cumsum(goes) - goes)[of_came[reused]] + rank_came[reused]]
        self._put(came.heads, given, came.values)
        number = self._places.column(NUMBER)
        number.scatter(places_came, given, np.ones(len(given), np.bool_))
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
        values = self._columns(self._rows.lookup(self._numbered(moving, tail[moves])))
        to = gaps[targets][order]
        self._put(moving, to, values)
        keys = self._heads.keys_of(moving).columns
        places = self._places.lookup(pa.RecordBatch.from_arrays([*keys, *values], schema=self._places.key_schema))
        self._places.column(NUMBER).scatter(places, to, np.ones(len(to), np.bool_))
        self._rows.present[self._rows.lookup(self._numbered(heads[of_tail], tail))] = False

    def _put(self, heads: Slots, found: Integers, values: Sequence[pa.Array]) -> None:
        slots = self._rows.lookup(self._numbered(heads, found))
        for field, array in zip(self._rows.value_schema, values, strict=True):
            column = self._rows.column(field.name)
            column.scatter(slots, *column.from_arrow(array))
        self._rows.present[slots] = True
