"""An aggregate of a subtask: from input columns to state columns and running values.

    rows ── slots ──► Accumulator.add ──► state columns of the table
                                    └───► running value of each row (emit="every")
    touched slots ──► Accumulator.results ──► a value for each key (emit="changes")

Rows are either input or combined. A combined row is a sender's own state after some input, in columns with the names of
the state columns (`combining.py`). The same code adds a value or such a state to the state: most accumulators only read
another column for it.

Sums that can overflow are in `checked_sums.py`. Fixed-width types run in compiled kernels. Of strings, binaries,
decimals and nested values, the row that a key keeps is chosen by arrays; only running values take a Python loop (about
0.1 µs a row).

Columns of the table are fetched anew for each chunk, since `StateTable.lookup` may reallocate them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.functions.aggregates import kernels
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.rows.columns import (
    NO_MASK,
    AnyArray,
    BoolArray,
    IntArray,
    bits,
    cells_at,
    fixed_array,
    has_kernels,
    validity,
)
from holdfast.functions.rows.greatest import greatest
from holdfast.functions.rows.grouping import distinct_slots
from holdfast.python_values import exact_values
from holdfast.state.columns import Column
from holdfast.state.physical import Slots, validity_of, values_of
from holdfast.state.table import StateTable


@dataclass(frozen=True)
class Chunk:
    """Some rows of a batch with the slots of their keys. `running` is True if running values are wanted."""

    rows: pa.RecordBatch
    slots: Slots
    running: bool

    @property
    def running_rows(self) -> int:
        """The number of running values wanted."""
        return len(self.slots) if self.running else 0

    def only(self, good: BoolArray) -> "Chunk":
        return Chunk(self.rows.filter(pa.array(good)), self.slots[good], self.running)


def room(rows: int, dtype: Any) -> AnyArray:
    return np.empty(rows, dtype=dtype)


class Accumulator(ABC):
    """The work of an aggregate on a chunk of rows. `name` is its state column."""

    counters: tuple[str, ...] = ()
    """State columns of numbers or flags that every present key has: zeroed and valid when a key is first applied."""
    open_columns: tuple[str, ...] = ()
    """State columns whose nulls must be set to zero before rows are added."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        self.bound = bound
        self.table = table
        self.name = bound.state_column
        self.type: pa.DataType = bound.result_type
        self.combined = combined
        self.input_column = self.name if combined else bound.aggregate.column

    def input(self, chunk: Chunk) -> pa.Array:
        return chunk.rows.column(self.input_column)

    def state(self) -> tuple[AnyArray, BoolArray]:
        column = self.table.column(self.name)
        assert column.fixed_width, f"{column.field} has handles for values"
        return column.values, column.valid

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the accumulator holds beside the table."""
        return 0

    def held(self, slots: Slots) -> pa.Array | None:
        """Return the state column of these keys from a sender; None if the table has the column."""
        return None

    def forget(self) -> None:
        """Forget all keys, in a sender that starts again with none."""
        return

    @abstractmethod
    def add(self, chunk: Chunk) -> pa.Array | None:
        """Add all rows, after every checked sum has taken them; return the running values if the chunk wants them."""

    def results(self, slots: Slots) -> pa.Array:
        column = self.table.column(self.name)
        return column.to_arrow(*column.gather(slots))


class Count(Accumulator):
    """`count()` and `count(c)`."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self.counters = (self.name,)

    def add(self, chunk: Chunk) -> pa.Array | None:
        counts, _ = self.state()
        out = room(chunk.running_rows, np.int64)
        mask = NO_MASK if self.combined else self._counted(chunk)
        if self.combined:
            add_counts(chunk, self.name, counts)
        elif len(mask):
            kernels.count_values(chunk.slots, mask, counts, out)
        elif chunk.running:
            kernels.count_rows_running(chunk.slots, counts, out)
        else:
            kernels.count_rows(chunk.slots, counts)
        return fixed_array(out, NO_MASK, self.type) if chunk.running else None

    def _counted(self, chunk: Chunk) -> BoolArray:
        """Return a mask of the rows that count, or `NO_MASK` if all do."""
        mask = NO_MASK if self.input_column is None else validity(self.input(chunk))
        condition = self.bound.aggregate.other
        if condition is None:
            return mask
        wanted = chunk.rows.column(condition)
        true: BoolArray = values_of(wanted).copy()
        for each in (mask, validity(wanted)):
            if len(each):
                true &= each
        return true


