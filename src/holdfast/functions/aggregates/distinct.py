"""`collect_set` and `count_distinct` of values that can be keys: sets as arrays, for all keys of a batch at once.

    sender     rows ──► pairs (key, value) ──► a list for each key ──┐
    operator   rows, or these lists ──► pairs ◄── the keys' sets ────┴──► sets that grew are written anew

A set is a list in the table; no set is a Python object. Values are numbers here: those of fixed width themselves,
others by an index, which lasts as long as the pairs.
"""

import numpy as np
import pyarrow as pa

from holdfast.functions.aggregates.accumulators import Chunk
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.aggregates.more_accumulators import Collection
from holdfast.functions.aggregates.pair_set import PairSet, distinct_of_groups
from holdfast.functions.rows.columns import IntArray
from holdfast.functions.rows.grouping import distinct_slots
from holdfast.state.index import new_index
from holdfast.state.key_index import KeyIndex
from holdfast.state.keys import decode_integers, encode_columns, is_integer_kind
from holdfast.state.physical import Slots, validity_of, values_of
from holdfast.state.table import StateTable


class DistinctValues(Collection):
    """Distinct values in the operator. Running values come from the loop over rows of `Collection`."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self._element = pa.schema([pa.field("element", bound.input_type)])
        self._index: KeyIndex | None = None
        """Numbers the values; None if they are numbers already."""
        self._begin_numbers()

    def _begin_numbers(self) -> None:
        self._index = None if is_integer_kind(self._element) else new_index(self._element)

    def add(self, chunk: Chunk) -> pa.Array | None:
        if chunk.running:
            return super().add(chunk)
        self._begin_numbers()
        slots, values = self._pairs_of(chunk)
        if not len(slots):
            return None
        column = self.table.column(self.name)
        distinct, groups = distinct_slots(slots, len(column.values))
        there, sizes = np.flatnonzero(column.valid[distinct]), np.zeros(len(distinct), np.int64)
        if len(there):
            sets = column.to_arrow(*column.gather(distinct[there]))
            sizes[there] = np.diff(sets.offsets.to_numpy())
            groups = np.concatenate([np.repeat(there, sizes[there]), groups])
            values = np.concatenate([self._numbers_of(sets.values), values])
        starts, values = distinct_of_groups(groups, values, len(distinct))
        grown = np.flatnonzero(np.diff(starts) > sizes)
        sets = self._lists(starts, values)
        sets = sets if len(grown) == len(distinct) else sets.take(pa.array(grown))
        column.scatter(distinct[grown], *column.from_arrow(sets))
        return None

    def _lists(self, starts: IntArray, values: IntArray) -> pa.Array:
        """Make lists of values that are given by number; each list ends where the next begins."""
        if self._index is None:
            elements = decode_integers(values, self._element)[0]
        else:
            elements = self._index.columns(values.astype(np.int32))[0]
        kind = self.table.column(self.name).field.type
        return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), elements, type=kind)

    def _pairs_of(self, chunk: Chunk) -> tuple[Slots, IntArray]:
        """Return the slot and the value of each pair that the rows bring."""
        array, slots = self.input(chunk), chunk.slots
        if self.combined:
            slots, array = slots[values_of(array.value_parent_indices())], array.flatten()
        valid = validity_of(array)
        if valid is not None:
            array, slots = array.filter(pa.array(valid)), slots[valid]
        return slots, self._numbers_of(array)

    def _numbers_of(self, array: pa.Array) -> IntArray:
        """Number values; equal values have equal numbers."""
        keys = encode_columns([array], ["element"])
        if self._index is not None:
            return self._index.lookup(keys, 1)[0].astype(np.int64)
        assert keys.values is not None, "integers"
        return keys.values


class GatheredValues(DistinctValues):
    """Distinct values in a sender: the pairs of all rows, until their keys are sent."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self._pairs = PairSet()

    @property
    def memory_bytes(self) -> int:
        return self._pairs.memory_bytes + (0 if self._index is None else self._index.memory_bytes)

    def add(self, chunk: Chunk) -> None:
        self._pairs.add(*self._pairs_of(chunk))

    def held(self, slots: Slots) -> pa.Array:
        places = np.zeros(int(slots.max(initial=0)) + 1, np.int64)
        places[slots] = np.arange(len(slots))
        return self._lists(*self._pairs.by_group(places, len(slots)))

    def forget(self) -> None:
        self._pairs = PairSet()
        self._begin_numbers()
