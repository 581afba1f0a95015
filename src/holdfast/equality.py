"""The rule by which two values of a key column are the same key: Spark's rule, used by state, exchange and sinks.

Equal values are the same key. Among floating-point numbers, -0.0 is the same as 0.0, and all NaNs are the same,
whatever their sign and payload. Null is a key of its own where nulls are allowed, as in `DeltaSink(mode="upsert")`.
State does not allow it: a row with a null in a key column is a bad record there.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def normalised(column: Any) -> Any:
    """Return a key column in which values that are the same key have the same bits. Nulls are kept.

    `column` is an array or a chunked array. Columns of types other than float and double are returned unchanged.
    """
    kind = column.type
    if not (pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return column
    without_negative_zero = pc.add(column, pa.scalar(0.0, kind))
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), without_negative_zero)


def normalised_keys(rows: Any, key_columns: Any) -> Any:
    """Return a record batch or table with normalised key columns; the same object if there is nothing to change."""
    for name in key_columns:
        place = rows.schema.get_field_index(name)
        column = rows.column(place)
        made = normalised(column)
        if made is not column:
            rows = rows.set_column(place, rows.schema.field(place), made)
    return rows
