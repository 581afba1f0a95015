"""`last`, `top` and `drop_duplicates` over changes: the first rows of each key in an order, and what changed of them.

    rows with weights ──► first rows of their keys (`first_rows`), which says whose answer it is about to change
    at the end, for each of these keys: answer after beside answer before ──► what changed (`told`)

Rows are ordered by `by`, then by their other columns in turn, so that an answer depends on the rows alone, never on
their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from holdfast.errors import JobRefused
from holdfast.functions.changes.bag import check_found_again
from holdfast.functions.changes.first_rows import PLACE, FirstRows, FirstRowsOfKeys, FirstRowsState
from holdfast.functions.changes.row_log import check_complete
from holdfast.functions.changes.told import CHANGE_FIELD, KEYS_AT_ONCE_MAX, told
from holdfast.functions.changes.weights import weights_of
from holdfast.functions.operator import (
    BatchContext,
    NewTable,
    Operator,
    OperatorInput,
    OperatorResult,
    OperatorSpec,
    TableSchema,
)
from holdfast.functions.rows.grouping import spans
from holdfast.functions.rows.pieces import checked
from holdfast.schema import CHANGE_TYPE, StreamKind
from holdfast.state.physical import Bools, Slots
from holdfast.state.table import StateTable

RANK = "rank"


@dataclass(frozen=True)
class RankedChangesSpec(OperatorSpec):
    """Raises `JobRefused` when made.

    Parameters
    ----------
    shown : str
        The call as a user wrote it, for messages.
    n : int
        Number of rows of each key that are given.
    by : str, optional
        The column that orders rows first; None: the others do, in turn.
    least : bool
        Whether the least values of `by` come first.
    ranked : bool
        Whether the output has the column `rank`.
    changes : bool
        Whether the output is a stream of changes; otherwise it is one of upserts by key, and rank if shown.
    """

    name: str
    input: OperatorInput
    shown: str
    n: int = 1
    by: str | None = None
    least: bool = False
    ranked: bool = False
    changes: bool = True

    takes: ClassVar[tuple[StreamKind, ...]] = ("append", "changes")

    def __post_init__(self) -> None:
        if CHANGE_TYPE in (self.by, *self.input.key_columns):
            raise JobRefused(
                f"operator {self.name!r}: {self.shown} reads {CHANGE_TYPE!r} as a key or an order, and it says how "
                "rows change; rename the column before key_by, or put .as_append() before it"
            )
        if self.keeps_all:
            check_found_again(self.name, self.shown, self.others)

    @property
    def keeps_all(self) -> bool:
        """True if rows may go, so that all rows are kept."""
        return self.input.kind != "append"

    @property
    def inputs(self) -> tuple[OperatorInput, ...]:
        return (self.input,)

    @property
    def output_kind(self) -> StreamKind:
        return "changes" if self.changes else "upserts"

    @property
    def key_columns(self) -> tuple[str, ...]:
        return (*self.input.key_columns, *([RANK] if self.ranked else []))

    @property
    def declared_keys(self) -> tuple[str, ...]:
        return self.input.key_columns

    @property
    def others(self) -> list[pa.Field]:
        """The columns of the input that are not keys, the one that orders rows first in front."""
        found = [field for field in self.input.schema if field.name not in (*self.input.key_columns, CHANGE_TYPE)]
        return sorted(found, key=lambda field: field.name != self.by)

    @property
    def told_schema(self) -> pa.Schema:
        """The columns of the output in another order: key, rank, the rest as it is kept."""
        rank = pa.field(RANK if self.ranked else PLACE, pa.int64(), nullable=False)
        return pa.schema([*self.input.key_schema, rank, *self.others, CHANGE_FIELD])

    @property
    def output_schema(self) -> pa.Schema:
        names = [name for name in self.input.schema.names if name != CHANGE_TYPE]
        if self.ranked:
            keys = self.input.key_columns
            names = [*keys, RANK, *(name for name in names if name not in keys)]
        return pa.schema([self.told_schema.field(name) for name in [*names, CHANGE_TYPE]])

    @property
    def calls_no_user(self) -> bool:
        return True

    @property
    def state(self) -> FirstRowsState:
        order = "" if self.by is None else f" of {self.n} by {self.by}{' from the least' if self.least else ''}"
        return FirstRowsState("kept", self.others, self.n, self.keeps_all, order)

    def table_schemas(self) -> dict[str, TableSchema]:
        keys = self.input.key_schema
        heads = pa.schema([*self.state.counters, *self.state.kept])
        return {"state": TableSchema(keys, heads), **self.state.tables(keys)}

    def check_stored(self, tables: Mapping[str, pa.Schema]) -> None:
        check_complete(self.name, tables, self.table_schemas())

    def create(self, subtask: int, max_parallelism: int, new_table: NewTable = StateTable) -> Operator:
        return RankedChangesOperator(self, max_parallelism, new_table)


class RankedChangesOperator(Operator):
    def __init__(self, spec: RankedChangesSpec, max_parallelism: int, new_table: NewTable) -> None:
        self._spec = spec
        self.tables = {name: new_table(*schema, max_parallelism) for name, schema in spec.table_schemas().items()}
        self._heads = self.tables["state"]
        descends = spec.by is not None and not spec.least
        self._first = FirstRowsOfKeys(spec.state, self._heads, self.tables, descends)
        self._names = [field.name for field in spec.others]

    def process(self, inputs: list[tuple[int, pa.RecordBatch]], context: BatchContext) -> OperatorResult:
        result = OperatorResult(self.new_output())
        noted: list[tuple[Slots, FirstRows]] = []
        for _, rows in checked(inputs, self.room):
            if rows.num_rows:
                self._take(rows, noted)
        for heads, before in noted:
            self._put_out(heads, before, result)
        touched = self._heads.touched()
        self._heads.present[touched] = self._first.there(touched)
        return result

    def _take(self, rows: pa.RecordBatch, noted: list[tuple[Slots, FirstRows]]) -> None:
        """Take rows; note the answers, as they were before the batch, of keys whose answers change."""

        def note(heads: Slots, answers: FirstRows, chosen: Bools) -> None:
            for known, _ in noted:
                chosen = chosen & ~np.isin(heads, known)
            if chosen.any():
                noted.append((heads[chosen], answers.of(chosen)))

        heads = self._heads.lookup(rows)
        self._first.apply(heads, [rows.column(name) for name in self._names], weights_of(rows), note)

    def _put_out(self, heads: Slots, before: FirstRows, result: OperatorResult) -> None:
        """Put out what changed of the answers of keys."""
        at_once = max(1, KEYS_AT_ONCE_MAX // self._spec.n)
        names = self._spec.output_schema.names
        known = before.known
        for start in range(0, len(heads), at_once):
            piece = heads[start : start + at_once]
            of_piece = known.of(slice(start, start + at_once))
            after, old_sizes = self._first.answers(piece, of_piece), of_piece.sizes
            groups, places = spans(np.maximum(old_sizes, after.sizes))
            was, now = places < old_sizes[groups], places < after.sizes[groups]
            old = pa.array(of_piece.begins[groups] + places, mask=~was)
            new = pa.array((np.cumsum(after.sizes) - after.sizes)[groups] + places, mask=~now)
            keys = [*self._heads.keys_of(piece[groups]).columns, pa.array(places + 1)]
            rows = told(
                keys,
                (was, [each.take(old) for each in before.columns]),
                (now, [each.take(new) for each in after.columns]),
                self._spec.told_schema,
                self._spec.changes,
            )
            if rows.num_rows:
                result.output.append(rows.select(names))
