"""`last`, `top` and `drop_duplicates` over changes: the first rows of each key in an order, and what changed of them.

    rows with weights ──► bag of the key's rows ──► rows that are not behind the key's answer ──► new answer
    at the end, for each key whose answer was touched: answer after beside answer before ──► what changed (`told`)

    state    key → number of distinct rows, number of rows of the answer
    answer   (key, place) → the row; the answer is the `n` first rows of the key, copies included
    rows     all rows of the key (`bag`), where rows may go

Where a row of the answer goes, all rows of its key are looked at; any other change costs a look-up. Rows are ordered by
`by`, then by their other columns in turn, so that an answer depends on the rows alone, never on their order.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.functions.changes.bag import Bag, BagChange, bag_tables, check_found_again
from holdfast.functions.changes.told import CHANGE_FIELD, KEYS_AT_ONCE_MAX, told
from holdfast.functions.changes.weights import weights_of
from holdfast.functions.operator import (
    BatchContext,
    NewTable,
    Operator,
    OperatorInput,
    OperatorResult,
    OperatorSpec,
    TableSchema,
)
from holdfast.functions.rows.grouping import spans
from holdfast.functions.rows.ordering import ordered
from holdfast.functions.rows.pieces import checked
from holdfast.schema import CHANGE_TYPE, StreamKind
from holdfast.state.keys import grouped_by
from holdfast.state.physical import Bools, Integers, Slots
from holdfast.state.table import StateTable

LIVE, SIZE, PLACE, RANK = "__live", "__size", "__place", "rank"
ANSWER, BAG = "answer", "kept"


@dataclass(frozen=True)
class RankedChangesSpec(OperatorSpec):
    """Raises `JobRefused` when made.

    Parameters
    ----------
    shown : str
        The call as a user wrote it, for messages.
    n : int
        Number of rows of each key that are given.
    by : str, optional
        The column that orders rows first; None: the others do, in turn.
    least : bool
        Whether the least values of `by` come first.
    ranked : bool
        Whether the output has the column `rank`.
    changes : bool
        Whether the output is a stream of changes; otherwise it is one of upserts by key, and rank if shown.
    """

    name: str
    input: OperatorInput
    shown: str
    n: int = 1
    by: str | None = None
    least: bool = False
    ranked: bool = False
    changes: bool = True

    takes: ClassVar[tuple[StreamKind, ...]] = ("append", "changes")

    def __post_init__(self) -> None:
        if CHANGE_TYPE in (self.by, *self.input.key_columns):
            raise JobRefused(
                f"operator {self.name!r}: {self.shown} reads {CHANGE_TYPE!r} as a key or an order, and it says how "
                "rows change; rename the column before key_by, or put .as_append() before it"
            )
        if self.keeps_all:
            check_found_again(self.name, self.shown, self.others)

    @property
    def keeps_all(self) -> bool:
        """True if rows may go, so that all rows are kept."""
        return self.input.kind != "append"

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def output_kind(self) -> StreamKind:
        return "changes" if self.changes else "upserts"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (*self.input.key_columns, *([RANK] if self.ranked else []))

    @property
    def declared_keys(self) -> tuple[str, ...]:
        return self.input.key_columns

    @property
    def others(self) -> list[pa.Field]:
        """The columns of the input that are not keys, the one that orders rows first in front."""
        found = [field for field in self.input.schema if field.name not in (*self.input.key_columns, CHANGE_TYPE)]
        return sorted(found, key=lambda field: field.name != self.by)

    @property
    def told_schema(self) -> pa.Schema:
        """The columns of the output in another order: key, rank, the rest as it is kept."""
        rank = pa.field(RANK if self.ranked else PLACE, pa.int64(), nullable=False)
        return pa.schema([*self.input.key_schema, rank, *self.others, CHANGE_FIELD])

    @property
    def output_schema(self) -> pa.Schema:
        names = [name for name in self.input.schema.names if name != CHANGE_TYPE]
        if self.ranked:
            keys = self.input.key_columns
            names = [*keys, RANK, *(name for name in names if name not in keys)]
        return pa.schema([self.told_schema.field(name) for name in [*names, CHANGE_TYPE]])

    @property
    def calls_no_user(self) -> bool:
        return True

    def table_schemas(self) -> dict[str, TableSchema]:
        keys = self.input.key_schema
        places = grouped_by(keys.append(pa.field(PLACE, pa.int64(), nullable=False)), len(keys))
        numbers = [pa.field(name, pa.int64()) for name in (LIVE, SIZE)]
        return {
            "state": TableSchema(keys, pa.schema(numbers)),
            ANSWER: TableSchema(places, pa.schema(self.others)),
            **(bag_tables(BAG, keys, self.others, counted=True) if self.keeps_all else {}),
        }

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return RankedChangesOperator(self, max_parallelism, new_table)


@dataclass(frozen=True)
class FirstRows:
    """The answers of some keys: how many rows each has; of each row the index of its key, its place, its columns."""

    sizes: Integers
    groups: Integers
    places: Integers
    columns: list[pa.Array]


class RankedChangesOperator(Operator):
    def __init__(self, spec: RankedChangesSpec, max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self.tables = {name: new_table(*schema, max_parallelism) for name, schema in spec.table_schemas().items()}
        self._heads, self._answer = self.tables["state"], self.tables[ANSWER]
        self._bag = Bag(BAG, self._heads, LIVE, self.tables) if spec.keeps_all else None
        self._descends = spec.by is not None and not spec.least
        self._row_fields = spec.others

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        noted: list[tuple[Slots, FirstRows]] = []
        for _, rows in checked(inputs, self.room):
            if rows.num_rows:
                self._take(rows, noted)
        for heads, before in noted:
            self._put_out(heads, before, result)
        touched = self._heads.touched()
        self._heads.present[touched] = self._heads.column(LIVE if self._bag else SIZE).values[touched] > 0
        return result

    def _take(self, rows: pa.RecordBatch, noted: list[tuple[Slots, FirstRows]]) -> None:
        """Take rows into the state; note the keys whose answers this touches first, with their answers before."""
        change = self._before_end_of_answer(self._changed(rows))
        heads, groups = np.unique(change.heads, return_inverse=True)
        if not len(heads):
            return
        known = [each for each, _ in noted]
        new = heads[~np.isin(heads, np.concatenate(known))] if known else heads
        if len(new):
            noted.append((new, self._answers(new)))
        lost = np.zeros(len(heads), np.bool_)
        lost[groups[change.after < change.before]] = True
        self._write(heads, self._first(len(heads), *self._candidates(heads, groups, lost, change)))

    def _changed(self, rows: pa.RecordBatch) -> BagChange:
        """The rows of which there are more or fewer now."""
        heads = self._heads.lookup(rows)
        values = [rows.column(field.name) for field in self._row_fields]
        if self._bag is not None:
            return self._bag.apply(heads, values, weights_of(rows))
        ones = np.ones(len(heads), np.int64)
        return BagChange(heads, heads, values, ones - 1, ones)

    def _before_end_of_answer(self, change: BagChange) -> BagChange:
        """Choose the changes that touch the answers of their keys: rows not behind the last row of a whole answer."""
        sizes = self._heads.column(SIZE).values[change.heads]
        full = np.flatnonzero(sizes >= self._spec.n)
        touches = np.ones(len(change.heads), np.bool_)
        if len(full):
            last = self._columns(self._slots(change.heads[full], np.arange(len(full)), sizes[full] - 1))
            rows = [row.take(pa.array(full)) for row in change.values]
            pairs = [pa.concat_arrays(both) for both in zip(rows, last, strict=True)]
            place = np.empty(2 * len(full), np.int64)
            numbers = np.arange(len(full))
            place[self._ordered(np.concatenate([numbers, numbers]), pairs)] = np.arange(2 * len(full))
            touches[full] = place[: len(full)] < place[len(full) :]
        return change if touches.all() else change.chosen(touches)

    def _candidates(
        self, heads: Slots, groups: Integers, lost: Bools, change: BagChange
    ) -> tuple[Integers, Integers, list[pa.Array]]:
        """Rows among which the new answers are, with how often each is there: of keys whose answer lost a row all rows,
        of others the answer and the rows that came."""
        kept = np.flatnonzero(~lost)
        answers = self._answers(heads[kept])
        comes = np.flatnonzero((change.after > change.before) & ~lost[groups])
        owners = [kept[answers.groups], groups[comes]]
        counts = [np.ones(len(answers.groups), np.int64), (change.after - change.before)[comes]]
        columns = [[one, row.take(pa.array(comes))] for one, row in zip(answers.columns, change.values, strict=True)]
        if lost.any() and self._bag is not None:
            of_lost, rows = self._bag.of_keys(heads[lost])
            owners.append(np.flatnonzero(lost)[of_lost])
            counts.append(self._bag.counts(rows))
            for parts, more in zip(columns, self._bag.values(rows), strict=True):
                parts.append(more)
        return np.concatenate(owners), np.concatenate(counts), [pa.concat_arrays(parts) for parts in columns]

    def _first(self, size: int, owners: Integers, counts: Integers, columns: list[pa.Array]) -> FirstRows:
        """The first `n` rows of each key."""
        order = self._ordered(owners, columns)
        owners, counts = owners[order], counts[order]
        behind = np.cumsum(counts)
        begins = np.searchsorted(owners, np.arange(size))
        totals = np.concatenate([[0], behind])[begins]
        left = self._spec.n - (behind - counts - totals[owners])
        copies = np.clip(counts, 0, np.maximum(left, 0))
        rows = np.repeat(np.arange(len(order)), copies)
        sizes = np.bincount(owners[rows], minlength=size)
        groups, places = spans(sizes)
        return FirstRows(sizes, groups, places, [column.take(pa.array(order[rows])) for column in columns])

    def _write(self, heads: Slots, new: FirstRows) -> None:
        """Store the answers of keys."""
        sizes = self._heads.column(SIZE)
        gone = self._slots(heads, *spans(np.maximum(sizes.values[heads] - new.sizes, 0), new.sizes))
        self._answer.present[gone] = False
        slots = self._slots(heads, new.groups, new.places)
        for field, array in zip(self._row_fields, new.columns, strict=True):
            column = self._answer.column(field.name)
            column.scatter(slots, *column.from_arrow(array))
        self._answer.present[slots] = True
        sizes.scatter(heads, new.sizes, np.ones(len(heads), np.bool_))

    def _answers(self, heads: Slots) -> FirstRows:
        """The answers of keys as they are stored."""
        sizes = self._heads.column(SIZE).values[heads]
        groups, places = spans(sizes)
        return FirstRows(sizes, groups, places, self._columns(self._slots(heads, groups, places)))

    def _slots(self, heads: Slots, groups: Integers, places: Integers) -> Slots:
        """The slots of places in answers; `groups`: the index of the key of each."""
        keys = self._heads.keys_of(heads[groups]).columns
        return self._answer.lookup(
            pa.RecordBatch.from_arrays([*keys, pa.array(places, pa.int64())], schema=self._answer.key_schema)
        )

    def _columns(self, slots: Slots) -> list[pa.Array]:
        columns = [self._answer.column(field.name) for field in self._row_fields]
        return [column.to_arrow(*column.gather(slots)) for column in columns]

    def _ordered(self, groups: Integers, columns: list[pa.Array]) -> Integers:
        return ordered(groups, columns, self._descends)

    def _put_out(self, heads: Slots, before: FirstRows, result: OperatorResult) -> None:
        """Put out what changed of the answers of keys."""
        at_once = max(1, KEYS_AT_ONCE_MAX // self._spec.n)
        names = self._spec.output_schema.names
        begins = np.cumsum(before.sizes) - before.sizes
        for start in range(0, len(heads), at_once):
            piece = heads[start : start + at_once]
            after = self._answers(piece)
            old_sizes = before.sizes[start : start + at_once]
            groups, places = spans(np.maximum(old_sizes, after.sizes))
            was, now = places < old_sizes[groups], places < after.sizes[groups]
            old = pa.array(begins[start + groups] + places, mask=~was)
            new = pa.array((np.cumsum(after.sizes) - after.sizes)[groups] + places, mask=~now)
            keys = [*self._heads.keys_of(piece[groups]).columns, pa.array(places + 1)]
            rows = told(
                keys,
                (was, [each.take(old) for each in before.columns]),
                (now, [each.take(new) for each in after.columns]),
                self._spec.told_schema,
                self._spec.changes,
            )
            if rows.num_rows:
                result.output.append(rows.select(names))
