"""The steps `select` and `where`, whose expressions show which columns they read, so that sources read no others. Pure.

where(e) … select(…)            the source reads the columns that these need, and those of the watermark
… key_by(k).aggregate(…)        the same if an aggregate is the first to name the columns that it reads
"""

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import JobRefused
from holdfast.expressions.declared import MaskedColumn, SqlExpression
from holdfast.expressions.failing import VALUE_ERRORS
from holdfast.expressions.nodes import ExpressionRefused
from holdfast.functions.rows.expressions import Expression, evaluated, needed_columns, types_of
from holdfast.graph.changing import kept_changes
from holdfast.schema import CHANGE_TYPE, StreamKind


@dataclass(frozen=True, eq=False)
class Selection:
    """`Stream.where`: keeps the rows for which the condition is true."""

    condition: Expression
    kind: StreamKind = "append"

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self.kind != "append" and CHANGE_TYPE in rows.schema.names:
            (kept,) = evaluated(rows, {"kept": self.condition})
            return kept_changes(rows, kept, self.kind)
        if isinstance(self.condition, pc.Expression):
            return rows.filter(self.condition)
        kept = self.condition(rows)
        return rows if kept.true_count == rows.num_rows else rows.filter(kept)

    def bound(self, schema: pa.Schema) -> "Selection":
        """Return the step over rows of a schema. Raises `JobRefused`."""
        return replace(self, condition=_bound(self, self.condition, schema))

    @property
    def in_sql(self) -> bool:
        """True if the condition is in Spark's SQL."""
        return not isinstance(self.condition, pc.Expression)

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that are kept. Raises `JobRefused`."""
        (kind,) = _types(self, schema, {"condition": self.condition})
        if not pa.types.is_boolean(kind):
            raise JobRefused(f"{self}: the condition is of type {kind}; expected a boolean")
        return schema

    def needs(self, schema: pa.Schema) -> list[str]:
        """Return the columns that the condition reads."""
        needed = needed_columns(schema, [self.condition])
        change = [CHANGE_TYPE] if self.kind != "append" and CHANGE_TYPE in schema.names else []
        return [*needed, *(name for name in change if name not in needed)]

    def __str__(self) -> str:
        return f"where({self.condition})"


@dataclass(frozen=True, eq=False)
class Projection:
    """`Stream.select`: makes rows of these columns, in order. A value None takes the column of that name; others are
    expressions.

    `added`: all columns of the input come first.
    """

    columns: dict[str, Expression | None]
    added: bool = False

    def bound(self, schema: pa.Schema) -> "Projection":
        """Return the step over rows of a schema. A text that is a column's name is that column. Raises `JobRefused`."""
        made: dict[str, Expression | None] = {}
        for name, each in self.columns.items():
            is_column = isinstance(each, SqlExpression) and each.text in schema.names and each.name == name
            made[getattr(each, "text", name) if is_column else name] = None if is_column else _bound(self, each, schema)
        return replace(self, columns=made)

    def keeping(self, schema: pa.Schema) -> "Projection":
        """Return the step that also keeps the change type of each row, if rows of this schema have one."""
        if self.added or CHANGE_TYPE not in schema.names or CHANGE_TYPE in self.columns:
            return self
        return replace(self, columns={**self.columns, CHANGE_TYPE: None})

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        made = dict(zip(self._computed, self._values(rows), strict=True))
        columns = self._all(rows.schema)
        arrays = [made[name] if name in made else rows.column(name) for name in columns]
        fields = [pa.field(name, made[name].type) if name in made else rows.schema.field(name) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    @property
    def in_sql(self) -> bool:
        """True if an expression is in Spark's SQL."""
        return any(not isinstance(each, pc.Expression) for each in self._computed.values())

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that come out. Raises `JobRefused`."""
        missing = self.missing_from(schema)
        if missing:
            raise JobRefused(
                f"{self}: there is no column {missing[0]!r} in its input ({', '.join(schema.names)}); an expression "
                "needs a name, such as 'price * 2 as price'"
            )
        kinds = dict(zip(self._computed, _types(self, schema, self._computed), strict=True))
        columns = self._all(schema)
        return pa.schema([pa.field(name, kinds[name]) if name in kinds else schema.field(name) for name in columns])

    def needs(self, schema: pa.Schema) -> list[str]:
        """Return the columns that are read."""
        computed = needed_columns(schema, list(self._computed.values())) if self._computed else []
        return [name for name in schema.names if name in computed or self._all(schema).get(name, computed) is None]

    def missing_from(self, schema: pa.Schema) -> list[str]:
        """Return the columns that are taken unchanged but that the input does not have."""
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
    def _computed(self) -> dict[str, Expression]:
        return {name: made for name, made in self.columns.items() if made is not None}

    def _all(self, schema: pa.Schema) -> dict[str, Expression | None]:
        return {**dict.fromkeys(schema.names), **self.columns} if self.added else self.columns

    def __str__(self) -> str:
        shown = [repr(name) if made is None else f"{name}={made}" for name, made in self.columns.items()]
        return f"select({', '.join([*([repr('*')] if self.added else []), *shown])})"


@dataclass(frozen=True)
class Omission:
    """Leaves columns out: those that were computed for an operator, in the stream of its late rows."""

    columns: tuple[str, ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.drop_columns(list(self.columns))

    def schema_of(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the rows that come out."""
        return pa.schema([field for field in schema if field.name not in self.columns])


def _bound(step: object, made: Expression | None, schema: pa.Schema) -> Expression | None:
    if not isinstance(made, SqlExpression | MaskedColumn):
        return made
    try:
        return made.bound(schema)
    except ExpressionRefused as error:
        raise JobRefused(f"{step}: {error}") from error


def _check(row: pa.RecordBatch, name: str, made: Expression) -> None:
    """Raise `pa.ArrowInvalid` with the expression if it fails for the row."""
    try:
        evaluated(row, {name: made})
    except VALUE_ERRORS as error:
        raise pa.ArrowInvalid(f"{name}={made}: {error}") from error


def _types(step: object, schema: pa.Schema, expressions: dict[str, Expression]) -> list[pa.DataType]:
    try:
        return types_of(schema, expressions)
    except pa.ArrowException as error:
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise JobRefused(f"{step}: {error}; its input has {columns}") from error
