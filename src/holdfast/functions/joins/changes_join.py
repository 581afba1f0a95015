"""`join` over changes: each side's rows are kept with their counts, and a batch gives what changed of what they make.

    rows of a side ──► bag of its rows ──► rows of which there are more or fewer: how many before, how many now
                                       └─► rows that these may meet
    a pair is there (left row's count) × (right row's count) times ──► fewer: taken back, more: given (`told.in_pairs`)

A pair changes only if one of its rows does: left rows that changed with all right rows of the key, then all others with
right rows that changed. A row without another side changes also where the other side's first row comes, or its last
one goes. Nothing depends on the order of rows, and nothing is given that the same batch takes back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.functions.changes.bag import Bag, BagChange, bag_tables, check_found_again
from holdfast.functions.changes.told import CHANGE_FIELD, KINDS, in_pairs
from holdfast.functions.changes.weights import weights_of
from holdfast.functions.joins.bounds import LEFT, RIGHT, SIDES
from holdfast.functions.joins.declared import HEADS, JoinSpec
from holdfast.functions.joins.meeting import PAIRS_MAX
from holdfast.functions.operator import (
    BatchContext,
    NewTable,
    Operator,
    OperatorInput,
    OperatorResult,
    TableSchema,
)
from holdfast.functions.rows.columns import concatenated
from holdfast.functions.rows.grouping import spans
from holdfast.functions.rows.pieces import in_pieces, rows_at_once
from holdfast.schema import CHANGE_TYPE, StreamKind
from holdfast.state.physical import Bools, Integers, Slots
from holdfast.state.table import StateTable

ALONE = -1
"""Instead of a row's number: the output has no row of that side."""


def without_change_type(side: OperatorInput) -> OperatorInput:
    """The input without the column that says how its rows change."""
    place = side.schema.get_field_index(CHANGE_TYPE)
    return side if place < 0 else replace(side, schema=side.schema.remove(place))


@dataclass(frozen=True)
class ChangesJoinSpec(JoinSpec):
    """A join whose rows may go. `given`: the inputs as they come; `sides` are without the change type."""

    given: tuple[OperatorInput, ...] = ()

    takes: ClassVar[tuple[StreamKind, ...]] = ("append", "changes")
    takes_back: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in (LEFT, RIGHT):
            if CHANGE_TYPE in self.sides[side].key_columns:
                raise JobRefused(f"operator {self.name!r}: {CHANGE_TYPE!r} is no key; it says how rows change")
            check_found_again(self.name, f"the {SIDES[side]} side of join()", self.values(side))

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return self.given

    @property
    def output_kind(self) -> StreamKind:
        return "changes"

    @property
    def output_schema(self) -> pa.Schema:
        return super().output_schema.append(CHANGE_FIELD)

    @property
    def is_timed(self) -> bool:
        return False

    @property
    def grows(self) -> str:
        return "" if all(side.kind == "changes" for side in self.given) else super().grows

    def values(self, side: int) -> list[pa.Field]:
        """The columns of a side's rows that are not keys."""
        declared = self.sides[side]
        return [field for field in declared.schema if field.name not in declared.key_columns]

    def table_schemas(self) -> dict[str, TableSchema]:
        numbers = [pa.field(_live(side), pa.int64()) for side in (LEFT, RIGHT)]
        tables = {HEADS: TableSchema(self.head_keys(LEFT), pa.schema(numbers))}
        for side in (LEFT, RIGHT):
            tables |= bag_tables(SIDES[side], self.sides[side].key_schema, self.values(side))
        return tables

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return ChangesJoinOperator(self, max_parallelism, new_table)


def _live(side: int) -> str:
    return f"{SIDES[side]}.live"


@dataclass(frozen=True)
class Changed:
    """The rows of a side that a batch changed, with the index of the key of each; and for each key, whether the side
    had rows before, and whether it has any now."""

    rows: BagChange
    groups: Integers
    was: Bools
    now: Bools

    def of(self, keys: slice) -> "Changed":
        """Choose some keys."""
        chosen = (self.groups >= keys.start) & (self.groups < keys.stop)
        return Changed(self.rows.chosen(chosen), self.groups[chosen] - keys.start, self.was[keys], self.now[keys])


@dataclass(frozen=True)
class RowsOfKeys:
    """Rows of a side: first those that changed, then others; the index of the key of each, its counts, its columns."""

    changed: int
    groups: Integers
    before: Integers
    after: Integers
    columns: dict[str, pa.Array]


