"""Union of streams with different columns, by the columns' names; a column that a stream lacks is null. Pure."""

from collections.abc import Sequence

import pyarrow as pa

from holdfast.errors import JobRefused


def united_schema(schemas: Sequence[pa.Schema], tag: str | None) -> pa.Schema:
    """All columns in order of their first appearance, then the tag, if any.

    Raises
    ------
    JobRefused
        A column has two types, or has the name of the tag.
    """
    fields: dict[str, pa.Field] = {}
    for schema in schemas:
        if tag in schema.names:
            raise JobRefused(f"union_by_name(tag={tag!r}): a stream has a column of that name; choose another tag")
        for field in schema:
            before = fields.setdefault(field.name, field)
            if before.type != field.type:
                raise JobRefused(
                    f"union_by_name: column {field.name!r} has type {before.type} in one stream and {field.type} in "
                    "another; cast or rename the column in either stream"
                )
            fields[field.name] = before.with_nullable(before.nullable or field.nullable)
    common = [name for name in fields if all(name in schema.names for schema in schemas)]
    made = [field if name in common else field.with_nullable(True) for name, field in fields.items()]
    return pa.schema(made if tag is None else [*made, pa.field(tag, pa.string(), nullable=False)])


def conform(schema: pa.Schema, tag: str | None, value: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of a stream to the united schema; `value` is the value of the tag."""
    columns = []
    for field in schema:
        if field.name == tag:
            columns.append(pa.array([value] * batch.num_rows, pa.string()))
        elif field.name in batch.schema.names:
            columns.append(batch.column(field.name))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
