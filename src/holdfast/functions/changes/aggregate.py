"""`KeyedStream.aggregate` over a stream of changes, with its results as changes or as upserts by key.

    rows with weights ──► key's slot ──► results before, when the batch first touches it ──► each aggregate adds
    at the end, for each key that was touched: results after ──► what changed (`told`)

State of a key: the number of its rows, and the counters of each aggregate; bags of values in tables of their own. A key
leaves the state once all counters are zero. A key has no result if it has no rows, or a negative number of rows because
a row was removed before it came.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from holdfast.errors import JobRefused, SettingsError
from holdfast.functions.aggregates import kernels as flags
from holdfast.functions.aggregates.declared import Aggregate, BoundAggregate
from holdfast.functions.aggregates.spec import AggregateSpec
from holdfast.functions.changes import kernels
from holdfast.functions.changes.kept_values import (
    KeptValues,
    ReversibleDistinct,
    ReversibleExtreme,
    ReversibleList,
    ReversibleSize,
)
from holdfast.functions.changes.row_log import check_complete, counted
from holdfast.functions.changes.sums import (
    ReversibleAggregate,
    ReversibleCount,
    ReversibleDecimals,
    ReversibleFloats,
    ReversibleIntegers,
    ReversibleMoments,
)
from holdfast.functions.changes.told import CHANGE_FIELD, KEYS_AT_ONCE_MAX, ResultsBefore, told
from holdfast.functions.changes.weights import weights_of
from holdfast.functions.operator import (
    BatchContext,
    Combiner,
    NewTable,
    Operator,
    OperatorResult,
    TableSchema,
)
from holdfast.functions.rows.columns import NO_MASK, BoolArray
from holdfast.functions.rows.pieces import checked
from holdfast.schema import StreamKind
from holdfast.state.physical import Slots
from holdfast.state.table import StateTable

ROWS = "__rows"
"""State column: the number of rows of a key."""

_BY_VALUES: dict[str, type[KeptValues]] = {
    **dict.fromkeys(("min", "max", "min_by", "max_by"), ReversibleExtreme),
    **dict.fromkeys(("collect_list", "collect_set"), ReversibleList),
    **dict.fromkeys(("count_distinct", "approx_count_distinct"), ReversibleDistinct),
}


def reversible(bound: BoundAggregate) -> type[ReversibleAggregate]:
    """The class of an aggregate that can be taken back."""
    function, kind = bound.aggregate.function, bound.input_type
    if function == "count":
        return ReversibleCount
    if function in ("variance", "stddev"):
        return ReversibleMoments
    if function in ("sum", "mean"):
        if pa.types.is_decimal(kind):
            return ReversibleDecimals
        return ReversibleIntegers if pa.types.is_integer(kind) else ReversibleFloats
    return _BY_VALUES[function]


@dataclass(frozen=True)
class ChangesAggregateSpec(AggregateSpec):
    """`changes`: the output is a stream of changes; otherwise of upserts by key."""

    changes: bool = False

    counts_values: ClassVar[bool] = True
    """True: distinct values are counted one by one. Windows keep a log of them, which goes with the window."""
    takes: ClassVar[tuple[StreamKind, ...]] = ("append", "changes")
    spreads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.emit != "changes":
            raise SettingsError(
                f"operator {self.name!r}: emit={self.emit!r} gives a row for each row of its input, but a deleted row "
                "has no result; take emit='changes'"
            )
        _ = self.table_schemas()

    def _check(self, name: str, aggregate: Aggregate) -> None:
        if aggregate.function in ("first", "last"):
            raise JobRefused(
                f"operator {self.name!r}: aggregate {name!r} is {aggregate}, which depends on the order in which rows "
                "came, and a stream of changes has no such order; take min_by or max_by with a column to order by"
            )
        super()._check(name, aggregate)

    @property
    def output_kind(self) -> StreamKind:
        return "changes" if self.changes else "upserts"

    @property
    def output_schema(self) -> pa.Schema:
        return super().output_schema.append(CHANGE_FIELD)

    @property
    def counters(self) -> list[pa.Field]:
        """The state columns of numbers."""
        return [
            pa.field(ROWS, pa.int64()),
            *(field for bound in self.bound for field in self.kind_of(bound).counters(bound)),
        ]

    @property
    def value_schema(self) -> pa.Schema:
        kept = (field for bound in self.bound for field in self.kind_of(bound).kept(bound))
        return pa.schema([*self.counters, *kept])

    def kind_of(self, bound: BoundAggregate) -> type[ReversibleAggregate]:
        """The class of an aggregate here."""
        kind = reversible(bound)
        return ReversibleSize if kind is ReversibleDistinct and not self.counts_values else kind

    def combiner(self, combine: bool = True, closed_us: int | None = None) -> Combiner | None:
        return None

    def table_schemas(self) -> dict[str, TableSchema]:
        tables = {"state": TableSchema(self.key_schema, self.value_schema)}
        for bound in self.bound:
            kind = self.kind_of(bound)
            if issubclass(kind, KeptValues):
                tables |= kind.tables(self.name, bound, self.key_schema)
        return tables

    def check_stored(self, tables: Mapping[str, pa.Schema]) -> None:
        rows = pa.schema([pa.field(ROWS, pa.int64())])
        check_complete(self.name, tables, {"state": TableSchema(self.key_schema, rows)})
        names = tables["state"].names if "state" in tables else []
        for bound in self.bound:
            kind, begin = self.kind_of(bound), f"{bound.state_column}."
            if issubclass(kind, KeptValues) and any(name.startswith(begin) for name in names):
                columns = pa.schema([*kind.counters(bound), *kind.kept(bound)])
                own = {"state": TableSchema(self.key_schema, columns)} | kind.tables_of(bound, self.key_schema)
                check_complete(self.name, tables, own)

    def described_tables(self) -> dict[str, TableSchema]:
        return self.table_schemas()

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return ChangesAggregateOperator(self, max_parallelism, new_table)


class ChangesAggregateOperator(Operator):
    def __init__(self, spec: ChangesAggregateSpec, max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self.tables = {name: new_table(*schema, max_parallelism) for name, schema in spec.table_schemas().items()}
        self._table = self.tables["state"]
        self._counters = [field.name for field in spec.counters]
        self._aggregates = [self._made(bound) for bound in spec.bound]
        self.schema = spec.output_schema
        self.shown: Callable[[pa.RecordBatch], list[pa.Array]] = lambda keys: list(keys.columns)
        """Makes the key columns of the output, which has `schema`."""

    def _made(self, bound: BoundAggregate) -> ReversibleAggregate:
        kind = self._spec.kind_of(bound)
        if issubclass(kind, KeptValues):
            return kind(self._spec.name, bound, self._table, self.tables)
        return kind(self._spec.name, bound, self._table)

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        self.apply((rows for _, rows in checked(inputs, self.room)), result)
        return result

    def apply(self, pieces: Iterable[pa.RecordBatch], result: OperatorResult | None) -> None:
        """Take the rows of a batch; put out what they change, unless `result` is None."""
        before = None if result is None else ResultsBefore()
        for rows in pieces:
            if rows.num_rows:
                self._take(rows, before)
        slots = self._table.touched()
        if result is not None and before is not None and len(slots):
            self._tell(slots, before, result)
        self._let_go(slots)

    def results_of(self, slots: Slots) -> Iterator[tuple[pa.RecordBatch, list[pa.Array]]]:
        """Keys and results of those of the slots that have rows, in pieces."""
        for _, piece in self._pieces(slots[self._there(slots)]):
            yield self._table.keys_of(piece), self._results(piece)

    def drop(self, slots: Slots) -> None:
        """Remove keys with all that their aggregates keep."""
        for each in self._aggregates:
            each.drop(slots)
        self._table.present[slots] = False

    def _tell(self, slots: Slots, before: ResultsBefore, result: OperatorResult) -> None:
        was = before.there()
        old = [before.column(place, each.type) for place, each in enumerate(self._aggregates)]
        for start, piece in self._pieces(slots):
            there = slice(start, start + len(piece))
            of_piece = [each.slice(start, len(piece)) for each in old]
            after = (self._there(piece), self._results(piece))
            keys = self.shown(self._table.keys_of(piece))
            rows = told(keys, (was[there], of_piece), after, self.schema, self._spec.changes)
            if rows.num_rows:
                result.output.append(rows)

    def _take(self, rows: pa.RecordBatch, before: ResultsBefore | None) -> None:
        known = len(self._table.touched())
        slots = self._table.lookup(rows)
        new = self._table.touched()[known:]
        for name in self._counters:
            column = self._table.column(name)
            flags.open_states(new, column.valid, column.values)
            flags.raise_flags(new, column.valid)
        if before is not None:
            before.note(self._there(new), self._results(new))
        weights = weights_of(rows)
        kernels.count_weights(slots, NO_MASK, weights, self._table.column(ROWS).values)
        for each in self._aggregates:
            each.add(rows, slots, weights)

    def _pieces(self, slots: Slots) -> Iterator[tuple[int, Slots]]:
        starts = range(0, len(slots), KEYS_AT_ONCE_MAX)
        return ((start, slots[start : start + KEYS_AT_ONCE_MAX]) for start in starts)

    def _there(self, slots: Slots) -> BoolArray:
        """Mark the keys that have rows."""
        there: BoolArray = self._table.column(ROWS).values[slots] > 0
        return there

    def _results(self, slots: Slots) -> list[pa.Array]:
        return [each.results(slots) for each in self._aggregates]

    def _let_go(self, slots: Slots) -> None:
        """Keep only the keys with a counter that is not zero."""
        self._table.present[slots] = counted(self._table, self._counters, slots)