def add_counts(chunk: Chunk, name: str, counts: IntArray) -> None:
    """Add the counts of combined rows; never null, and never so many that they overflow."""
    kernels.add_integers(chunk.slots, values_of(chunk.rows.column(name)), NO_MASK, counts, room(0, np.int64))


class FloatSum(Accumulator):
    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self.open_columns = (self.name,)

    def add(self, chunk: Chunk) -> pa.Array | None:
        sums, state_valid = self.state()
        array = self.input(chunk)
        mask = validity(array)
        out, out_valid = room(chunk.running_rows, np.float64), room(chunk.running_rows, np.bool_)
        kernels.add_floats(chunk.slots, values_of(array), mask, sums, out)
        kernels.mark_valid(chunk.slots, mask, state_valid, out_valid)
        return fixed_array(out, out_valid, self.type) if chunk.running else None


def doubles(decimals: pa.Array) -> pa.Array:
    """Each decimal's nearest double; Arrow's own cast is off by a bit for some."""
    return pa.array([None if value is None else float(value) for value in decimals.to_pylist()], type=pa.float64())


class Mean(Accumulator):
    """A sum in double precision and a count; null while the count is 0."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self.count_name = f"{self.name}.count"
        self.counters = (self.name, self.count_name)

    def add(self, chunk: Chunk) -> pa.Array | None:
        sums, _ = self.state()
        counts = self.table.column(self.count_name).values
        array = self.input(chunk)
        if not has_kernels(array.type):
            array = doubles(array)
        mask = validity(array)
        out, out_counts = room(chunk.running_rows, np.float64), room(chunk.running_rows, np.int64)
        kernels.add_floats(chunk.slots, values_of(array), mask, sums, out)
        if self.combined:
            add_counts(chunk, self.count_name, counts)
        elif len(mask):
            kernels.count_values(chunk.slots, mask, counts, out_counts)
        elif chunk.running:
            kernels.count_rows_running(chunk.slots, counts, out_counts)
        else:
            kernels.count_rows(chunk.slots, counts)
        return self._quotients(out, out_counts) if chunk.running else None

    def results(self, slots: Slots) -> pa.Array:
        counts = self.table.column(self.count_name)
        return self._quotients(self.state()[0][slots], np.where(counts.valid[slots], counts.values[slots], 0))

    def _quotients(self, sums: AnyArray, counts: IntArray) -> pa.Array:
        some = counts > 0
        return fixed_array(np.divide(sums, counts, out=np.zeros(len(sums)), where=some), some, self.type)


class Extreme(Accumulator):
    """`min` and `max` of fixed-width types."""

    def add(self, chunk: Chunk) -> pa.Array | None:
        state, state_valid = self.state()
        array = self.input(chunk)
        values = values_of(array)
        out, out_valid = room(chunk.running_rows, values.dtype), room(chunk.running_rows, np.bool_)
        greatest = self.bound.aggregate.function == "max"
        kernels.keep_extreme(chunk.slots, values, validity(array), greatest, state, state_valid, out, out_valid)
        return fixed_array(out, out_valid, self.type) if chunk.running else None


class First(Accumulator):
    """`first` of fixed-width types; a flag tells a key whose first value was null from a key without a first row."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        self.counters = (f"{self.name}.seen",)

    def add(self, chunk: Chunk) -> pa.Array | None:
        state, state_valid = self.state()
        seen = self.table.column(f"{self.name}.seen")
        array = self.input(chunk)
        values = values_of(array)
        out, out_valid = room(chunk.running_rows, values.dtype), room(chunk.running_rows, np.bool_)
        kernels.keep_first(
            chunk.slots, bits(values), validity(array), bits(state), state_valid, seen.values, bits(out), out_valid
        )
        return fixed_array(out, out_valid, self.type) if chunk.running else None


class Last(Accumulator):
    """`last` of fixed-width types; its running value is the input."""

    def add(self, chunk: Chunk) -> pa.Array | None:
        state, state_valid = self.state()
        array = self.input(chunk)
        kernels.keep_last(chunk.slots, bits(values_of(array)), validity(array), bits(state), state_valid)
        return array if chunk.running else None


