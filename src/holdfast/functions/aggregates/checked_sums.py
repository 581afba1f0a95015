"""Sums that can overflow their type, and the search for the rows that would make them overflow.

A bad row must change no aggregate of its operator, so sums come first and in two steps: `try_add` adds all rows of a
chunk or none, and `take_back` undoes a successful `try_add`. Only when every sum has taken the chunk do `add` and the
other accumulators run. If a sum refuses the chunk, `overflowing_rows` finds every bad row exactly, in row order, and
the chunk is tried again without them. A chunk without overflow pays an addition and a comparison for each row.
"""

from abc import abstractmethod
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.functions.aggregates import kernels
from holdfast.functions.aggregates.accumulators import Accumulator, Chunk, room
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.rows.columns import AnyArray, BoolArray, IntArray, cells_at, fixed_array, validity
from holdfast.state.physical import Slots, values_of
from holdfast.state.table import StateTable

EXACT = Context(prec=80)
"""Enough for any sum of two decimals of 38 digits; the default context rounds to 28."""


class CheckedSum(Accumulator):
    """`least` and `greatest` bound the sum, as integers in the unit of the type's last decimal place."""

    least: int
    greatest: int

    @abstractmethod
    def try_add(self, chunk: Chunk) -> int:
        """Add all rows and return -1, or add none and return the first row after which the sum does not fit."""

    @abstractmethod
    def take_back(self, chunk: Chunk) -> None:
        """Undo the last `try_add`, which took this chunk."""

    @abstractmethod
    def exact(self, value: Any) -> int:
        """A value of the column or of the state, in the unit of `least` and `greatest`."""

    @abstractmethod
    def fitted_between(self, chunk: Chunk) -> bool:
        """True if the sum also fitted after every row that the combined rows of this chunk stand for.

        `try_add` has taken the combined rows, with running values. Their columns `….min` and `….max` hold the
        extremes of their own running sums.
        """


class IntegerSum(CheckedSum):
    least = -(2**63)
    greatest = 2**63 - 1

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self.open_columns = (self.name,)
        self._out: AnyArray = room(0, np.int64)

    def try_add(self, chunk: Chunk) -> int:
        array = self.input(chunk)
        self._out = room(chunk.running_rows, np.int64)
        return int(kernels.add_integers(chunk.slots, values_of(array), validity(array), self.state()[0], self._out))

    def take_back(self, chunk: Chunk) -> None:
        array = self.input(chunk)
        kernels.subtract_integers(chunk.slots, values_of(array), validity(array), self.state()[0])

    def add(self, chunk: Chunk) -> pa.Array | None:
        out_valid = room(chunk.running_rows, np.bool_)
        kernels.mark_valid(chunk.slots, validity(self.input(chunk)), self.state()[1], out_valid)
        return fixed_array(self._out, out_valid, self.type) if chunk.running else None

    def exact(self, value: Any) -> int:
        return int(value)

    def fitted_between(self, chunk: Chunk) -> bool:
        before = self._out - _numbers(chunk, self.name)
        lowest = np.minimum(_numbers(chunk, f"{self.name}.min"), 0)
        highest = np.maximum(_numbers(chunk, f"{self.name}.max"), 0)
        return bool(((before >= self.least - lowest) & (before <= self.greatest - highest)).all())


def _numbers(chunk: Chunk, name: str) -> IntArray:
    """An int64 column, with 0 where it is null."""
    numbers: IntArray = values_of(pc.fill_null(chunk.rows.column(name), 0))
    return numbers


