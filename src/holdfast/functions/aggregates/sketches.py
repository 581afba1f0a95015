"""`approx_count_distinct`: a HyperLogLog sketch for each key, whose state is its stored form (`sketch_kernels`).

The sketches of all keys of a chunk are opened and stored together, so no Python code runs for a single row. The
sketches of two sets of rows merge to the sketch of all these rows: so senders combine rows, and panes become windows.
"""

import numpy as np
import pyarrow as pa

from holdfast.functions.aggregates import sketch_kernels
from holdfast.functions.aggregates.accumulators import Accumulator, Chunk
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.rows.columns import NO_MASK, AnyArray, IntArray, fixed_array
from holdfast.functions.rows.grouping import distinct_slots
from holdfast.state.keys import encode_columns
from holdfast.state.physical import Slots, validity_of, variable_array, variable_bytes_of
from holdfast.state.table import StateTable

OPEN_BYTES_MAX = 1 << 25
"""Registers that are open at a time. A higher value takes more memory for many keys."""


class Sketch(Accumulator):
    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self._precision = bound.precision
        self._at_once = max(1, OPEN_BYTES_MAX >> self._precision)

    def add(self, chunk: Chunk) -> pa.Array | None:
        if chunk.running:
            return self._add_one_by_one(chunk)
        distinct, groups = distinct_slots(chunk.slots, len(self.table.present))
        for start in range(0, len(distinct), self._at_once):
            some = distinct[start : start + self._at_once]
            inside = (groups >= start) & (groups < start + len(some))
            array = self.input(chunk)
            if inside.all():
                self._add(some, groups - start, array)
            else:
                self._add(some, groups[inside] - start, array.filter(pa.array(inside)))
        return None

    def results(self, slots: Slots) -> pa.Array:
        estimates = np.zeros(len(slots), np.int64)
        for start in range(0, len(slots), self._at_once):
            piece = slice(start, start + self._at_once)
            sketch_kernels.estimate(self._opened(slots[piece]), self._precision, estimates[piece])
        return fixed_array(estimates, NO_MASK, self.type)

    def _add(self, distinct: Slots, groups: IntArray, array: pa.Array) -> None:
        registers = self._opened(distinct)
        if self.combined:
            sketch_kernels.add_stored(groups, *variable_bytes_of(array), registers)
        else:
            valid = validity_of(array)
            if valid is not None:
                array, groups = array.filter(pa.array(valid)), groups[valid]
            hashes = encode_columns([array], [self.name]).hashes
            sketch_kernels.add_hashes(groups, hashes, self._precision, registers)
        self._store(distinct, registers)

    def _opened(self, slots: Slots) -> AnyArray:
        """The registers of distinct keys, a row each."""
        column = self.table.column(self.name)
        stored = column.to_arrow(*column.gather(slots))
        registers = np.zeros((len(slots), 1 << self._precision), np.uint8)
        sketch_kernels.add_stored(np.arange(len(slots)), *variable_bytes_of(stored), registers)
        return registers

    def _store(self, slots: Slots, registers: AnyArray) -> None:
        offsets = np.zeros(len(slots) + 1, np.int64)
        sketch_kernels.stored_sizes(registers, offsets[1:])
        np.cumsum(offsets, out=offsets)
        data = np.empty(int(offsets[-1]), np.uint8)
        sketch_kernels.store(registers, offsets, data)
        column = self.table.column(self.name)
        column.scatter(slots, *column.from_arrow(variable_array(offsets, data, None, column.field.type)))

    def _add_one_by_one(self, chunk: Chunk) -> pa.Array:
        """Running values: a Python loop."""
        out = []
        for row in range(len(chunk.slots)):
            slot = chunk.slots[row : row + 1]
            self._add(slot, np.zeros(1, np.int64), self.input(chunk).slice(row, 1))
            out.append(self.results(slot)[0].as_py())
        return pa.array(out, type=self.type)
