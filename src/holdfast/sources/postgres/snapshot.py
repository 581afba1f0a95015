"""Reading whole tables by COPY: the initial snapshot, or a chunk of a table. Rows come piece by piece.

COPY sends each value as text in its binary frame, like `pgoutput`, so both ways make the same Arrow values.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.sources.postgres.columns import Ints, TableColumns, text_array, typed
from holdfast.sources.postgres.kernels import copied_values
from holdfast.sources.postgres.pgoutput import INSERT, batch_of

PIECE_ROWS_MAX = 100_000
PIECE_BYTES_MAX = 16 << 20
"""Bounds of a piece of a copied table. Higher values: fewer, larger segments."""
_HEADER_BYTES = 19
"""Length in bytes of COPY's header before the first row."""
_AS_TEXT = (1043, 20, 21, 23, 16, 1700, 700, 701, 1082, 1114, 1184, 17, 26)
"""Types whose cast to text equals the text of their output function. Others differ: `char(n)`, for example, loses
blanks."""


def column_name(name: str) -> str:
    """Quote a column's name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def rows_of(table: TableColumns) -> str:
    """Return the FROM item of a table's rows, without the rows of tables that inherit from it, which have their own
    changes. The rows of a partitioned table are all in its partitions."""
    name = ".".join(column_name(part) for part in table.name.split(".", 1))
    return name if table.is_partitioned else f"ONLY {name}"


def select_text(table: TableColumns) -> str:
    """Return the SELECT list that gives each column as PostgreSQL's output function writes it."""
    parts = []
    for column in table.columns:
        name = column_name(column.name)
        plain = column.type_oid in _AS_TEXT
        parts.append(f"{name}::text" if plain else f"CASE WHEN {name} IS NULL THEN NULL ELSE concat({name}) END")
    return ", ".join(parts)


class CopiedRows:
    """The file to which psycopg2 writes a COPY, row by row; `take` gets each full piece."""

    def __init__(self, take: Callable[[list[bytes]], None]) -> None:
        self._take = take
        self._rows: list[bytes] = []
        self._size = 0
        self._begun = False

    def write(self, data: bytes) -> int:
        row = data if self._begun else data[_HEADER_BYTES:]
        self._begun = True
        if len(row) > 2:  # two bytes are the trailer
            self._rows.append(bytes(row))
            self._size += len(row)
            if len(self._rows) >= PIECE_ROWS_MAX or self._size >= PIECE_BYTES_MAX:
                self.finish()
        return len(data)

    def finish(self) -> None:
        """Hand over the rows that wait."""
        rows, self._rows, self._size = self._rows, [], 0
        if rows:
            self._take(rows)


def copy_table(cursor: Any, table: TableColumns, where: str, take: Callable[[list[bytes]], None]) -> None:
    """Copy the rows of a table that are published and for which `where` holds ("": all)."""
    rows = CopiedRows(take)
    conditions = " AND ".join(f"({each})" for each in (where, table.row_filter) if each)
    condition = f" WHERE {conditions}" if conditions else ""
    sql = f"COPY (SELECT {select_text(table)} FROM {rows_of(table)}{condition}) TO STDOUT (FORMAT binary)"
    cursor.copy_expert(sql, rows)
    rows.finish()


def copied_batch(table: TableColumns, rows: list[bytes], lsn: int, time_us: int, sequence: Ints) -> pa.RecordBatch:
    """Make the stored batch of copied rows: inserts of transaction 0 at `lsn`."""
    data = np.frombuffer(b"".join(rows), np.uint8)
    places = np.zeros(len(rows), np.int64)
    np.cumsum(np.fromiter(map(len, rows[:-1]), np.int64, len(rows) - 1), out=places[1:])
    starts = np.zeros((len(table.columns), len(rows)), np.int64)
    lengths = np.zeros_like(starts)
    copied_values(data, places, starts, lengths)
    arrays = [
        typed(table.name, column, text_array(data, starts[place], lengths[place]))
        for place, column in enumerate(table.columns)
    ]
    count = len(rows)
    kinds = np.full(count, INSERT, np.int8)
    lsns, xids, times = np.full(count, lsn), np.zeros(count, np.int64), np.full(count, time_us)
    return batch_of(table, arrays, kinds, lsns, xids, times, sequence)
