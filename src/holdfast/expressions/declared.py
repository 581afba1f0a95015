"""Expressions as a user declares them. A text is parsed only when it is needed: other jobs do not load the parser."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import SettingsError
from holdfast.expressions.nodes import ExpressionRefused, SqlSettings

SPARK_4 = SqlSettings()
"""The default settings of Spark 4, in UTC."""


@dataclass(frozen=True)
class SqlExpression:
    """An expression in Spark's SQL. A text that is the name of a column means that column, whatever its characters."""

    text: str
    settings: SqlSettings = SPARK_4
    given: Any = field(default=None, compare=False)
    """The tree of the text if it is already known, because the expression is a part of a query."""

    @cached_property
    def tree(self) -> Any:
        """Return sqlglot's tree. Raises `ExpressionRefused`."""
        if self.given is not None:
            return self.given
        from holdfast.expressions.parse import parsed

        return parsed(self.text)

    @property
    def name(self) -> str | None:
        """Return the name that the text gives its value: an alias, or the last field of `a.b`; None if it has none."""
        from holdfast.expressions.parse import name_of

        try:
            return name_of(self.tree)
        except ExpressionRefused:
            return None

    def bound(self, schema: pa.Schema) -> Any:
        """Return the expression over rows of a schema. Raises `ExpressionRefused`."""
        from holdfast.expressions.bound import BoundExpression

        return BoundExpression(self.text, self.settings, schema, self.given)

    def __str__(self) -> str:
        return repr(self.text)


@dataclass(frozen=True)
class MaskedColumn:
    """A column whose values are null unless a condition is true: for aggregates over the rows that meet it."""

    condition: SqlExpression
    column: str

    def bound(self, schema: pa.Schema) -> "BoundMask":
        """Return the column bound to a schema. Raises `ExpressionRefused`."""
        if self.column not in schema.names:
            raise ExpressionRefused(f"there is no column {self.column!r} in its input ({', '.join(schema.names)})")
        made = self.condition.bound(schema)
        if made.type != pa.bool_():
            raise ExpressionRefused(f"the condition {self.condition} is of type {made.type}; expected a boolean")
        return BoundMask(made, self.column, schema.field(self.column).type)

    def __str__(self) -> str:
        return f"{self.column} where {self.condition}"


@dataclass(frozen=True)
class BoundMask:
    """A masked column, bound to a schema."""

    condition: Any
    column: str
    type: pa.DataType

    @property
    def reads(self) -> list[str]:
        return [self.column, *self.condition.reads]

    @property
    def fails(self) -> bool:
        """Return True if there are rows for which its condition fails."""
        return bool(self.condition.fails)

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        return pc.if_else(self.condition(rows), rows.column(self.column), pa.scalar(None, self.type))

    def __str__(self) -> str:
        return f"{self.column} where {self.condition}"


Declared = SqlExpression | MaskedColumn
Given = Any
"""A text in Spark's SQL, a `Column` of PySpark, or an expression of PyArrow."""


def settings_of(spark: Any) -> SqlSettings:
    """Return the settings of a Spark session that change results; without a session, the defaults of Spark 4."""
    if spark is None:
        return SPARK_4
    return SqlSettings(
        str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true",
        str(spark.conf.get("spark.sql.session.timeZone")),
    )


def declared(given: Given, settings: SqlSettings, place: str) -> Any:
    """Return an expression as it is declared; PyArrow's own expressions are unchanged. Raises `SettingsError`."""
    if isinstance(given, pc.Expression):
        return given
    if isinstance(given, SqlExpression):
        return replace(given, settings=settings)
    if isinstance(given, str) and given.strip():
        return SqlExpression(given, settings)
    if type(given).__module__.startswith("pyspark.sql.") and type(given).__name__ == "Column":
        from holdfast.expressions.columns import text_of

        return SqlExpression(text_of(given), settings)
    raise SettingsError(
        f"{place}: expected an expression in Spark's SQL such as 'price > 100', a Column of PySpark, or an expression "
        f"of PyArrow, found {given!r}"
    )
