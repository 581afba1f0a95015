"""Differences between two checkpoints: which rows of an operator's state were added, removed or changed. Pure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.python_values import exact_values

CHANGE = "change"
CAME, WENT, BEFORE, AFTER = "came", "went", "before", "after"


@dataclass(frozen=True)
class Difference:
    """The numbers of rows that were added, removed and changed, and the rows themselves with a column `change`."""

    came: int
    went: int
    changed: int
    rows: pa.Table


def difference(old: pa.Table, new: pa.Table, keys: list[str]) -> Difference:
    """Compare two tables of the same state by the columns `keys`, which identify a row.

    If only one of the tables has a column, the other is treated as having nulls in it.

    A row that changed is shown twice: as it was (`before`) and as it is (`after`).
    """
    schema = pa.unify_schemas([old.schema, new.schema])
    old, new = (_with_columns(each, schema) for each in (old, new))
    both = pa.concat_tables([old, new]).combine_chunks()
    is_new = np.arange(len(both)) >= len(old)
    ids = _numbered(both, keys)
    alike = _numbered(both, schema.names)
    old_rows, new_rows = np.flatnonzero(~is_new), np.flatnonzero(is_new)
    came = new_rows[~np.isin(ids[new_rows], ids[old_rows])]
    went = old_rows[~np.isin(ids[old_rows], ids[new_rows])]
    after = new_rows[np.isin(ids[new_rows], ids[old_rows]) & ~np.isin(alike[new_rows], alike[old_rows])]
    before = old_rows[np.isin(ids[old_rows], ids[after])]
    parts = [(WENT, went), (CAME, came), (BEFORE, before), (AFTER, after)]
    rows = np.concatenate([each for _, each in parts])
    changes = np.repeat([name for name, _ in parts], [len(each) for _, each in parts])
    shown = both.take(pa.array(rows)).append_column(CHANGE, pa.array(changes.tolist(), pa.string()))
    return Difference(len(came), len(went), len(after), shown)


def _numbered(rows: pa.Table, columns: list[str]) -> npt.NDArray[np.int64]:
    """Give rows that are equal in the given columns the same number, and other rows different numbers."""
    numbers = np.zeros(len(rows), np.int64)
    for name in columns:
        codes = _codes(rows.column(name))
        pairs = numbers * (int(codes.max(initial=0)) + 1) + codes
        numbers = np.asarray(np.unique(pairs, return_inverse=True)[1], np.int64)
    return numbers


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Number the distinct values of a column; null is a value of its own."""
    if pa.types.is_nested(column.type):
        column = pa.chunked_array([pa.array([str(value) for value in exact_values(column.combine_chunks())])])
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)


def _with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows.column(field.name) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