Fold = Callable[[dict[int, Any], list[int], list[Any]], list[Any]]
"""Function from (value by slot, the rows' slots, the rows' values) to the running values; it changes the first."""

UNSEEN = object()


def fold_least(cells: dict[int, Any], slots: list[int], values: list[Any]) -> list[Any]:
    out = []
    for slot, value in zip(slots, values, strict=True):
        kept = cells[slot]
        if value is not None and (kept is None or value < kept):
            cells[slot] = kept = value
        out.append(kept)
    return out


def fold_greatest(cells: dict[int, Any], slots: list[int], values: list[Any]) -> list[Any]:
    out = []
    for slot, value in zip(slots, values, strict=True):
        kept = cells[slot]
        if value is not None and (kept is None or value > kept):
            cells[slot] = kept = value
        out.append(kept)
    return out


def fold_first(cells: dict[int, Any], slots: list[int], values: list[Any]) -> list[Any]:
    out = []
    for slot, value in zip(slots, values, strict=True):
        if cells[slot] is UNSEEN:
            cells[slot] = value
        out.append(cells[slot])
    return out


def fold_last(cells: dict[int, Any], slots: list[int], values: list[Any]) -> list[Any]:
    cells.update(zip(slots, values, strict=True))
    return values


FOLDS: dict[str, Fold] = {"min": fold_least, "max": fold_greatest, "first": fold_first, "last": fold_last}


class ObjectFold(Accumulator):
    """`min`, `max`, `first`, `last` of types that have no kernels; running values are Python objects."""

    def __init__(self, bound: BoundAggregate, table: StateTable, combined: bool = False) -> None:
        super().__init__(bound, table, combined)
        if bound.aggregate.function == "first":
            self.counters = (f"{self.name}.seen",)

    def add(self, chunk: Chunk) -> pa.Array | None:
        column = self.table.column(self.name)
        if not chunk.running:
            self._add(chunk, column)
            return None
        distinct = np.unique(chunk.slots)
        cells = cells_at(distinct, column)
        if self.bound.aggregate.function == "first":
            seen = self.table.column(f"{self.name}.seen").values
            cells.update((slot, UNSEEN) for slot in distinct[~seen[distinct]].tolist())
            seen[distinct] = True
        out = FOLDS[self.bound.aggregate.function](cells, chunk.slots.tolist(), exact_values(self.input(chunk)))
        column.put_objects(distinct, [cells[slot] for slot in distinct.tolist()])
        return pa.array(out, type=self.type)

    def _add(self, chunk: Chunk, column: Column) -> None:
        """Write the value that each key keeps, without objects."""
        function, array = self.bound.aggregate.function, self.input(chunk)
        distinct, groups = distinct_slots(chunk.slots, len(column.values))
        if function in ("min", "max"):
            rows = better_rows(column, distinct, array, groups, function == "min")
        else:
            rows = np.empty(len(distinct), np.int64)
            order = np.arange(len(groups)) if function == "last" else np.arange(len(groups) - 1, -1, -1)
            rows[groups[order]] = order  # the last that is written stays
        if function == "first":
            seen = self.table.column(f"{self.name}.seen").values
            rows[seen[distinct]] = -1
            seen[distinct] = True
        write_rows(column, distinct, array, rows)


def better_rows(column: Column, distinct: Slots, array: pa.Array, groups: IntArray, least: bool) -> IntArray:
    """The row of each of the `distinct` slots whose value is greater (or `least`) than all others and than the stored
    value; -1 where there is none. Nulls are never chosen."""
    stored = column.to_arrow(*column.gather(distinct))
    values, of_all = pa.concat_arrays([stored, array]), np.concatenate([np.arange(len(distinct)), groups])
    best = greatest(values, of_all, 1, False, least)
    valid = validity_of(values)
    is_row = best >= len(distinct) if valid is None else (best >= len(distinct)) & valid[best]
    return np.where(is_row, best - len(distinct), -1)


def write_rows(column: Column, slots: Slots, array: pa.Array, rows: IntArray) -> None:
    """Write the value of a row at each of the slots; of row -1 none."""
    chosen = np.flatnonzero(rows >= 0)
    column.scatter(slots[chosen], *column.from_arrow(array.take(pa.array(rows[chosen]))))