class Made(NamedTuple):
    """Output that rows make: the index of the key, the numbers of the rows, how much more often it is there now."""

    groups: Integers
    left: Integers
    right: Integers
    weights: Integers


class ChangesJoinOperator(Operator):
    def __init__(self, spec: ChangesJoinSpec, max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self.tables = {name: new_table(*schema, max_parallelism) for name, schema in spec.table_schemas().items()}
        self._heads = self.tables[HEADS]
        self._bags = tuple(Bag(SIDES[side], self._heads, _live(side), self.tables) for side in (LEFT, RIGHT))
        self._columns, self._schema = spec.output_columns, spec.output_schema

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        for piece in in_pieces(inputs, self.room):
            self._take(piece, result)
        touched = self._heads.touched()
        self._heads.present[touched] = (self._bags[LEFT].live(touched) > 0) | (self._bags[RIGHT].live(touched) > 0)
        return result

    def _take(self, piece: list[tuple[int, pa.RecordBatch]], result: OperatorResult) -> None:
        """Take rows into the bags; put out what this changes."""
        changes = [self._apply(side, [rows for number, rows in piece if number == side]) for side in (LEFT, RIGHT)]
        heads, groups = np.unique(np.concatenate([each.heads for each in changes]), return_inverse=True)
        of_left = len(changes[LEFT].heads)
        left = self._changed(LEFT, changes[LEFT], heads, groups[:of_left])
        right = self._changed(RIGHT, changes[RIGHT], heads, groups[of_left:])
        for keys in self._pieces(heads, left, right):
            self._put_out(heads[keys], (left.of(keys), right.of(keys)), result)

    def _apply(self, side: int, pieces: list[pa.RecordBatch]) -> BagChange:
        rows = concatenated(pieces, self._spec.given[side].schema)
        keys = [rows.column(name) for name in self._spec.sides[side].key_columns]
        heads = self._heads.lookup(pa.RecordBatch.from_arrays(keys, schema=self._heads.key_schema))
        values = [rows.column(field.name) for field in self._spec.values(side)]
        return self._bags[side].apply(heads, values, weights_of(rows))

    def _changed(self, side: int, change: BagChange, heads: Slots, groups: Integers) -> Changed:
        live = self._bags[side].live(heads)
        came = np.bincount(groups[change.before == 0], minlength=len(heads))
        went = np.bincount(groups[change.after == 0], minlength=len(heads))
        return Changed(change, groups, live - came + went > 0, live > 0)

    def _pieces(self, heads: Slots, left: Changed, right: Changed) -> Iterator[slice]:
        """Divide keys so that those of a piece have few pairs, or are a single one."""
        of_left, of_right = (np.bincount(each.groups, minlength=len(heads)) for each in (left, right))
        all_left, all_right = (bag.live(heads) for bag in self._bags)
        pairs = np.cumsum(1 + of_left * (1 + all_right + of_right) + of_right * (1 + all_left))
        stops = [*(np.flatnonzero(np.diff(pairs // PAIRS_MAX)) + 1).tolist(), len(heads)]
        for start, stop in zip([0, *stops[:-1]], stops, strict=True):
            if stop > start:
                yield slice(start, stop)

    def _put_out(self, heads: Slots, changed: tuple[Changed, Changed], result: OperatorResult) -> None:
        """Put out what changed for some keys."""
        sides = self._sides(heads, changed)
        made = [np.concatenate(parts) for parts in zip(*self._made(sides, changed), strict=True)]
        groups, *numbers, weights = (part[np.lexsort((made[RIGHT + 1], made[LEFT + 1], made[0]))] for part in made)
        of_left_row = np.where(numbers[LEFT] == ALONE, numbers[LEFT].max(initial=0) + 1 + groups, numbers[LEFT])
        rows, kinds = in_pairs((of_left_row, groups), weights)
        at_once = rows_at_once(sum(self.tables[f"{SIDES[side]}.rows"].row_bytes for side in (LEFT, RIGHT)))
        for start in range(0, len(rows), at_once):
            piece = rows[start : start + at_once]
            keys = self._heads.keys_of(heads[groups[piece]])
            arrays = self._arrays(keys, sides, [of_side[piece] for of_side in numbers])
            arrays.append(pa.array(KINDS).take(pa.array(kinds[start : start + at_once])))
            result.output.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _sides(self, heads: Slots, changed: tuple[Changed, Changed]) -> list[RowsOfKeys]:
        """Return the rows that may be in the output; none of the right side if only their existence matters."""
        left, right = changed
        if not self._spec.gives_pairs:
            return [self._rows(LEFT, heads, left, right.was != right.now)]
        meets = [np.bincount(other.groups, minlength=len(heads)) > 0 for other in (right, left)]
        return [self._rows(side, heads, changed[side], meets[side]) for side in (LEFT, RIGHT)]

    def _rows(self, side: int, heads: Slots, changed: Changed, meets: Bools) -> RowsOfKeys:
        """The rows of a side that changed, and the others of the keys that `meets` marks."""
        bag, change = self._bags[side], changed.rows
        owners, slots = bag.of_keys(heads[meets])
        still_there = change.chosen((change.after > 0) & meets[changed.groups])
        others = ~np.isin(slots, bag.rows_of(still_there))
        owners, slots = np.flatnonzero(meets)[owners[others]], slots[others]
        counts = bag.counts(slots)
        groups = np.concatenate([changed.groups, owners])
        names = [*self._spec.sides[side].key_columns, *(field.name for field in self._spec.values(side))]
        values = [pa.concat_arrays(both) for both in zip(change.values, bag.values(slots), strict=True)]
        columns = dict(zip(names, [*self._heads.keys_of(heads[groups]).columns, *values], strict=True))
        before, after = (np.concatenate([each, counts]) for each in (change.before, change.after))
        return RowsOfKeys(len(change.heads), groups, before, after, columns)

    def _made(self, sides: list[RowsOfKeys], changed: tuple[Changed, Changed]) -> Iterator[Made]:
        spec = self._spec
        if spec.gives_pairs:
            yield from pairs_that_changed(*sides)
        for side, other in ((LEFT, changed[RIGHT]), (RIGHT, changed[LEFT])):
            if spec.keeps_alone(side):
                yield alone(side, sides[side], ~other.was, ~other.now)
        if spec.how == "semi":
            yield alone(LEFT, sides[LEFT], changed[RIGHT].was, changed[RIGHT].now)

    def _arrays(self, keys: pa.RecordBatch, sides: list[RowsOfKeys], numbers: list[Integers]) -> list[pa.Array]:
        """Return the columns that come from the sides, for rows given by their numbers."""
        arrays = []
        for column in self._columns:
            left, right = column.sources
            if left is not None and right is not None:
                arrays.append(keys.column(self._spec.sides[LEFT].key_columns.index(left)))
                continue
            side = RIGHT if left is None else LEFT
            of_side = numbers[side]
            arrays.append(sides[side].columns[str(left or right)].take(pa.array(of_side, mask=of_side == ALONE)))
        return arrays


def pairs_that_changed(left: RowsOfKeys, right: RowsOfKeys) -> Iterator[Made]:
    """Return the pairs of rows of the same key whose number has changed."""
    yield _product(left, slice(0, left.changed), right, slice(0, len(right.groups)))
    yield _product(left, slice(left.changed, len(left.groups)), right, slice(0, right.changed))


def _product(left: RowsOfKeys, of_left: slice, right: RowsOfKeys, of_right: slice) -> Made:
    owners = left.groups[of_left]
    by_key = np.argsort(right.groups[of_right], kind="stable")
    keys = right.groups[of_right][by_key]
    begins, ends = (np.searchsorted(keys, owners, end) for end in ("left", "right"))
    found, places = spans(ends - begins, begins)
    lefts, rights = found + of_left.start, by_key[places] + of_right.start
    weights = left.after[lefts] * right.after[rights] - left.before[lefts] * right.before[rights]
    some = weights != 0
    return Made(left.groups[lefts[some]], lefts[some], rights[some], weights[some])


def alone(side: int, rows: RowsOfKeys, was: Bools, now: Bools) -> Made:
    """Return the rows of a side that are given without another side: those before the batch, and those now."""
    weights = rows.after * now[rows.groups] - rows.before * was[rows.groups]
    some = np.flatnonzero(weights)
    nothing = np.full(len(some), ALONE)
    left, right = (some, nothing) if side == LEFT else (nothing, some)
    return Made(rows.groups[some], left, right, weights[some])