class DecimalSum(CheckedSum):
    """Decimals are added exactly, row by row, as Python objects."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self.greatest = 10**self.type.precision - 1
        self.least = -self.greatest
        self._too_large = Decimal(10) ** (self.type.precision - self.type.scale)
        self._out: list[Decimal | None] = []
        self._before: tuple[Slots, AnyArray, BoolArray] | None = None

    def try_add(self, chunk: Chunk) -> int:
        column, distinct = self.table.column(self.name), np.unique(chunk.slots)
        before = (distinct, *column.gather(distinct))
        cells = cells_at(distinct, column)
        self._out = []
        for row, (slot, value) in enumerate(zip(chunk.slots.tolist(), self.input(chunk).to_pylist(), strict=True)):
            total = cells[slot]
            if value is not None:
                total = value if total is None else EXACT.add(total, value)
                if total.copy_abs() >= self._too_large:
                    return row
                cells[slot] = total
            self._out.append(total)
        column.put_objects(distinct, [cells[slot] for slot in distinct.tolist()])
        self._before = before
        return -1

    def take_back(self, chunk: Chunk) -> None:
        if self._before is None:
            raise AssertionError("take_back without a try_add that took its chunk")
        before, self._before = self._before, None
        self.table.column(self.name).scatter(*before)

    def add(self, chunk: Chunk) -> pa.Array | None:
        out, self._out, self._before = self._out, [], None
        return pa.array(out, type=self.type) if chunk.running else None

    def exact(self, value: Any) -> int:
        return int(value.scaleb(self.type.scale, EXACT))

    def fitted_between(self, chunk: Chunk) -> bool:
        columns = [chunk.rows.column(name).to_pylist() for name in (self.name, f"{self.name}.min", f"{self.name}.max")]
        for after, total, lowest, highest in zip(self._out, *columns, strict=True):
            if total is None:
                continue
            before = EXACT.subtract(after, total)
            if max(EXACT.add(before, highest), EXACT.add(before, lowest).copy_negate()) >= self._too_large:
                return False
        return True


def try_all(sums: Sequence[CheckedSum], chunk: Chunk) -> bool:
    """Let all sums take the chunk, or none."""
    for number, checked in enumerate(sums):
        if checked.try_add(chunk) >= 0:
            for earlier in sums[:number]:
                earlier.take_back(chunk)
            return False
    return True


def overflowing_rows(sums: Sequence[CheckedSum], chunk: Chunk) -> dict[int, CheckedSum]:
    """Return the rows to leave out so that every sum fits after each of the other rows, each with the sum it overflows.

    Rows are taken in order; a bad row is left out of all sums. Nothing is changed.
    """
    rows = np.flatnonzero(_suspects(sums, chunk))
    slots = chunk.slots[rows].tolist()
    columns = [checked.input(chunk).take(pa.array(rows)).to_pylist() for checked in sums]
    totals = [_totals(checked, np.unique(chunk.slots[rows])) for checked in sums]
    bad: dict[int, CheckedSum] = {}
    for row, slot, *values in zip(rows.tolist(), slots, *columns, strict=True):
        after = [
            total[slot] + (0 if value is None else checked.exact(value))
            for checked, total, value in zip(sums, totals, values, strict=True)
        ]
        culprit = _first_outside(sums, after)
        if culprit is not None:
            bad[row] = culprit
            continue
        for total, new in zip(totals, after, strict=True):
            total[slot] = new
    return bad


def _first_outside(sums: Sequence[CheckedSum], after: Sequence[int]) -> CheckedSum | None:
    for checked, total in zip(sums, after, strict=True):
        if not checked.least <= total <= checked.greatest:
            return checked
    return None


def _totals(checked: CheckedSum, slots: Slots) -> dict[int, int]:
    totals = cells_at(slots, checked.table.column(checked.name))
    return {slot: 0 if total is None else checked.exact(total) for slot, total in totals.items()}


def _suspects(sums: Sequence[CheckedSum], chunk: Chunk) -> BoolArray:
    """Mark the rows of keys whose sums could overflow: the state plus the magnitudes of all their rows nears the
    bound."""
    distinct, groups = np.unique(chunk.slots, return_inverse=True)
    suspect = np.zeros(len(distinct), dtype=np.bool_)
    for checked in sums:
        totals = checked.table.column(checked.name).objects(distinct)
        unit = 10.0 ** (checked.type.scale if pa.types.is_decimal(checked.type) else 0)
        state = np.array([0 if total is None else total for total in totals], np.float64)
        added = pc.fill_null(pc.cast(checked.input(chunk), pa.float64(), safe=False), 0.0)
        weights = np.abs(added.to_numpy(zero_copy_only=False))
        reach = (np.abs(state) + np.bincount(groups, weights=weights, minlength=len(distinct))) * unit
        suspect |= reach >= 0.999 * checked.greatest
    return suspect[groups]
