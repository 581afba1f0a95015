"""`count_distinct` of keys with very many values: a row of a table of its own for each value, and a count in the state.

    state    key → the values as a set                       up to `SET_MAX` values, written whole when it grows
             key → null, `….count`: how many there are       past it
    values   (key, value) → nothing                          a row for each value, written once

So a batch costs the same however many values its keys have, in memory, on RocksDB and in the changelog. A stored state
with a larger set is read as it is; the key's values move to the table of values with the first batch that adds to them.
"""

import numpy as np
import pyarrow as pa

from holdfast.functions.aggregates.accumulators import Accumulator, Chunk
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.operator import TableSchema
from holdfast.functions.rows.columns import NO_MASK, BoolArray, IntArray, fixed_array
from holdfast.state.keys import can_be_key, grouped_by
from holdfast.state.physical import Integers, Slots, validity_of, values_of
from holdfast.state.table import StateTable

SET_MAX = 4_096
"""Values up to which a key's set is a single value of the state. A higher value writes more at each change; a lower
value makes rows of more sets, which take some 60 bytes a value more in memory."""
VALUE = "__value"
"""The last key column of the table of values."""


def count_column(bound: BoundAggregate) -> pa.Field:
    """The state column with the number of values of keys whose values are rows."""
    return pa.field(f"{bound.state_column}.count", pa.int64())


def values_table(bound: BoundAggregate, keys: pa.Schema) -> tuple[str, TableSchema] | None:
    """The name and the schema of the table of values; None: the aggregate keeps none, or its values can't be keys."""
    if bound.aggregate.function != "count_distinct":
        return None
    if not can_be_key(bound.input_type):
        return None
    value = pa.field(VALUE, bound.input_type, nullable=False)
    return f"{bound.state_column}.values", TableSchema(grouped_by(keys.append(value), len(keys)), pa.schema([]))


class CountedValues(Accumulator):
    """`count_distinct` over `small`, which keeps sets, and the table `values`."""

    def __init__(self, bound: BoundAggregate, table: StateTable, small: Accumulator, values: StateTable) -> None:
        super().__init__(bound, table, small.combined)
        self._small = small
        self._values = values
        self._count = count_column(bound).name

    def add(self, chunk: Chunk) -> pa.Array | None:
        is_large = self.table.column(self._count).valid[chunk.slots]
        if not is_large.any():
            return self._add_small(chunk)
        if is_large.all():
            return self._add_large(chunk)
        out = np.empty(len(chunk.slots), np.int64)
        for chosen, add in ((~is_large, self._add_small), (is_large, self._add_large)):
            found = add(chunk.only(chosen))
            if found is not None:
                out[chosen] = values_of(found)
        return fixed_array(out, NO_MASK, self.type) if chunk.running else None

    def results(self, slots: Slots) -> pa.Array:
        counts, is_large = self.table.column(self._count).gather(slots)
        if is_large.all():
            return pa.array(counts, self.type)
        return pa.array(np.where(is_large, counts, values_of(self._small.results(slots))), self.type)

    def _add_small(self, chunk: Chunk) -> pa.Array | None:
        out = self._small.add(chunk)
        slots = np.unique(chunk.slots)
        sizes = values_of(self._small.results(slots))
        if (sizes > SET_MAX).any():
            self._spread(slots[sizes > SET_MAX], sizes[sizes > SET_MAX])
        return out

    def _spread(self, slots: Slots, sizes: Integers) -> None:
        """Turn the sets of some keys into rows; `sizes` has the number of values of each key."""
        column = self.table.column(self.name)
        sets = column.to_arrow(*column.gather(slots))
        rows = self._rows_of(slots[values_of(sets.value_parent_indices())], sets.flatten())
        self._values.present[rows] = True
        column.clear(slots)
        self.table.column(self._count).scatter(slots, sizes, np.ones(len(slots), np.bool_))

    def _rows_of(self, slots: Slots, values: pa.Array) -> Slots:
        """The rows of some values of keys."""
        keys = self.table.keys_of(slots).columns
        return self._values.lookup(pa.RecordBatch.from_arrays([*keys, values], schema=self._values.key_schema))

    def _add_large(self, chunk: Chunk) -> pa.Array | None:
        array, owners = self.input(chunk), np.arange(len(chunk.slots))
        if self.combined:
            array, owners = array.flatten(), values_of(array.value_parent_indices())
        valid = validity_of(array)
        if valid is not None:
            array, owners = array.filter(pa.array(valid)), owners[valid]
        rows = self._rows_of(chunk.slots[owners], array)
        distinct, first = np.unique(rows, return_index=True)
        first = first[~self._values.present[distinct]]
        self._values.present[rows[first]] = True
        counts = self.table.column(self._count)
        before = counts.values[chunk.slots]
        np.add.at(counts.values, chunk.slots[owners[first]], 1)
        if not chunk.running:
            return None
        is_new = np.zeros(len(chunk.slots), np.int64)
        np.add.at(is_new, owners[first], 1)
        return fixed_array(before + _running(chunk.slots, is_new), NO_MASK, self.type)


def _running(slots: Slots, added: IntArray) -> Integers:
    """The sum of what each row and the earlier rows of its slot added."""
    order = np.argsort(slots, kind="stable")
    sums = np.cumsum(added[order])
    begins: BoolArray = np.ones(len(order), np.bool_)
    begins[1:] = slots[order][1:] != slots[order][:-1]
    starts = np.flatnonzero(begins)
    before = (sums - added[order])[starts]
    out = np.empty(len(order), np.int64)
    out[order] = sums - np.repeat(before, np.diff(starts, append=len(order)))
    return out
