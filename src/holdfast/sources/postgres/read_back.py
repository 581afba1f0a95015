"""Values that an update did not change, and that the stream therefore lacks: they are read from the current table.

The value may be newer than the change. If the row is gone by now, its change is left out, since a later change of the
stream deletes the row or gives it another key.
"""

from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.sources.postgres.columns import TableColumns, typed
from holdfast.sources.postgres.pgoutput import Decoded
from holdfast.sources.postgres.server import Server
from holdfast.sources.postgres.snapshot import column_name, rows_of

KEYS_MAX = 1_000
"""Number of rows that a statement requests."""


def read_back(server: Server, table: TableColumns, decoded: Decoded) -> pa.RecordBatch:
    """Fill in unknown values."""
    rows = decoded.rows
    asked = np.unique(np.concatenate(list(decoded.unknown.values())))
    keys = table.keys
    wanted = [each for each in table.columns if each.name in decoded.unknown]
    key_rows = [tuple(row.values()) for row in rows.select(keys).take(pa.array(asked)).to_pylist()]
    found = _ask(server, table, keys, [each.name for each in wanted], sorted(set(key_rows)))
    arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
    by_row = dict(zip(asked.tolist(), key_rows, strict=True))
    for place, column in enumerate(wanted):
        numbers = decoded.unknown[column.name].tolist()
        texts = [found[by_row[n]][place] if by_row[n] in found else None for n in numbers]
        mask = np.zeros(rows.num_rows, np.bool_)
        mask[numbers] = True
        filled = typed(table.name, column, pa.array(texts, pa.string()))
        arrays[column.name] = pc.replace_with_mask(arrays[column.name], pa.array(mask), filled)
    kept = np.ones(rows.num_rows, np.bool_)
    kept[[n for n in asked.tolist() if by_row[n] not in found]] = False
    made = pa.record_batch(list(arrays.values()), schema=rows.schema)
    return made.filter(pa.array(kept))


def _ask(
    server: Server, table: TableColumns, keys: list[str], columns: list[str], wanted: list[tuple[Any, ...]]
) -> dict[tuple[Any, ...], tuple[str | None, ...]]:
    found: dict[tuple[Any, ...], tuple[str | None, ...]] = {}
    named = ", ".join(map(column_name, keys))
    kinds = _kinds(server, [each.type_oid for each in table.columns if each.key])
    typed_keys = ", ".join(
        f"{column_name(key)}::{kind} AS {column_name(key)}" for key, kind in zip(keys, kinds, strict=True)
    )
    texts = ", ".join(f"{column_name(each)}::text" for each in columns)
    named, typed_keys, texts, rows = (each.replace("%", "%%") for each in (named, typed_keys, texts, rows_of(table)))
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        for first in range(0, len(wanted), KEYS_MAX):
            some = tuple(wanted[first : first + KEYS_MAX])
            numbers = ", ".join(f"({', '.join(['%s'] * len(keys))})" for _ in some)
            sql = (
                f"SELECT asked.n, {texts} FROM {rows} JOIN (SELECT row_number() OVER () - 1 AS n, {typed_keys} FROM "
                f"(VALUES {numbers}) AS listed({named})) AS asked USING ({named})"
            )
            cursor.execute(sql, [value for key in some for value in key])
            for number, *values in cursor.fetchall():
                found[some[number]] = tuple(values)
    return found


def _kinds(server: Server, oids: list[int]) -> list[str]:
    """Return the names of types in the server's SQL, for casts: without a cast, a text would not be compared like a
    key."""
    sql = "SELECT format_type(kind, -1) FROM unnest(%s::oid[]) WITH ORDINALITY AS listed(kind, n) ORDER BY n"
    return [str(kind) for (kind,) in server.query(sql, (oids,))]
