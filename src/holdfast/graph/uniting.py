"""Union of streams with different columns, by the columns' names; a column that a stream lacks is null. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
            if before is field:
                continue
            if before.type != field.type:
                raise JobRefused(
                    f"union_by_name: column {field.name!r} has type {before.type} in one stream and {field.type} in "
                    "another; cast or rename the column in either stream"
                )
            if field.nullable and not before.nullable:
                fields[field.name] = before.with_nullable(True)
    times = Counter(name for schema in schemas for name in set(schema.names))
    made = [field if times[name] == len(schemas) else field.with_nullable(True) for name, field in fields.items()]
    return pa.schema(made if tag is None else [*made, pa.field(tag, pa.string(), nullable=False)])


@dataclass(frozen=True, eq=False)
class Conforming:
    """Converts rows of a stream to a united schema; `tags` has the value of each tag column."""

    schema: pa.Schema
    tags: Mapping[str, str]

    def behind(self, first: "Conforming") -> "Conforming":
        """Return the step that does both: what `first` does, then this one."""
        return Conforming(self.schema, {**first.tags, **self.tags})

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places = {name: place for place, name in enumerate(batch.schema.names)}
        columns = []
        for field in self.schema:
            if field.name in self.tags:
                columns.append(pa.array([self.tags[field.name]] * batch.num_rows, pa.string()))
            elif field.name in places:
                columns.append(batch.column(places[field.name]))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
