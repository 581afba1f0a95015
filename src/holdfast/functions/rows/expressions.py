"""Expressions of PyArrow (`pc.field("price") < 10_000`) over batches of rows: columns that they need, types, values.

An expression is bound to a schema when it runs. A check on an empty batch says at `start()` whether it can be.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

Expressions = Mapping[str, pc.Expression]
"""Expressions by the names of the columns that they make."""

VALUE_ERRORS = (pa.ArrowInvalid, pa.lib.ArrowIndexError, pa.ArrowCapacityError)
"""Errors of PyArrow that depend on the values of a row, not on the types of its columns."""


def evaluated(rows: pa.RecordBatch, expressions: Expressions) -> list[pa.Array]:
    """Return the value of each expression for each row; raises `pa.ArrowException` if any does not fit the rows."""
    if not expressions:
        return []
    import pyarrow.acero as acero  # loads pandas, which jobs without expressions do without

    source = acero.TableSourceNodeOptions(pa.Table.from_batches([rows]))
    project = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
    plan = [acero.Declaration("table_source", source), acero.Declaration("project", project)]
    made = acero.Declaration.from_sequence(plan).to_table(use_threads=False)
    return [column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in made.columns]


def types_of(schema: pa.Schema, expressions: Expressions) -> list[pa.DataType]:
    """Return the type of each expression over rows of this schema. Raises `pa.ArrowException`."""
    return [array.type for array in evaluated(pa.RecordBatch.from_pylist([], schema=schema), expressions)]


def needed_columns(schema: pa.Schema, expressions: Sequence[pc.Expression]) -> list[str]:
    """Return the columns that the expressions read: those without which they can't be bound."""
    wanted = {str(place): expression for place, expression in enumerate(expressions)}
    return [name for place, name in enumerate(schema.names) if not _fits(schema.remove(place), wanted)]


def _fits(schema: pa.Schema, expressions: Expressions) -> bool:
    try:
        types_of(schema, expressions)
    except pa.ArrowException:
        return False
    return True
