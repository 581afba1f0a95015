"""A table of aggregates: rows, or combined rows, go in by their keys, results come out by slots.

Invariant: a key becomes present when the first row is applied to it, with counters that count from 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import pyarrow as pa

from holdfast.errors import RowsNeeded
from holdfast.functions.aggregates import kernels
from holdfast.functions.aggregates.accumulators import (
    Accumulator,
    Chunk,
    Count,
    Extreme,
    First,
    FloatSum,
    Last,
    Mean,
    ObjectFold,
)
from holdfast.functions.aggregates.checked_sums import CheckedSum, DecimalSum, IntegerSum
from holdfast.functions.aggregates.declared import BoundAggregate
from holdfast.functions.aggregates.distinct import DistinctValues, GatheredValues
from holdfast.functions.aggregates.large_sets import CountedValues
from holdfast.functions.aggregates.more_accumulators import By, Collection, Moments
from holdfast.functions.aggregates.sketches import Sketch
from holdfast.functions.rows.columns import has_kernels
from holdfast.state.keys import can_be_key
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable

MORE: dict[str, type[Accumulator]] = {
    **dict.fromkeys(("stddev", "variance"), Moments),
    **dict.fromkeys(("max_by", "min_by"), By),
    **dict.fromkeys(("collect_list", "collect_set", "count_distinct"), Collection),
    "approx_count_distinct": Sketch,
}
_FIXED: dict[str, type[Accumulator]] = {"min": Extreme, "max": Extreme, "first": First, "last": Last}


NO_TABLES: Mapping[str, StateTable] = MappingProxyType({})


def accumulator(
    bound: BoundAggregate,
    table: StateTable,
    combined: bool = False,
    sending: bool = False,
    values: StateTable | None = None,
) -> Accumulator:
    """Make the accumulator for an aggregate and the type of its column. `sending`: it runs in a sender. `values`: the
    table for the values of large sets."""
    if values is not None:
        return CountedValues(bound, table, accumulator(bound, table, combined, sending), values)
    function = bound.aggregate.function
    if function in ("collect_set", "count_distinct") and can_be_key(bound.input_type):
        return (GatheredValues if sending else DistinctValues)(bound, table, combined)
    return _class_for(function, bound.result_type)(bound, table, combined)


def _class_for(function: str, kind: pa.DataType) -> type[Accumulator]:
    if function == "count":
        return Count
    if function == "mean":
        return Mean
    if function == "sum":
        if pa.types.is_decimal(kind):
            return DecimalSum
        return IntegerSum if pa.types.is_integer(kind) else FloatSum
    if function in MORE:
        return MORE[function]
    return _FIXED[function] if has_kernels(kind) else ObjectFold


class Accumulators:
    """The accumulators of several aggregates over a table, for input rows or for combined rows."""

    def __init__(
        self,
        bounds: Sequence[BoundAggregate],
        table: StateTable,
        combined: bool = False,
        sending: bool = False,
        values: Mapping[str, StateTable] = NO_TABLES,
    ) -> None:
        self._all = [
            accumulator(bound, table, combined, sending, values.get(f"{bound.state_column}.values")) for bound in bounds
        ]
        self.sums = [one for one in self._all if isinstance(one, CheckedSum)]
        self.gathering = [one.name for one in self._all if isinstance(one, Collection)]
        """State columns of lists and sets."""
        self.counters = [name for one in self._all for name in one.counters]
        self.opened_first = [name for one in self.sums for name in one.open_columns]
        """Columns to open before the checked sums are tried; those of `opened_then` are opened before the other
        accumulators run."""
        self.opened_then = [
            name for one in self._all if not isinstance(one, CheckedSum) for name in (*one.counters, *one.open_columns)
        ]

    def add(self, chunk: Chunk, but_sums: bool = False) -> list[pa.Array | None]:
        return [one.add(chunk) for one in self._all if not (but_sums and isinstance(one, CheckedSum))]

    def results(self, slots: Slots) -> list[pa.Array]:
        return [one.results(slots) for one in self._all]

    @property
    def memory_bytes(self) -> int:
        """Bytes held beside the table."""
        return sum(one.memory_bytes for one in self._all)

    def with_held(self, rows: pa.RecordBatch, slots: Slots) -> pa.RecordBatch:
        """The table's rows of these slots, with the columns that accumulators hold."""
        for one in self._all:
            held = one.held(slots)
            if held is not None:
                place = rows.schema.get_field_index(one.name)
                rows = rows.set_column(place, rows.schema.field(place), held)
        return rows

    def forget(self) -> None:
        """Free the memory that accumulators hold."""
        for one in self._all:
            one.forget()


