"""A subtask of a join: rows meet the other side's rows of their key as they come, and are kept until they leave.

    rows of a batch ──► late ones out ──► numbers of their keys ──► pairs with kept rows, and with each other
                                                                 └─► kept, if rows may yet come that meet them
    watermark ──► rows that leave, by the index ──► put out alone where they met no other and the join wants them

All of this works on arrays: the left rows of each key are sorted, and each right row searches its interval among them
(`meeting`). The cost of a batch is in proportion to its rows and to the kept rows that they may meet: if a key has many
rows, those are found by their times.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.functions.joins.bounds import AT, LEAVES, LEFT, RIGHT, SIDES, SameWindow, Times
from holdfast.functions.joins.condition import PairCondition
from holdfast.functions.joins.kept_rows import KeptRows
from holdfast.functions.joins.meeting import Intervals, Pairs, Points, SortedPoints
from holdfast.functions.joins.output import JoinOutput, RowsOfBatch, RowsOfTable, SideRows
from holdfast.functions.operator import BatchContext, NewTable, Operator, OperatorResult, Timers, before
from holdfast.functions.rows.columns import BoolArray, concatenated
from holdfast.functions.rows.grouping import distinct_slots
from holdfast.functions.rows.late import LateRows
from holdfast.functions.rows.pieces import fits, in_pieces
from holdfast.functions.windows.panes import windows_of
from holdfast.functions.windows.sending import PANE_FIELD
from holdfast.state.physical import Integers, Slots

if TYPE_CHECKING:
    from holdfast.functions.joins.declared import JoinSpec


@dataclass
class Arrived:
    """The rows of a side in a batch, with their keys by the column names of the heads, their times, the index of each
    row's key among the keys of the batch, and whether each row met another."""

    rows: pa.RecordBatch
    keys: pa.RecordBatch
    times: Times
    groups: Integers
    matched: BoolArray


