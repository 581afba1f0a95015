"""The first rows of each key in an order, while rows come and go.

    rows ──► the key's log (`row_log`)
        └──► rows that are not behind the key's answer by the first column ──► with the answer, in order:
                 no row that goes is at or before the end of the first `n`  ──► these are the new answer
                 otherwise, and where the log has rows to come              ──► the first `n` of all rows of the log

    size     key → the number of rows of the answer                            ┐ columns of the table
    owed     key → 1 if rows went before they came; its log is read each time  │ of the keys
    first    key → the row of the answer, if `n` is 1                          ┘
    answer   (key, place) → a row, if `n` is more

A log need not be read to know that a row which comes is there: had it gone before it came, then behind the answer of
that time, and the log was read when the answer's end moved past it, which sets `owed`. Rows that are equal by all
columns are the same row. Rows without other columns than the key are counted, and have no log.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.equality import normalised
from holdfast.functions.changes.row_log import (
    RowLog,
    counted,
    counts_at,
    log_column,
    log_counters,
    log_table,
    put_counts,
)
from holdfast.functions.operator import TableSchema
from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.grouping import distinct_slots, spans
from holdfast.functions.rows.ordering import ordered, ranks_of
from holdfast.state.keys import group_columns, grouped_by
from holdfast.state.physical import Bools, Integers, Slots
from holdfast.state.table import StateTable

PLACE = "__place"


class KnownSlots(NamedTuple):
    """The slots of answers: how many each key has, and where they begin among `slots`."""

    sizes: Integers
    begins: Integers
    slots: Slots

    def of(self, chosen: Bools | slice) -> "KnownSlots":
        """Choose some of the keys."""
        return KnownSlots(self.sizes[chosen], self.begins[chosen], self.slots)


@dataclass(frozen=True)
class FirstRows:
    """The answers of some keys: how many rows each has; of each row the index of its key, its place, its columns, and
    its slot if it is stored."""

    sizes: Integers
    groups: Integers
    places: Integers
    columns: list[pa.Array]
    slots: Slots = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def known(self) -> KnownSlots:
        """The slots of stored answers."""
        return KnownSlots(self.sizes, np.cumsum(self.sizes) - self.sizes, self.slots)

    def of(self, chosen: Bools) -> "FirstRows":
        """Choose some of the keys, whose answers are stored."""
        if chosen.all():
            return self
        rows, numbers = chosen[self.groups], np.cumsum(chosen) - 1
        columns = [column.filter(pa.array(rows)) for column in self.columns]
        groups = numbers[self.groups[rows]]
        return FirstRows(self.sizes[chosen], groups, self.places[rows], columns, self.slots[rows])


AboutToChange = Callable[[Slots, FirstRows, Bools], None]
"""Called with keys and their answers before some of the answers are written: those that the flags choose."""


@dataclass(frozen=True)
class FirstRowsState:
    """The state of first rows. `name` is the begin of the names of its columns and tables; `fields` are the columns of
    the rows, in the order in which they order rows; `may_go`: whether rows may go, so that all are kept."""

    name: str
    fields: Sequence[pa.Field]
    n: int = 1
    may_go: bool = True
    order: str = ""
    """The order in words, if the same operator could have another: it is part of the name of a column."""

    @property
    def counters(self) -> list[pa.Field]:
        """Columns of numbers in the table of the keys, all 0 for a key that is not there."""
        logs = log_counters(self.name) if self.has_log else [pa.field(f"{self.name}.rows", pa.int64())]
        return [*logs, pa.field(f"{self.name}.size{self.order}", pa.int64()), pa.field(f"{self.name}.owed", pa.int64())]

    @property
    def kept(self) -> list[pa.Field]:
        """The other columns in the table of the keys."""
        return [*self.first, *([log_column(self.name)] if self.has_log else [])]

    @property
    def first(self) -> list[pa.Field]:
        """Columns of the answer in the table of the keys."""
        if self.n > 1:
            return []
        return [field.with_name(f"{self.name}.first.{field.name}").with_nullable(True) for field in self.fields]

    @property
    def has_log(self) -> bool:
        return self.may_go and len(self.fields) > 0

    def tables(self, keys: pa.Schema) -> dict[str, TableSchema]:
        """The tables beside that of the keys."""
        places = grouped_by(keys.append(pa.field(PLACE, pa.int64(), nullable=False)), group_columns(keys))
        return {
            **({f"{self.name}.answer": TableSchema(places, pa.schema(self.fields))} if self.n > 1 else {}),
            **({f"{self.name}.blocks": log_table(keys, self.fields)} if self.has_log else {}),
        }


class FirstRowsOfKeys:
    """`heads` is the table of the keys. `descends`: the greatest values of the first column come first."""

    def __init__(
        self, state: FirstRowsState, heads: StateTable, tables: Mapping[str, StateTable], descends: bool
    ) -> None:
        self._state, self._heads, self._descends = state, heads, descends
        self._n = state.n
        answer = tables.get(f"{state.name}.answer")
        self._answer = heads if answer is None else answer
        self._columns_of_answer = [field.name for field in (state.first if answer is None else state.fields)]
        self._log = RowLog(state.name, heads, tables[f"{state.name}.blocks"]) if state.has_log else None
        self._counter_names = [field.name for field in state.counters]
        *_, self._size, self._owed = self._counter_names

    def there(self, heads: Slots) -> Bools:
        """Mark the keys with anything in their state."""
        return counted(self._heads, self._counter_names, heads)

    def drop(self, heads: Slots) -> None:
        """Remove all that keys have in the table of the full blocks."""
        if self._log is not None:
            self._log.drop(heads)

    def answers(self, heads: Slots, known: KnownSlots | None = None) -> FirstRows:
        """The answers of keys; `known`: where earlier answers of this batch were."""
        sizes = counts_at(self._heads, self._size, heads)
        groups, places = spans(sizes)
        slots = self._slots(heads, groups, places, known)
        return FirstRows(sizes, groups, places, self._columns(slots), slots)

    def apply(
        self,
        heads: Slots,
        values: Sequence[pa.Array],
        weights: IntArray,
        about_to_change: AboutToChange,
    ) -> None:
        """Take rows that come or go, given the slots of their keys."""
        distinct, groups = distinct_slots(heads, len(self._heads.present))
        if not self._state.fields:
            self._count(distinct, groups, weights, about_to_change)
            return
        values = [normalised(array) for array in values]
        touches = self._touching(distinct, groups, values[0])
        if self._log is not None:
            self._log.append(distinct, groups, values, weights)
        if touches.all():
            self._renew(distinct, groups, values, weights, about_to_change)
        elif touches.any():
            mask = pa.array(touches)
            keys, owners = distinct_slots(heads[touches], len(self._heads.present))
            self._renew(keys, owners, [array.filter(mask) for array in values], weights[touches], about_to_change)
        if self._log is not None:
            self._log.fold(distinct)

    def _count(self, distinct: Slots, groups: Integers, weights: IntArray, about_to_change: AboutToChange) -> None:
        """`apply` for rows without columns."""
        answers = self.answers(distinct)
        about_to_change(distinct, answers, np.ones(len(distinct), np.bool_))
        rows = self._counter_names[0]
        counts = counts_at(self._heads, rows, distinct) + np.bincount(groups, weights, len(distinct)).astype(np.int64)
        put_counts(self._heads, rows, distinct, counts)
        self._write(distinct, self._sized(np.clip(counts, 0, self._n)), answers.known)

    def _sized(self, sizes: Integers) -> FirstRows:
        return FirstRows(sizes, *spans(sizes), [])

    def _touching(self, distinct: Slots, groups: Integers, first: pa.Array) -> Bools:
        """Mark the rows that may be in the new answer, or may take a row out of it."""
        full = counts_at(self._heads, self._size, distinct) >= self._n
        full &= counts_at(self._heads, self._owed, distinct) == 0
        touches = ~full[groups]
        whole = np.flatnonzero(full)
        if not len(whole):
            return touches
        ends = self._slots(distinct, whole, np.full(len(whole), self._n - 1))
        column = self._answer.column(self._columns_of_answer[0])
        rows = np.flatnonzero(~touches)
        values = pa.concat_arrays([column.to_arrow(*column.gather(ends)), first.take(pa.array(rows))])
        ranks = ranks_of(values, least=not self._descends)
        number = np.cumsum(full) - 1
        touches[rows] = ranks[len(whole) :] <= ranks[number[groups[rows]]]
        return touches

    def _renew(
        self,
        distinct: Slots,
        groups: Integers,
        values: list[pa.Array],
        weights: IntArray,
        about_to_change: AboutToChange,
    ) -> None:
        """Find the new answers of keys, to which rows come or from which rows go; `groups`: the key of each row."""
        answers = self.answers(distinct)
        goes, comes = np.flatnonzero(weights < 0), np.flatnonzero(weights > 0)
        owners = np.concatenate([groups[goes], answers.groups, groups[comes]])  # of equal rows, one that goes is first
        columns = [
            pa.concat_arrays([array.take(pa.array(goes)), kept, array.take(pa.array(comes))])
            for kept, array in zip(answers.columns, values, strict=True)
        ]
        order = ordered(owners, len(distinct), columns, self._descends)
        owners, lives = owners[order], order >= len(goes)
        before: Integers = np.cumsum(lives) - lives
        rows_of_keys = np.bincount(owners, minlength=len(distinct))
        before -= before[np.cumsum(rows_of_keys) - rows_of_keys][owners]
        lost = counts_at(self._heads, self._owed, distinct) != 0
        lost[owners[~lives & (before < self._n)]] = True
        chosen = lives & (before < self._n) & ~lost[owners]
        renewed = np.zeros(len(distinct), np.bool_)
        renewed[owners[chosen & (order >= len(goes) + len(answers.groups))]] = True
        about_to_change(distinct, answers, renewed | lost)
        chosen &= renewed[owners]
        rows = pa.array(order[chosen])
        self._write(
            distinct[renewed],
            first_rows(np.cumsum(renewed)[owners[chosen]] - 1, renewed.sum(), [each.take(rows) for each in columns]),
            answers.known.of(renewed),
        )
        if lost.any():
            self._read(distinct[lost], answers.known.of(lost))

    def _read(self, heads: Slots, known: KnownSlots) -> None:
        """Take the answers of keys from their logs."""
        assert self._log is not None, "no row goes"
        found = self._log.rows_of(heads)
        owed = np.zeros(len(heads), np.int64)
        owed[found.groups[found.counts < 0]] = 1
        put_counts(self._heads, self._owed, heads, owed)
        found = found.there()
        order = ordered(found.groups, len(heads), found.columns, self._descends)
        groups, counts = found.groups[order], found.counts[order]
        behind = np.cumsum(counts)
        totals = np.concatenate([[0], behind])[np.searchsorted(groups, np.arange(len(heads)))]
        left = self._n - (behind - counts - totals[groups])
        rows = np.repeat(np.arange(len(order)), np.clip(counts, 0, np.maximum(left, 0)))
        columns = [column.take(pa.array(order[rows])) for column in found.columns]
        self._write(heads, first_rows(groups[rows], len(heads), columns), known)

    def _write(self, heads: Slots, new: FirstRows, known: KnownSlots) -> None:
        """Store the answers of keys; `known`: where their answers are."""
        if self._answer is not self._heads:
            gone = self._slots(heads, *spans(np.maximum(known.sizes - new.sizes, 0), new.sizes), known)
            self._answer.present[gone] = False
        slots = self._slots(heads, new.groups, new.places, known)
        for name, array in zip(self._columns_of_answer, new.columns, strict=True):
            column = self._answer.column(name)
            column.scatter(slots, *column.from_arrow(array))
        if self._answer is self._heads:
            for name in self._columns_of_answer:
                self._heads.column(name).clear(heads[new.sizes == 0])
        else:
            self._answer.present[slots] = True
        put_counts(self._heads, self._size, heads, new.sizes)

    def _slots(self, heads: Slots, groups: Integers, places: Integers, known: KnownSlots | None = None) -> Slots:
        """Return the slots of positions in answers; `groups` has the index of the key of each position."""
        if self._answer is self._heads:
            return heads[groups]
        if known is not None:
            slots, there = np.empty(len(groups), np.int32), places < known.sizes[groups]
            slots[there] = known.slots[(known.begins[groups] + places)[there]]
            if not there.all():
                slots[~there] = self._slots(heads, groups[~there], places[~there])
            return slots
        keys = self._heads.keys_of(heads[groups]).columns
        return self._answer.lookup(
            pa.RecordBatch.from_arrays([*keys, pa.array(places, pa.int64())], schema=self._answer.key_schema)
        )

    def _columns(self, slots: Slots) -> list[pa.Array]:
        columns = [self._answer.column(name) for name in self._columns_of_answer]
        return [column.to_arrow(*column.gather(slots)) for column in columns]


def first_rows(groups: Integers, count: int, columns: list[pa.Array]) -> FirstRows:
    """Make answers of rows in order of their keys, of which there are `count`."""
    sizes = np.bincount(groups, minlength=count)
    return FirstRows(sizes, *spans(sizes), columns)