RESULTS_AT_ONCE_MAX, LISTS_AT_ONCE_MAX = 1 << 17, 1 << 10
"""Numbers of keys whose results are made together: for results of a fixed size, and for results that gather values.
Higher values make larger batches of output, which take more memory."""
RUNNING_BYTES = 8 << 20
"""Bytes of running lists that are made together. A higher value takes more memory, a lower value more steps."""


class AggregateTable:
    """A state table with the accumulators of some aggregates. The caller begins, commits and undoes the table."""

    def __init__(
        self, bounds: Sequence[BoundAggregate], table: StateTable, values: Mapping[str, StateTable] = NO_TABLES
    ) -> None:
        self.table = table
        self.gathers = any(pa.types.is_nested(bound.result_type) for bound in bounds)
        """True if results are lists, whose sizes nothing bounds."""
        self._at_once = LISTS_AT_ONCE_MAX if self.gathers else RESULTS_AT_ONCE_MAX
        self.of_rows = Accumulators(bounds, table, values=values)
        self.of_combined = Accumulators(bounds, table, combined=True, values=values)

    def look_up(self, rows: pa.RecordBatch, running: bool) -> tuple[Chunk, Slots]:
        """Return rows with the slots of their keys, ready for the checked sums; and the slots among these that are
        new."""
        before = len(self.table.touched())
        chunk = Chunk(rows, self.table.lookup(rows), running)
        new = self.table.touched()[before:]
        self._open(self.of_rows.opened_first, new)
        return chunk, new

    def appear(self, slots: Slots) -> None:
        """Mark keys as present, because rows are about to be applied to them."""
        kernels.raise_flags(slots, self.table.present.array)
        self._open(self.of_rows.opened_then, slots)
        for name in self.of_rows.counters:
            kernels.raise_flags(slots, self.table.column(name).valid)

    def values_kept(self, slots: Slots) -> int:
        """The number of values that these keys keep in lists and sets."""
        columns = [self.table.column(name) for name in self.of_rows.gathering]
        return sum(len(column.to_arrow(*column.gather(slots)).values) for column in columns)

    def pieces(self, slots: Slots) -> Iterator[Slots]:
        """Divide slots into groups whose results are made together."""
        return (slots[start : start + self._at_once] for start in range(0, len(slots), self._at_once))

    def results(self, slots: Slots) -> list[pa.Array]:
        """The result of each aggregate for these slots."""
        return self.of_rows.results(slots)

    def _open(self, names: list[str], slots: Slots) -> None:
        for name in names:
            column = self.table.column(name)
            kernels.open_states(slots, column.valid, column.values)


def running_pieces(rows: pa.RecordBatch, made_bytes: Callable[[], int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divide rows that each give running lists into pieces, each with its offset.

    The first piece is a single row. A later piece has as many rows as make `RUNNING_BYTES` of output, estimated from
    `made_bytes` (the output of all pieces so far), but at most twice as many rows as the piece before.
    """
    start, count, before = 0, 1, made_bytes()
    while start < rows.num_rows:
        yield start, rows.slice(start, count)
        start += count
        after = made_bytes()
        fitting = count * RUNNING_BYTES // max(1, after - before)
        count, before = max(1, min(2 * count, fitting, LISTS_AT_ONCE_MAX)), after


def rows_needed(operator: str) -> RowsNeeded:
    return RowsNeeded(
        f"operator {operator!r}: a sum of combined rows leaves its type; only without combining can the operator tell "
        "which row is bad, and treat it by bad_records"
    )
