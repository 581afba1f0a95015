"""When two values of a key column are the same key: Spark's rule, for state, exchange and sinks.

Values are the same where they are equal. Of floating-point numbers, -0.0 is 0.0, and every NaN is the same NaN,
whatever its sign and its payload. Null is a key of its own where nulls are allowed: in `DeltaSink(mode="upsert")`, not
in state, where a row with a null in a key column is a bad record.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def normalised(column: Any) -> Any:
    """A key column in which values that are the same key have the same bits; nulls are kept.

    Takes an array or a chunked array, and returns columns of other types than float and double as they are.
    """
    kind = column.type
    if not (pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return column
    without_negative_zero = pc.add(column, pa.scalar(0.0, kind))
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), without_negative_zero)


def normalised_keys(rows: Any, key_columns: Any) -> Any:
    """A record batch or a table with its key columns normalised; the same object where there is nothing to do."""
    for name in key_columns:
        place = rows.schema.get_field_index(name)
        column = rows.column(place)
        made = normalised(column)
        if made is not column:
            rows = rows.set_column(place, rows.schema.field(place), made)
    return rows
