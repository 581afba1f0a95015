"""A subtask of a join as of a time: each left row meets the newest right row of its key that is not after it.

    right   ──a────────b──────c───►     the left row meets b, once the watermark has passed it: before, a newer
    left    ──────────────●───────►     right row might come that is not after it

    rows of a batch ──► kept, both sides
    watermark ──► left rows that it has passed ──► the newest right row each ──► put out, removed
             └──► right rows that it has passed ──► all but the newest of a key removed

Of each key, the operator keeps the left and right rows after the watermark, and the last right row before it.
"""

import numpy as np

from holdfast.functions.joins.bounds import AT, LEFT, NEVER_US, RIGHT, AsOf
from holdfast.functions.joins.join_operator import Arrived, JoinOperator
from holdfast.functions.joins.meeting import Intervals, Pairs, Points, SortedPoints
from holdfast.functions.joins.output import RowsOfTable
from holdfast.functions.rows.columns import BoolArray
from holdfast.state.physical import Integers, Slots


class AsOfOperator(JoinOperator):
    def _meet(self, sides: tuple[Arrived, ...], heads: Slots) -> None:
        """Do nothing: rows meet only once the watermark has passed them."""

    def _keep(self, side: int, arrived: Arrived, heads: Slots, until_us: int | None) -> None:
        """Keep all rows. Rows that the watermark has passed already meet and leave from the state like the others."""
        kept = self._kept[side]
        kept.add(arrived.rows, arrived.keys, heads, arrived.groups, arrived.times, arrived.matched)

    def _let_leave(self, until_us: int | None) -> int:
        if until_us is None:
            return 0
        kept_left, kept_right = self._kept[LEFT], self._kept[RIGHT]
        left, right = kept_left.leaving(until_us), kept_right.leaving(until_us)
        if len(left):
            self._meet_newest(left)
            kept_left.remove(left)
        return len(left) + self._replace(right, until_us)

    def _meet_newest(self, left: Slots) -> None:
        """Put out left rows, each with the right row that it meets."""
        kept_left, kept_right, bounds = self._kept[LEFT], self._kept[RIGHT], self._as_of
        heads, groups = np.unique(kept_left.heads_of(left), return_inverse=True)
        at = kept_left.times(left)[AT]
        of_right, right = kept_right.newest(heads, groups, at)
        points = SortedPoints(Points(of_right, kept_right.times(right)[AT]), len(heads))
        newest = points.newest(Intervals(groups, bounds.earliest(at), at))
        met = newest >= 0
        self._output.pairs(
            RowsOfTable(kept_left.table, left),
            RowsOfTable(kept_right.table, right),
            Pairs(np.flatnonzero(met), newest[met]),
        )
        self._output.alone(LEFT, RowsOfTable(kept_left.table, left[~met]))

    def _replace(self, passed: Slots, until_us: int) -> int:
        """Remove right rows that no left row may meet any more, from the keys of the rows `passed` by the watermark."""
        if not len(passed):
            return 0
        kept, bounds = self._kept[RIGHT], self._as_of
        groups, slots = self._replaceable(passed)
        at = kept.times(slots)[AT]
        before = np.flatnonzero(at < until_us)
        newest = before[_newest_of_each(groups[before], at[before])]
        leaves = bounds.leaves_as_newest(at[newest])
        stays = leaves > until_us
        gone: BoolArray = np.zeros(len(slots), np.bool_)
        gone[before] = True
        gone[newest[stays]] = False
        kept.leave_later(slots[newest[stays]], leaves[stays])
        kept.remove(slots[gone])
        return int(np.count_nonzero(gone))

    def _replaceable(self, passed: Slots) -> tuple[Integers, Slots]:
        """Return right rows of the keys of the `passed` rows: these rows, the rows before them and, for keys with few
        rows, also the rows after them."""
        kept = self._kept[RIGHT]
        heads, of_passed = np.unique(kept.heads_of(passed), return_inverse=True)
        long = kept.is_long(heads)
        if not long.any():
            return kept.of_keys(heads)
        first = np.full(len(heads), NEVER_US, np.int64)
        np.minimum.at(first, of_passed, kept.times(passed)[AT])
        groups, slots = kept.newest(heads, np.arange(len(heads)), first - 1)
        is_of_long = long[of_passed]
        groups = np.concatenate([groups, of_passed[is_of_long]])
        slots, places = np.unique(np.concatenate([slots, passed[is_of_long]]), return_index=True)
        order = np.lexsort((kept.numbers(slots), groups[places]))
        return groups[places][order], slots[order]

    @property
    def _as_of(self) -> AsOf:
        assert isinstance(self._bounds, AsOf), "declared so"
        return self._bounds


def _newest_of_each(groups: Integers, at: Integers) -> Integers:
    """Return the position of each group's newest row; of equally new rows, the last."""
    order = np.lexsort((at, groups))
    last = np.diff(groups[order], append=-1) != 0
    places: Integers = order[last]
    return places
