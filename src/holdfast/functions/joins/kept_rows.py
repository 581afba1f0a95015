"""The kept rows of a side of a join: a table of rows, found by key and by the time when they leave.

    heads   key → for each side: the first number, the next number, the number of rows; only for keys that have had
            several rows of a side at once
    rows    (key, number) → the row, its times that are not in a column of the row, whether it met another row
    index   when rows leave → (key, number), in memory (`timing.time_index`)

Numbers of a key are given in order of arrival, from 0 on. A row that leaves before earlier rows makes a gap, which is
looked up in vain; once more than half of the numbers are gaps, the key's rows get new numbers. Many keys only ever have
a single row of a side, like a click for each impression: that row has the number 0 and needs no head. So if a head
counts no rows of a side, the row with the number 0 is looked up. The tables do undo, log, restore and eviction; this
module adds nothing to that.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.joins.bounds import AT, LEAVES, NEVER_US, SIDES, UNTIL, Bounds, Times
from holdfast.functions.rows.columns import BoolArray, concatenated
from holdfast.functions.rows.grouping import ranks, spans
from holdfast.functions.rows.kernels import mark_first
from holdfast.functions.timing.key_order import LONG_KEY, OrdersOfKeys, TimeOrder, names_of_keys
from holdfast.functions.timing.time_index import ColumnValues, FollowedIndex, TimeBuckets, keys_with_times
from holdfast.functions.windows.declared import in_microseconds, times_of
from holdfast.state.physical import Integers, Slots, values_of
from holdfast.state.table import StateTable

NUMBER, MATCHED = "__number", "__matched"
"""State columns: a row's number among those of its key; whether it met a row of the other side."""
GAPS_MAX = 16
"""Number of gaps in the numbers of a key's rows up to which the rows are never numbered anew. A higher value renumbers
rows less often, but a look-up of a key then tries more numbers without a row."""


def head_columns(side: int) -> tuple[str, str, str]:
    """The columns of the heads that belong to a side: first number, next number, number of rows."""
    return f"__{SIDES[side]}_first", f"__{SIDES[side]}_next", f"__{SIDES[side]}_count"


