"""Truncations in a stream of changes: a row that says that a table was emptied, sent to all who know rows of it.

    source    a row of kind `truncate` ──► a row for each of `PARTS` parts, between the changes before and after it
    operator  keyed by the part ──► deletes of all rows that it knows of that part (`functions.process.known_rows`)

A part is a share of the table's keys, by a checksum of the key that is the same on every machine and in every version.
"""

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.schema import CHANGE_TYPE

TRUNCATE = "truncate"
"""The kind of a truncation's row; its columns except `_change_type` and the facts of its transaction are null."""
KIND = "__holdfast_change_type"
"""Name of `_change_type` on the way to the operator, since only that operator may take this stream by key."""
PART, KEY = "__holdfast_part", "__holdfast_key"
"""Columns that this stream has beside its own: the row's part, and its key as bytes (null in a truncation)."""
PARTS = 256
"""Number of parts. It never changes, since stored state is divided by it."""
_FURTHER = [pa.field(PART, pa.int32(), nullable=False), pa.field(KEY, pa.binary())]


def parted_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `parted` rows."""
    return pa.schema([*_renamed(schema, CHANGE_TYPE, KIND), *_FURTHER])


def told_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the rows that `parted` took."""
    return pa.schema(_renamed(pa.schema(list(schema)[: -len(_FURTHER)]), KIND, CHANGE_TYPE))


def _renamed(schema: pa.Schema, name: str, to: str) -> list[pa.Field]:
    return [field.with_name(to) if field.name == name else field for field in schema]


def parted(rows: pa.Table, keys: list[str]) -> pa.Table:
    """Add part and key, and put a row for each part in the place of each truncation."""
    schema = parted_schema(rows.schema)
    truncated = pc.equal(rows.column(CHANGE_TYPE), TRUNCATE).to_numpy(zero_copy_only=False)
    key = key_bytes(rows, keys)
    parts = np.fromiter((zlib.crc32(each or b"") % PARTS for each in key.to_pylist()), np.int32, rows.num_rows)
    if truncated.any():
        counts = np.where(truncated, PARTS, 1)
        taken = np.repeat(np.arange(rows.num_rows), counts)
        within = np.arange(len(taken)) - np.repeat(np.cumsum(counts) - counts, counts)
        parts = np.where(truncated[taken], within, parts[taken]).astype(np.int32)
        key = pc.if_else(pa.array(truncated[taken]), pa.scalar(None, pa.binary()), key.take(pa.array(taken)))
        rows = rows.take(pa.array(taken))
    return pa.table([*rows.columns, pa.array(parts), key], schema=schema)


def key_bytes(rows: pa.Table, keys: list[str]) -> pa.Array:
    """Return each row's key as bytes that no other key has: the length of each value's text, and the text."""
    parts = []
    for name in keys:
        column = rows.column(name).combine_chunks()
        text = column if pa.types.is_binary(column.type) else pc.cast(pc.cast(column, pa.string()), pa.binary())
        length = pc.cast(pc.cast(pc.binary_length(text), pa.string()), pa.binary())
        parts += [pc.fill_null(length, b""), pc.fill_null(text, b"")]
    return pc.binary_join_element_wise(*parts, b":")
