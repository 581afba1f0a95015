"""Steps that are expressions, `select` and `where`, whose columns are known, so that sources read no others. Pure.

where(e) … select(…)            the source reads the columns that these need, and those of the watermark
… key_by(k).aggregate(…)        so is it where an aggregate is the first to say which columns it reads
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused
from holdfast.functions.rows.expressions import VALUE_ERRORS, evaluated, needed_columns, types_of


@dataclass(frozen=True, eq=False)
class Selection:
    """`Stream.where`: keeps the rows for which the condition is true."""

    condition: pc.Expression

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(self.condition)

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that are kept. Raises `JobRefused`."""
        (kind,) = _types(self, schema, {"condition": self.condition})
        if not pa.types.is_boolean(kind):
            raise JobRefused(f"{self}: the condition is of type {kind}; expected a boolean")
        return schema

    def needs(self, schema: pa.Schema) -> list[str]:
        """Return the columns that the condition reads."""
        return needed_columns(schema, [self.condition])

    def __str__(self) -> str:
        return f"where({self.condition})"


@dataclass(frozen=True, eq=False)
class Projection:
    """`Stream.select`: makes rows of these columns, in order: each the column of that name (None), or an expression.

    `added`: all columns of the input come first.
    """

    columns: dict[str, pc.Expression | None]
    added: bool = False

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        made = dict(zip(self._computed, self._values(rows), strict=True))
        columns = self._all(rows.schema)
        arrays = [made[name] if name in made else rows.column(name) for name in columns]
        fields = [pa.field(name, made[name].type) if name in made else rows.schema.field(name) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that come out. Raises `JobRefused`."""
        missing = self.missing_from(schema)
        if missing:
            raise JobRefused(f"{self}: there is no column {missing[0]!r} in its input ({', '.join(schema.names)})")
        kinds = dict(zip(self._computed, _types(self, schema, self._computed), strict=True))
        columns = self._all(schema)
        return pa.schema([pa.field(name, kinds[name]) if name in kinds else schema.field(name) for name in columns])

    def needs(self, schema: pa.Schema) -> list[str]:
        """Return the columns that are read."""
        computed = needed_columns(schema, list(self._computed.values())) if self._computed else []
        return [name for name in schema.names if name in computed or self._all(schema).get(name, computed) is None]

    def missing_from(self, schema: pa.Schema) -> list[str]:
        """Return the columns that are taken as they are and that the input does not have."""
        return [name for name, made in self.columns.items() if made is None and name not in schema.names]

    def _values(self, rows: pa.RecordBatch) -> list[pa.Array]:
        try:
            return evaluated(rows, self._computed)
        except VALUE_ERRORS as error:
            if rows.num_rows == 1:
                for name, made in self._computed.items():
                    _check(rows, name, made)
            raise error

    @property
    def _computed(self) -> dict[str, pc.Expression]:
        return {name: made for name, made in self.columns.items() if made is not None}

    def _all(self, schema: pa.Schema) -> dict[str, pc.Expression | None]:
        return {**dict.fromkeys(schema.names), **self.columns} if self.added else self.columns

    def __str__(self) -> str:
        shown = [repr(name) if made is None else f"{name}={made}" for name, made in self.columns.items()]
        return f"select({', '.join(shown)})"


@dataclass(frozen=True)
class Omission:
    """Leaves columns out: those that were computed for an operator, in the stream of its late rows."""

    columns: tuple[str, ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.drop_columns(list(self.columns))

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that come out."""
        return pa.schema([field for field in schema if field.name not in self.columns])


def _check(row: pa.RecordBatch, name: str, made: pc.Expression) -> None:
    """Raise `pa.ArrowInvalid` with the expression if it fails for the row."""
    try:
        evaluated(row, {name: made})
    except VALUE_ERRORS as error:
        raise pa.ArrowInvalid(f"{name}={made}: {error}") from error


def _types(step: object, schema: pa.Schema, expressions: dict[str, pc.Expression]) -> list[pa.DataType]:
    try:
        return types_of(schema, expressions)
    except pa.ArrowException as error:
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise JobRefused(f"{step}: {error}; its input has {columns}") from error
