"""The output of a join, put together from rows that came and rows that are kept, by Arrow."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.functions.joins.bounds import LEFT, RIGHT
from holdfast.functions.joins.meeting import Pairs
from holdfast.functions.operator import OperatorResult
from holdfast.functions.rows.pieces import rows_at_once
from holdfast.functions.windows.declared import PANE, times_array
from holdfast.state.physical import Integers, Slots, values_of
from holdfast.state.table import StateTable

if TYPE_CHECKING:
    from holdfast.functions.joins.declared import JoinSpec


class SideRows(ABC):
    """Rows of a single side."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def row_bytes(self) -> float:
        """The size of a row, on average."""

    @abstractmethod
    def piece(self, start: int, length: int) -> pa.RecordBatch:
        """Return at most `length` of them, from number `start` on."""

    @abstractmethod
    def take(self, numbers: Integers) -> pa.RecordBatch:
        """Rows by their numbers, which may repeat."""


class RowsOfBatch(SideRows):
    """Rows of a side that came with this batch."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    @property
    def row_bytes(self) -> float:
        return float(self._rows.nbytes / max(1, self._rows.num_rows))

    def piece(self, start: int, length: int) -> pa.RecordBatch:
        return self._rows.slice(start, length)

    def take(self, numbers: Integers) -> pa.RecordBatch:
        return self._rows.take(pa.array(numbers))


class RowsOfTable(SideRows):
    """Rows that are kept, at distinct slots."""

    def __init__(self, table: StateTable, slots: Slots) -> None:
        self._table = table
        self._slots = slots

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def row_bytes(self) -> float:
        return self._table.row_bytes

    def piece(self, start: int, length: int) -> pa.RecordBatch:
        return self._table.rows_of(self._slots[start : start + length])

    def take(self, numbers: Integers) -> pa.RecordBatch:
        return self._table.rows_of(self._slots[numbers])


class JoinOutput:
    """Makes output of a join; call `begin` in each batch."""

    def __init__(self, spec: "JoinSpec") -> None:
        self._columns = spec.output_columns
        self._schema = spec.output_schema
        self._bounds = spec.bounds_fields if spec.shows_bounds else []
        self._size_us = spec.sides[LEFT].window.size_us if self._bounds else 0
        self._result = OperatorResult([])

    def begin(self, result: OperatorResult) -> None:
        """Output goes into `result` from now on."""
        self._result = result

    def pairs(self, left: SideRows, right: SideRows, pairs: Pairs) -> None:
        """Put out rows that meet."""
        at_once = rows_at_once(left.row_bytes + right.row_bytes)
        for start in range(0, len(pairs.left), at_once):
            piece = slice(start, start + at_once)
            self._put_out([left.take(pairs.left[piece]), right.take(pairs.right[piece])])

    def alone(self, side: int, rows: SideRows) -> None:
        """Put out rows without the other side."""
        at_once = rows_at_once(rows.row_bytes)
        for start in range(0, len(rows), at_once):
            found = rows.piece(start, at_once)
            self._put_out([found, None] if side == LEFT else [None, found])

    def _put_out(self, sides: list[pa.RecordBatch | None]) -> None:
        first = sides[LEFT] if sides[LEFT] is not None else sides[RIGHT]
        assert first is not None
        arrays: list[Any] = []
        for column in self._columns:
            found = [
                rows.column(name)
                for rows, name in zip(sides, column.sources, strict=True)
                if rows is not None and name is not None
            ]
            arrays.append(found[0] if found else pa.nulls(first.num_rows, column.field.type))
        if self._bounds:
            starts = values_of(first.column(PANE))
            arrays += [
                times_array(starts, self._bounds[0].type),
                times_array(starts + self._size_us, self._bounds[0].type),
            ]
        self._result.output.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
