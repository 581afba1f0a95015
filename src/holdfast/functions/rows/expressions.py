"""Expressions over batches of rows: columns that they need, types, values.

An expression of PyArrow (`pc.field("price") < 10_000`) is bound to a schema each time that it runs; a check on an empty
batch shows at `start()` whether it can be bound. An expression in Spark's SQL (`holdfast.expressions`) is bound once,
at `start()`. Values have the plain layout of their type (`arrays`), also if an expression of PyArrow casts to a view.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.arrays import plain_type, rebuilt

Expression = Any
"""An expression of PyArrow, or one in Spark's SQL: as given, as declared, or bound, when it is called with batches."""
Expressions = Mapping[str, Expression]
"""Expressions by the names of the columns that they make."""

_BY_PLACE = "FieldPath"
"""A word in expressions of PyArrow that read a column by its place in the schema (`pc.field(0)`)."""


def evaluated(rows: pa.RecordBatch, expressions: Expressions) -> list[pa.Array]:
    """Return the value of each expression for each row; raises `pa.ArrowException` if any does not fit the rows."""
    of_arrow = {name: each for name, each in expressions.items() if isinstance(each, pc.Expression)}
    made = dict(zip(of_arrow, _evaluated_by_arrow(rows, of_arrow), strict=True))
    return [made[name] if name in made else each(rows) for name, each in expressions.items()]


def _evaluated_by_arrow(rows: pa.RecordBatch, expressions: Mapping[str, pc.Expression]) -> list[pa.Array]:
    if not expressions:
        return []
    import pyarrow.acero as acero  # loads pandas, which jobs without expressions do without

    source = acero.TableSourceNodeOptions(pa.Table.from_batches([rows]))
    project = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
    plan = [acero.Declaration("table_source", source), acero.Declaration("project", project)]
    made = acero.Declaration.from_sequence(plan).to_table(use_threads=False)
    return [_plain(column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)) for column in made.columns]


def _plain(array: pa.Array) -> pa.Array:
    return array if plain_type(array.type) == array.type else rebuilt(array, lambda leaf: leaf)


def types_of(schema: pa.Schema, expressions: Expressions) -> list[pa.DataType]:
    """Return the type of each expression over rows of this schema. Raises `pa.ArrowException`."""
    of_arrow = {name: each for name, each in expressions.items() if isinstance(each, pc.Expression)}
    empty = pa.RecordBatch.from_pylist([], schema=schema) if of_arrow else None
    made = dict(zip(of_arrow, _evaluated_by_arrow(empty, of_arrow), strict=True))
    return [made[name].type if name in made else each.type for name, each in expressions.items()]


def needed_columns(schema: pa.Schema, expressions: Sequence[Expression]) -> list[str]:
    """Return the columns that the expressions read. An expression of PyArrow reads a column if it can't be bound
    without it."""
    wanted = {str(place): each for place, each in enumerate(expressions) if isinstance(each, pc.Expression)}
    read = {name for each in expressions if not isinstance(each, pc.Expression) for name in each.reads}
    shown = " ".join(map(str, wanted.values()))
    return [
        name
        for place, name in enumerate(schema.names)
        if name in read or (wanted and _may_read(shown, name) and not _fits(schema.remove(place), wanted))
    ]


def _may_read(shown: str, name: str) -> bool:
    """Return False if expressions, as PyArrow shows them, surely don't read a column: binding them takes longer."""
    return name in shown or _BY_PLACE in shown or not name.isidentifier()


def _fits(schema: pa.Schema, expressions: Expressions) -> bool:
    try:
        types_of(schema, expressions)
    except pa.ArrowException:
        return False
    return True