class KeptRows:
    """The kept rows of one side. Both sides share `heads`. Its key columns are the key columns of `rows` without the
    last, perhaps by other names."""

    def __init__(self, side: int, bounds: Bounds, heads: StateTable, rows: StateTable) -> None:
        self.table = rows
        self._side = side
        self._bounds = bounds
        self._heads = heads
        self._head_names = head_columns(side)
        self._columns = bounds.columns(side)
        self._time_column = bounds.time_column(side)
        self._entries = pa.schema([*rows.key_schema, pa.field(LEAVES, pa.int64())])
        self._index = FollowedIndex(
            rows, lambda: TimeBuckets(self._entries, LEAVES, bounds.bucket_us), self._all_entries
        )
        self._orders: OrdersOfKeys[TimeOrder] = OrdersOfKeys()

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes + self._orders.memory_bytes

    def begin(self) -> None:
        """Begin a batch."""
        if self._bounds.rows_leave:
            self._index.begin()
        self._orders.begin(self.table.commits)

    def next_us(self) -> int | None:
        """The first time at which a row leaves. That row may have left already."""
        return self._index.earliest() if self._bounds.rows_leave else None

    def of_keys(self, heads: Slots) -> tuple[Integers, Slots]:
        """The rows of distinct keys, by the slots of their heads: the index of each row's key, and its slot."""
        first, following, _ = (self._heads.column(name).values[heads] for name in self._head_names)
        groups, numbers = spans(np.maximum(following - first, 1), first)
        there, slots = self.table.find(self._keyed(self._heads.keys_of(heads), groups, numbers))
        return groups[there], slots

    def meeting(
        self, heads: Slots, groups: Integers, ranges: tuple[Integers, Integers, Integers] | None
    ) -> tuple[Integers, Slots]:
        """Return the rows of distinct keys that other rows may meet, in the form of `of_keys`; all rows of a key with
        few rows.

        `groups`: the index of the key of each of the others. `ranges`: as `Bounds.kept_times` gives them.
        """
        if ranges is None:
            return self.of_keys(heads)
        froms, untils, reaching = ranges
        return self._chosen(heads, groups, lambda order, rows: order.meeting(froms[rows], untils[rows], reaching[rows]))

    def one_of_each(self, heads: Slots) -> tuple[Integers, Slots]:
        """Return one row of each of the distinct keys that have rows, in the form of `of_keys`: the last that came, if
        it is still there."""
        following = np.maximum(self._heads.column(self._head_names[1]).values[heads], 1)
        groups, slots = self.table.find(self._keyed(self._heads.keys_of(heads), np.arange(len(heads)), following - 1))
        missing = self._heads.column(self._head_names[2]).values[heads] > 0
        missing[groups] = False
        others = np.flatnonzero(missing)
        of_others, more = self.of_keys(heads[others])
        of_others, first = np.unique(of_others, return_index=True)
        return np.concatenate([groups, others[of_others]]), np.concatenate([slots, more[first]])

    def newest(self, heads: Slots, groups: Integers, untils: Integers) -> tuple[Integers, Slots]:
        """Return the newest rows of distinct keys up to the times `untils`, in the form of `of_keys`."""
        return self._chosen(heads, groups, lambda order, rows: order.newest(untils[rows]))

    def is_long(self, heads: Slots) -> BoolArray:
        """Mark the keys with so many rows that their rows have a `TimeOrder`."""
        long: BoolArray = self._heads.column(self._head_names[2]).values[heads] >= LONG_KEY
        return long

    def _chosen(
        self, heads: Slots, groups: Integers, choose: Callable[[TimeOrder, Integers], Integers]
    ) -> tuple[Integers, Slots]:
        long = np.flatnonzero(self.is_long(heads))
        names = self._names(heads[long])
        asked_again = np.array([self._orders.asked_again(name) for name in names], np.bool_)
        if not asked_again.any():
            return self.of_keys(heads)
        places = long[asked_again]
        short = np.delete(np.arange(len(heads)), places)
        of_short, slots = self.of_keys(heads[short])
        orders = self._orders_of(heads[places])
        rows = _rows_of_groups(groups, places, len(heads))
        found = [choose(order, each) for order, each in zip(orders, rows, strict=True)]
        of_long = np.repeat(places, [len(numbers) for numbers in found])
        numbers = np.concatenate(found)
        there, of_orders = self.table.find(self._keyed(self._heads.keys_of(heads), of_long, numbers))
        return np.concatenate([short[of_short], of_long[there]]), np.concatenate([slots, of_orders])

    def _names(self, heads: Slots) -> list[Hashable]:
        """The names by which the orders of these keys are found."""
        return names_of_keys(self._heads.keys_of(heads)) if len(heads) else []

    def _orders_of(self, heads: Slots) -> list[TimeOrder]:
        """Return the orders of long keys; an order that is missing or out of date is built again."""
        _, following, count = (self._heads.column(name).values[heads] for name in self._head_names)
        orders = []
        for place, name in enumerate(self._names(heads)):
            order = self._orders.get(name)
            if order is None or order.following != following[place] or len(order) > 2 * count[place]:
                _, slots = self.of_keys(heads[place : place + 1])
                times = self.times(slots)
                order = TimeOrder(times[AT], self.numbers(slots), times.get(UNTIL), int(following[place]))
                self._orders.put(name, order)
            orders.append(order)
        return orders

    def _add_to_orders(
        self, heads: Slots, groups: Integers, numbers: Integers, begins: Integers, added: Integers, times: Times
    ) -> None:
        """Add new rows to the orders that exist. `begins`: the number of the first new row of each key."""
        long = np.flatnonzero(self.is_long(heads) & (added > 0))
        found = zip(long.tolist(), self._names(heads[long]), strict=True)
        ordered = [(place, name, order) for place, name in found if (order := self._orders.get(name)) is not None]
        places = np.array([place for place, _, _ in ordered], np.int64)
        for (place, name, order), rows in zip(ordered, _rows_of_groups(groups, places, len(heads)), strict=True):
            begin = int(begins[place])
            if order.following != begin:
                self._orders.drop(name)
                continue
            ends = times[UNTIL][rows] if UNTIL in times else None
            following = begin + len(rows)
            self._orders.change(
                name,
                lambda order, rows=rows, ends=ends, following=following: order.add(  # type: ignore[misc]
                    times[AT][rows], numbers[rows], ends, following
                ),
            )

    def times(self, slots: Slots) -> Times:
        """The times of the rows in these slots."""
        return self._times(lambda name: self.table.column(name).values[slots], lambda: self.table.keys_of(slots))

    def _times(self, values: ColumnValues, keys: Callable[[], pa.RecordBatch]) -> Times:
        """The times of some rows, whose event time is in a value column or in a key column."""
        times = {name: values(name) for name in self._columns}
        name = self._time_column
        if name is not None and name in self.table.key_schema.names:
            times[AT] = times_of(keys().column(name))
        elif name is not None:
            times[AT] = in_microseconds(values(name), self.table.value_schema.field(name).type)
        return times

    def numbers(self, slots: Slots) -> Integers:
        """The numbers of some rows, in order of arrival within a key."""
        return values_of(self.table.keys_of(slots).column(NUMBER))

    def set_matched(self, slots: Slots) -> None:
        """Mark these rows as having met others."""
        self.table.column(MATCHED).scatter(slots, np.ones(len(slots), np.bool_), np.ones(len(slots), np.bool_))

    def unmatched(self, slots: Slots) -> Slots:
        """Return the rows that never met another row."""
        chosen: Slots = slots[~self.table.column(MATCHED).values[slots]]
        return chosen

    def add(
        self, rows: pa.RecordBatch, keys: pa.RecordBatch, heads: Slots, groups: Integers, times: Times, matched: Any
    ) -> None:
        """Keep rows, with their `keys`, the slots of all `heads`, and in `groups` the index of each row's head among
        these.

        `matched`: which rows met others already.
        """
        if not rows.num_rows:
            return
        added = np.bincount(groups, minlength=len(heads))
        begins = self._take_numbers(heads, added)
        numbers = begins[groups] + ranks(groups, len(heads))
        if self._orders:
            self._add_to_orders(heads, groups, numbers, begins, added, times)
        key = self._keyed(keys, None, numbers)
        slots = self.table.lookup(key)
        valid = np.ones(len(slots), np.bool_)
        for field in self.table.value_schema:
            column = self.table.column(field.name)
            if field.name in times:
                column.scatter(slots, times[field.name], valid)
            elif field.name == MATCHED:
                column.scatter(slots, matched, valid)
            else:
                column.scatter(slots, *column.from_arrow(rows.column(field.name)))
        self.table.present[slots] = True
        self._note(key, times)

    def _take_numbers(self, heads: Slots, added: Integers) -> Integers:
        """Take `added` numbers for the new rows of each key; return the first number of each key's new rows."""
        first, following, count = (self._heads.column(name) for name in self._head_names)
        begins, kept = following.values[heads], count.values[heads]
        headless = np.flatnonzero((kept == 0) & (added > 0))
        groups, _ = self.of_keys(heads[headless])
        begins[headless[groups]] = kept[headless[groups]] = 1
        needs_head = (added > 0) & (kept + added > 1)
        chosen = heads[needs_head]
        valid = np.ones(len(chosen), np.bool_)
        first.scatter(chosen, first.values[chosen], valid)
        following.scatter(chosen, (begins + added)[needs_head], valid)
        count.scatter(chosen, (kept + added)[needs_head], valid)
        self._heads.present[chosen] = True
        return begins

    def leaving(self, until_us: int) -> Slots:
        """Return the rows that leave by `until_us`; they are still in the table."""
        if not self._bounds.rows_leave:
            return np.empty(0, np.int32)
        entries = concatenated(self._index.between(None, until_us + 1), self._entries)
        self._index.drop(until_us + 1)
        _, slots = self.table.find(entries.select(self.table.key_schema.names))
        first = np.empty(len(slots), np.bool_)
        mark_first(slots, np.zeros(len(self.table.present), np.bool_), first)
        slots = slots[first]
        leaves = self._bounds.leaves(self._side, self.times(slots))
        chosen: Slots = slots if leaves is None else slots[leaves <= until_us]
        return chosen

    def heads_of(self, slots: Slots) -> Slots:
        """The slot of the head of each row's key."""
        return self._heads.lookup(self._head_keys(slots))

    def _head_keys(self, slots: Slots) -> pa.RecordBatch:
        keys = self.table.keys_of(slots).columns[: len(self._heads.key_schema)]
        return pa.RecordBatch.from_arrays(keys, schema=self._heads.key_schema)

    def leave_later(self, slots: Slots, leaves: Integers) -> None:
        """Let distinct rows leave at the times `leaves` instead of those in their column `LEAVES`."""
        if len(slots):
            self.table.column(LEAVES).scatter(slots, leaves, np.ones(len(slots), np.bool_))
            self._note(self.table.keys_of(slots), self.times(slots))

    def remove(self, slots: Slots) -> None:
        """Remove distinct rows."""
        if not len(slots):
            return
        heads, gone = np.unique(self._heads.find(self._head_keys(slots))[1], return_counts=True)
        self.table.present[slots] = False
        count = self._heads.column(self._head_names[2])
        has_head = count.values[heads] > 0
        heads, gone = heads[has_head], gone[has_head]
        left = count.values[heads] - gone
        count.scatter(heads, left, np.ones(len(heads), np.bool_))
        self._let_go(heads[left == 0])
        first, following, _ = (self._heads.column(name).values[heads] for name in self._head_names)
        gaps = following - first - left
        self._renumber(heads[(left > 0) & (gaps > np.maximum(left, GAPS_MAX))])

    def _let_go(self, heads: Slots) -> None:
        """Clear this side's columns in the heads of keys that have no rows of this side any more."""
        nothing, valid = np.zeros(len(heads), np.int64), np.ones(len(heads), np.bool_)
        for name in self._head_names:
            self._heads.column(name).scatter(heads, nothing, valid)
        counts = [self._heads.column(head_columns(side)[2]).values[heads] for side in range(len(SIDES))]
        self._heads.present[heads[(counts[0] == 0) & (counts[1] == 0)]] = False

    def _renumber(self, heads: Slots) -> None:
        """Give the rows of each key new numbers without gaps, above all numbers that the key has used."""
        if not len(heads):
            return
        groups, slots = self.of_keys(heads)
        rows = self.table.rows_of(slots)
        times = self.times(slots)
        first, following, _ = (self._heads.column(name) for name in self._head_names)
        begins = following.values[heads]
        key = self._keyed(self._heads.keys_of(heads), groups, begins[groups] + ranks(groups, len(heads)))
        self.table.present[slots] = False
        slots = self.table.lookup(key)
        for field in self.table.value_schema:
            column = self.table.column(field.name)
            column.scatter(slots, *column.from_arrow(rows.column(field.name)))
        self.table.present[slots] = True
        valid = np.ones(len(heads), np.bool_)
        first.scatter(heads, begins, valid)
        following.scatter(heads, begins + np.bincount(groups, minlength=len(heads)), valid)
        self._note(key, times)

    def _note(self, key: pa.RecordBatch, times: Times) -> None:
        """Add rows, given by their keys, to the index."""
        leaves = self._bounds.leaves(self._side, times)
        if leaves is not None:
            self._index.add(_that_leave(key.append_column(self._entries.field(LEAVES), pa.array(leaves))))

    def _keyed(self, keys: pa.RecordBatch, owners: Integers | None, numbers: Integers) -> pa.RecordBatch:
        """Make keys of rows: the key columns (of `owners`, by index, if given) and the numbers."""
        arrays: list[Any] = keys.columns if owners is None else keys.take(pa.array(owners)).columns
        return pa.RecordBatch.from_arrays([*arrays, pa.array(numbers)], schema=self.table.key_schema)

    def _all_entries(self, table: StateTable) -> Iterator[pa.RecordBatch]:
        return map(_that_leave, keys_with_times(table, LEAVES, self._leaves_of_cells))

    def _leaves_of_cells(self, keys: pa.RecordBatch, values: ColumnValues) -> Integers:
        leaves = self._bounds.leaves(self._side, self._times(values, lambda: keys))
        assert leaves is not None, "only rows that leave are in the index"
        return leaves


def _rows_of_groups(groups: Integers, chosen: Integers, count: int) -> list[Integers]:
    """Return the rows of each of the chosen groups, which are in ascending order, as `groups` has the group of each
    row, below `count`."""
    if not len(chosen):
        return []
    wanted = np.zeros(count, np.bool_)
    wanted[chosen] = True
    rows = np.flatnonzero(wanted[groups])
    rows = rows[np.argsort(groups[rows], kind="stable")]
    return np.split(rows, np.searchsorted(groups[rows], chosen[1:]))


def _that_leave(entries: pa.RecordBatch) -> pa.RecordBatch:
    """Return the entries of the index without rows that leave only when they are replaced."""
    stay = values_of(entries.column(LEAVES)) >= NEVER_US
    return entries.filter(pa.array(~stay)) if stay.any() else entries