class JoinOperator(Operator):
    def __init__(self, spec: "JoinSpec", max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self._bounds = spec.bounds
        self.tables = {
            name: new_table(schema.keys, schema.values, max_parallelism)
            for name, schema in spec.table_schemas().items()
        }
        self._heads = self.tables["heads"]
        self._kept = tuple(KeptRows(side, spec.bounds, self._heads, self.tables[SIDES[side]]) for side in (LEFT, RIGHT))
        self._late = tuple(LateRows(spec.name, spec.late) for _ in SIDES)
        self._output = JoinOutput(spec)
        self._condition = PairCondition(spec)

    @property
    def memory_bytes(self) -> int:
        return sum(kept.memory_bytes for kept in self._kept)

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        self._output.begin(result)
        self._condition.begin(result, context)
        for kept in self._kept:
            kept.begin()
        until_us = self._bounds.until_us(context)
        left_before = 0 if self._bounds.by_event_time else self._let_leave(until_us)
        on_time = [each for side in (LEFT, RIGHT) for each in self._on_time(side, inputs, context, result)]
        # Rows of a piece may meet rows of a later piece, so they are kept as if the watermark had not come yet.
        is_whole = fits(on_time, self.room, self.copies_of_a_row)
        stay_until_us = until_us if is_whole else self._bounds.until_us(before(context))
        for piece in in_pieces(on_time, self.room, self.copies_of_a_row):
            self._take(piece, context, stay_until_us)
        came = [] if is_whole else [(kept.table, kept.table.appeared()) for kept in self._kept]
        fired = left_before + self._let_leave(until_us)
        fired -= sum(int(np.count_nonzero(~table.present[slots])) for table, slots in came)
        late = sum(each.count for each in self._late)
        late_rows = {side: each.rows for side, each in enumerate(self._late)}
        return replace(result, timers=self._timers(fired), late=late, late_rows=late_rows)

    def _timers(self, fired: int) -> Timers:
        next_us = min((due for kept in self._kept if (due := kept.next_us()) is not None), default=None)
        return Timers(next_us, None, fired) if self._bounds.by_event_time else Timers(None, next_us, fired)

    # Arrival.

    @property
    def copies_of_a_row(self) -> int:
        if not isinstance(self._bounds, SameWindow):
            return 1
        return max(1 if each.tumbles else -(-each.size_us // each.slide_us) for each in self._bounds.windows)

    def _on_time(
        self, side: int, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext, result: OperatorResult
    ) -> list[tuple[int, pa.RecordBatch]]:
        of_side = [(number, rows) for number, rows in inputs if number == side]
        return self._late[side].put_aside(
            of_side, lambda rows: self._bounds.late(side, rows, context.closed_us), context, result
        )

    def _take(self, piece: list[tuple[int, pa.RecordBatch]], context: BatchContext, until_us: int | None) -> None:
        """Let rows meet others, and keep them."""
        sides = tuple(self._arrived(side, piece, context) for side in (LEFT, RIGHT))
        if not any(side.rows.num_rows for side in sides):
            return
        heads = self._number(sides)
        self._meet(sides, heads)
        for side, arrived in enumerate(sides):
            self._keep(side, arrived, heads, until_us)

    def _arrived(self, side: int, piece: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> Arrived:
        declared, bounds = self._spec.sides[side], self._bounds
        rows = concatenated([rows for number, rows in piece if number == side and rows.num_rows], declared.schema)
        columns = [rows.column(name) for name in declared.key_columns]
        if isinstance(bounds, SameWindow):
            window = bounds.windows[side]
            closed_us = None if context.closed_us is None else context.closed_us - bounds.behind_us
            owners, starts = windows_of(window, window.panes_of(rows), closed_us)
            if not window.tumbles:
                rows, columns = rows.take(pa.array(owners)), [column.take(pa.array(owners)) for column in columns]
            columns.append(pa.array(starts))
            rows = rows.append_column(PANE_FIELD, columns[-1])
            times: Times = {LEAVES: bounds.leaves_of(side, starts)}
        else:
            times = bounds.times(side, rows, context.batch_time_us)
        keys = pa.RecordBatch.from_arrays(columns, schema=self._spec.head_keys(LEFT))
        nothing = np.empty(0, np.int64)
        return Arrived(rows, keys, times, nothing, np.zeros(rows.num_rows, np.bool_))

    def _number(self, sides: tuple[Arrived, ...]) -> Slots:
        """Number the distinct keys of the rows; return the slots of their heads."""
        slots = np.concatenate([self._heads.lookup(side.keys) for side in sides])
        distinct, groups = distinct_slots(slots, len(self._heads.present))
        left = sides[LEFT].rows.num_rows
        sides[LEFT].groups, sides[RIGHT].groups = groups[:left], groups[left:]
        return distinct.copy()

    # Meeting.

    def _meet(self, sides: tuple[Arrived, ...], heads: Slots) -> None:
        """Find all pairs in which a row of this batch takes part, and put out the joined rows."""
        left, right = sides
        kept_left, kept_right = self._kept
        points = SortedPoints(_points(left.groups, left.times), len(heads))
        groups, slots = self._kept_with(RIGHT, left, heads)
        pairs = points.meet(self._intervals(groups, kept_right.times(slots)))
        self._met(left, right, pairs, right_slots=slots)
        self._met(left, right, points.meet(self._intervals(right.groups, right.times)))
        groups, slots = self._kept_with(LEFT, right, heads)
        kept_points = SortedPoints(_points(groups, kept_left.times(slots)), len(heads))
        self._met(left, right, kept_points.meet(self._intervals(right.groups, right.times)), left_slots=slots)
        if self._spec.how == "semi":
            self._output.alone(LEFT, RowsOfBatch(left.rows.filter(pa.array(left.matched))))

    def _intervals(self, groups: Integers, times: Times) -> Intervals:
        """The times that right rows meet."""
        nothing = np.zeros(len(groups), np.int64)
        return Intervals(groups, *(self._bounds.meets(times) or (nothing, nothing)))

    def _kept_with(self, side: int, others: Arrived, heads: Slots) -> tuple[Integers, Slots]:
        """Return the kept rows of a side that new rows of the other side may meet: the index of each one's key, and its
        slot."""
        wanted = np.zeros(len(heads), np.bool_)
        wanted[others.groups] = True
        chosen = np.flatnonzero(wanted)
        of_others = (np.cumsum(wanted) - 1)[others.groups]
        ranges = self._bounds.kept_times(side, others.times)
        kept = self._kept[side]
        asks_for_any = side == RIGHT and not self._spec.gives_pairs and not self._condition.is_there
        if ranges is None and asks_for_any:
            groups, slots = kept.one_of_each(heads[chosen])  # a left row asks only whether there is any
        else:
            groups, slots = kept.meeting(heads[chosen], of_others, ranges)
        return chosen[groups], slots

    def _met(
        self,
        left: Arrived,
        right: Arrived,
        meetings: Iterable[Pairs],
        left_slots: Slots | None = None,
        right_slots: Slots | None = None,
    ) -> None:
        """Note the rows that met: kept rows if slots are given for their side, otherwise rows of this batch. `meetings`
        has the pairs, in pieces."""
        left_rows, right_rows = self._rows(LEFT, left, left_slots), self._rows(RIGHT, right, right_slots)
        left_met, right_met = np.zeros(len(left_rows), np.bool_), np.zeros(len(right_rows), np.bool_)
        for met in meetings:
            pairs = self._condition.true_pairs(left_rows, right_rows, met)
            left_met[pairs.left] = True
            if self._spec.gives_pairs and len(pairs.left):
                right_met[pairs.right] = True
                self._output.pairs(left_rows, right_rows, pairs)
        self._note_match(LEFT, left, left_met, left_slots)
        if self._spec.gives_pairs:
            self._note_match(RIGHT, right, right_met, right_slots)

    def _rows(self, side: int, arrived: Arrived, slots: Slots | None) -> SideRows:
        return RowsOfBatch(arrived.rows) if slots is None else RowsOfTable(self._kept[side].table, slots)

    def _note_match(self, side: int, arrived: Arrived, met: BoolArray, slots: Slots | None) -> None:
        if slots is None:
            arrived.matched |= met
            return
        if not met.any():
            return
        if self._spec.gives_pairs:
            if self._spec.keeps_alone(side):
                self._kept[side].set_matched(slots[met])
            return
        if self._spec.how == "semi":
            self._output.alone(side, RowsOfTable(self._kept[side].table, slots[met]))
        self._kept[side].remove(slots[met])

    # Keeping, leaving.

    def _keep(self, side: int, arrived: Arrived, heads: Slots, until_us: int | None) -> None:
        """Keep the rows that came, unless no other may meet them any more."""
        spec = self._spec
        leaves = self._bounds.leaves(side, arrived.times)
        stays = np.ones(arrived.rows.num_rows, np.bool_)
        if leaves is not None and until_us is not None:
            stays = leaves > until_us
        if side == LEFT and not spec.gives_pairs:
            stays &= ~arrived.matched
        if spec.keeps_alone(side):
            self._output.alone(side, RowsOfBatch(arrived.rows.filter(pa.array(~stays & ~arrived.matched))))
        if not stays.any():
            return
        rows, keys = arrived.rows, arrived.keys
        times, groups, matched = arrived.times, arrived.groups, arrived.matched
        if not stays.all():
            mask = pa.array(stays)
            rows, keys = rows.filter(mask), keys.filter(mask)
            times = {name: values[stays] for name, values in times.items()}
            groups, matched = groups[stays], matched[stays]
        self._kept[side].add(rows, keys, heads, groups, times, matched)

    def _let_leave(self, until_us: int | None) -> int:
        """Remove the rows that leave by a time; return their number."""
        if until_us is None:
            return 0
        count = 0
        for side, kept in enumerate(self._kept):
            slots = kept.leaving(until_us)
            if self._spec.keeps_alone(side):
                alone = kept.unmatched(slots) if self._spec.gives_pairs else slots
                self._output.alone(side, RowsOfTable(kept.table, alone))
            kept.remove(slots)
            count += len(slots)
        return count


def _points(groups: Integers, times: Times) -> Points:
    return Points(groups, times[AT] if AT in times else np.zeros(len(groups), np.int64))
