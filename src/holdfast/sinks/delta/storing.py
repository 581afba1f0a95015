"""Rows in the types that Delta stores, in which no value wraps around."""

import numpy as np
import pyarrow as pa

from holdfast.casts import cast_in_range
from holdfast.sinks.delta.table_schema import stored_schema


def unstorable(rows: pa.RecordBatch) -> dict[int, str]:
    """Return the rows with a value that the type of its column in Delta cannot hold, each with the reason."""
    found: dict[int, str] = {}
    for field, column in zip(stored_schema(rows.schema), rows.columns, strict=True):
        if column.type == field.type:
            continue
        outside = cast_in_range(column, field.type).outside
        for row in () if outside is None else np.flatnonzero(outside).tolist():
            found.setdefault(
                row, f"column {field.name!r} ({column.type}) has a value that Delta's {field.type} cannot hold"
            )
    return found


def as_stored(rows: pa.Table) -> pa.Table:
    """Return rows, none of which is `unstorable`, in Delta's types."""
    schema = stored_schema(rows.schema)
    columns = [
        pa.chunked_array([cast_in_range(chunk, field.type).values for chunk in column.chunks], field.type)
        for field, column in zip(schema, rows.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)
