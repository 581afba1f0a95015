"""An expression bound to a schema, ready to run over batches."""

from typing import Any

import pyarrow as pa
from sqlglot import exp

from holdfast.expressions import building, digests, formats, json_texts, lambdas, mathematics, patterns, sets, texts
from holdfast.expressions.binding import Binder
from holdfast.expressions.nodes import ExpressionRefused, Scope, SqlSettings, Term, array_of
from holdfast.expressions.parse import parsed, place_of

_LOADED = (building, digests, formats, json_texts, lambdas, mathematics, patterns, sets, texts)
"""Modules that are loaded so that their functions are in the table."""


class BoundExpression:
    """An expression over rows of a schema. A process that receives it binds the text again."""

    def __init__(self, text: str, settings: SqlSettings, schema: pa.Schema, tree: Any = None) -> None:
        self.text = text
        self._settings = settings
        self._schema = schema
        self._tree = tree
        binder = Binder(schema, settings)
        self._node = self._bound(binder)
        self.reads = [name for name in schema.names if name in binder.reads]
        """The columns that it reads."""

    def _bound(self, binder: Binder) -> Term:
        if self.text in self._schema.names:
            return binder.column([self.text])
        try:
            return binder.bound(parsed(self.text) if self._tree is None else self._tree)
        except (pa.ArrowException, TypeError, ValueError) as error:  # what a kernel says of types that it does not take
            raise ExpressionRefused(f"{self}: {error}; use transform(…)") from error
        except ExpressionRefused as error:
            place = "" if self._tree is None else place_of(binder.refused)
            raise ExpressionRefused(f"{error}{place}") from error

    @property
    def type(self) -> pa.DataType:
        return self._node.type

    @property
    def fails(self) -> bool:
        """Return True if there are rows for which it fails."""
        return self._node.fails

    @property
    def tree(self) -> Any:
        """Return the tree of the text; a text that is the name of a column becomes that column."""
        if self.text in self._schema.names:
            return exp.Column(this=exp.to_identifier(self.text, quoted=True))
        return parsed(self.text) if self._tree is None else self._tree

    @property
    def settings(self) -> SqlSettings:
        return self._settings

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the value for each row. Raises `pa.ArrowInvalid` if it fails for a row."""
        return array_of(self._node.run(Scope(rows.column, rows.num_rows)), rows.num_rows)

    def __reduce__(self) -> "tuple[Any, tuple[str, SqlSettings, pa.Schema, Any]]":
        return BoundExpression, (self.text, self._settings, self._schema, self._tree)

    def __str__(self) -> str:
        return repr(self.text)
