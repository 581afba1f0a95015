"""Accumulators of deviations, of values by another column, and of collections. Conventions as in `accumulators`.

Collections are Python lists in the table: a batch that adds to a list writes it anew, in the changelog too. So they are
for keys with some thousand values at most.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.aggregates import more_kernels
from holdfast.functions.aggregates.accumulators import Accumulator, Chunk, better_rows, doubles, room, write_rows
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.rows.columns import (
    NO_MASK,
    bits,
    cells_at,
    fixed_array,
    has_kernels,
    stored_values,
    validity,
)
from holdfast.functions.rows.grouping import distinct_slots
from holdfast.python_values import exact_values
from holdfast.state.physical import Slots, values_of
from holdfast.state.table import StateTable


class Moments(Accumulator):
    """`stddev` and `variance`; the state column has the mean."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self.counters = (self.name, f"{self.name}.m2", f"{self.name}.count")
        self._root = bound.aggregate.function == "stddev"

    def add(self, chunk: Chunk) -> pa.Array | None:
        means, m2s, counts = (self.table.column(name).values for name in self.counters)
        if self.combined:
            more, more_m2s, more_counts = (values_of(chunk.rows.column(name)) for name in self.counters)
            more_kernels.merge_moments(chunk.slots, more, more_m2s, more_counts, means, m2s, counts)
            return None
        array = self.input(chunk)
        if not has_kernels(array.type):
            array = doubles(array)
        out, out_valid = room(chunk.running_rows, np.float64), room(chunk.running_rows, np.bool_)
        more_kernels.add_moments(
            chunk.slots, values_of(array), validity(array), means, m2s, counts, self._root, out, out_valid
        )
        return fixed_array(out, out_valid, self.type) if chunk.running else None

    def results(self, slots: Slots) -> pa.Array:
        _, m2s, counts = (self.table.column(name).values[slots] for name in self.counters)
        some = counts > 1
        found = np.divide(m2s, counts - 1, out=np.zeros(len(slots)), where=some)
        return fixed_array(np.sqrt(found) if self._root else found, some, self.type)


class By(Accumulator):
    """`max_by` and `min_by`. If any of the columns holds Python objects, a Python loop does the work."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self._by = f"{self.name}.by"
        self._by_input = self._by if combined else bound.aggregate.other
        self._greatest = bound.aggregate.function == "max_by"
        self._compiled = has_kernels(self.type) and has_kernels(bound.other_type)

    def add(self, chunk: Chunk) -> pa.Array | None:
        values, by = self.input(chunk), chunk.rows.column(self._by_input)
        if self._compiled:
            return self._add(chunk, values, by)
        if chunk.running:
            return self._add_objects(chunk, values, by)
        self._add_rows(chunk, values, by)
        return None

    def _add(self, chunk: Chunk, values: pa.Array, by: pa.Array) -> pa.Array | None:
        state, state_valid = self.state()
        best, numbers = self.table.column(self._by), values_of(values)
        out, out_valid = room(chunk.running_rows, numbers.dtype), room(chunk.running_rows, np.bool_)
        more_kernels.keep_by(
            chunk.slots,
            bits(numbers),
            validity(values),
            values_of(by),
            validity(by),
            self._greatest,
            bits(state),
            state_valid,
            best.values,
            best.valid,
            bits(out),
            out_valid,
        )
        return fixed_array(out, out_valid, self.type) if chunk.running else None

    def _add_rows(self, chunk: Chunk, values: pa.Array, by: pa.Array) -> None:
        """Write the rows that each key keeps, without objects."""
        kept, best = self.table.column(self.name), self.table.column(self._by)
        distinct, groups = distinct_slots(chunk.slots, len(best.values))
        rows = better_rows(best, distinct, by, groups, not self._greatest)
        write_rows(kept, distinct, values, rows)
        write_rows(best, distinct, by, rows)

    def _add_objects(self, chunk: Chunk, values: pa.Array, by: pa.Array) -> pa.Array | None:
        distinct = np.unique(chunk.slots)
        best = self.table.column(self._by)
        kept, bests = cells_at(distinct, self.table.column(self.name)), cells_at(distinct, best)
        out = []
        for slot, value, other in zip(chunk.slots.tolist(), stored_values(values), stored_values(by), strict=True):
            was = bests[slot]
            if other is not None and (was is None or (_above(other, was) if self._greatest else _above(was, other))):
                kept[slot], bests[slot] = value, other
            out.append(kept[slot])
        for column, cells in ((self.table.column(self.name), kept), (best, bests)):
            after = pa.array([cells[slot] for slot in distinct.tolist()], column.field.type)
            column.scatter(distinct, *column.from_arrow(after))
        return pa.array(out, type=self.type)


def _above(a: Any, b: Any) -> bool:
    """Return a mask of the values that are above others; NaN is above everything else."""
    return bool(a > b or (a != a and b == b))


class Collection(Accumulator):
    """`collect_list`, `collect_set` and `count_distinct`."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self._distinct = bound.aggregate.function != "collect_list"
        self._counts = bound.aggregate.function == "count_distinct"

    def add(self, chunk: Chunk) -> pa.Array | None:
        distinct = np.unique(chunk.slots)
        column = self.table.column(self.name)
        cells = {slot: list(kept or ()) for slot, kept in cells_at(distinct, column).items()}
        known = {slot: {_identity(value) for value in kept} for slot, kept in cells.items()} if self._distinct else {}
        out = []
        for slot, given in zip(chunk.slots.tolist(), exact_values(self.input(chunk)), strict=True):
            for value in (given or ()) if self.combined else () if given is None else (given,):
                if self._distinct:
                    identity = _identity(value)
                    if identity in known[slot]:
                        continue
                    known[slot].add(identity)
                    value = value + 0.0 if isinstance(value, float) else value  # -0.0 is 0.0
                cells[slot].append(value)
            if chunk.running:
                out.append(len(cells[slot]) if self._counts else list(cells[slot]))
        column.put_objects(distinct, [cells[slot] or None for slot in distinct.tolist()])
        return pa.array(out, type=self.type) if chunk.running else None

    def results(self, slots: Slots) -> pa.Array:
        column = self.table.column(self.name)
        if self._counts:
            return fixed_array(column.list_sizes(slots), NO_MASK, self.type)
        lists = column.to_arrow(*column.gather(slots))
        return pa.ListArray.from_arrays(lists.offsets, lists.values, type=self.type)


def _identity(value: Any) -> Any:
    """Return a value in the form in which sets compare it: all NaN are the same value."""
    return "NaN" if isinstance(value, float) and value != value else value
