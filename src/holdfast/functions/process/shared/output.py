"""Conversion of a function's output to record batches of the declared schema; output that does not match is an error.

Values are checked a column at a time; the error still says which row it was.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import GeneratorType
from typing import Any

import pyarrow as pa

from holdfast.arrays import plain_rows, plain_schema
from holdfast.value_fits import Misfit, fit_for, fitted_array

Row = Sequence[Any]


class OutputMismatch(TypeError):
    """Output that does not fit the declared schema: column, found, expected. `row`: the number of the row, if known."""

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


def yielded(produced: Any) -> Iterable[Any]:
    """Return the result of `process()` as an iterable."""
    if type(produced) is GeneratorType:
        return produced
    if produced is None:
        return ()
    if (
        isinstance(produced, Mapping | str | bytes)
        or hasattr(produced, "_fields")
        or not isinstance(produced, Iterable)
    ):
        raise OutputMismatch(
            f"process() returned {type(produced).__name__}, expected a generator or list of rows; yield the row"
        )
    return produced


class RowFitter:
    """Checks yielded dicts and tuples against a schema.

    `shape` returns a row's values in the schema's order, without checking them. It is a closure instead of a method,
    since it decides the cost of a row.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names: list[str] = schema.names
        self._width = len(self._names)
        self._fits = [fit_for(field.type, field.nullable) for field in schema]
        names = self._names
        take: Any = itemgetter(*names) if self._width > 1 else lambda item: (item[names[0]],)
        width, other = self._width, self._shape_other

        def shape(item: Any) -> Row:
            if type(item) is not dict or len(item) != width:
                return other(item)
            try:
                values: Row = take(item)
                return values
            except KeyError:
                raise OutputMismatch(_wrong_columns(item, names)) from None

        self.shape = shape

    def _shape_other(self, item: Any) -> Row:
        """Shape an output row that is not a dict of the right size."""
        if isinstance(item, tuple):
            if len(item) == self._width:
                return item
            expected = f"expected {self._width} ({', '.join(self._names)})"
            raise OutputMismatch(f"output row: found {len(item)} values, {expected}")
        if isinstance(item, Mapping):
            if len(item) == self._width and all(name in item for name in self._names):
                return [item[name] for name in self._names]
            raise OutputMismatch(_wrong_columns(item, self._names))
        raise OutputMismatch(
            f"output row: found {item!r:.200} ({type(item).__name__}), expected a dict or a tuple with the columns "
            f"{', '.join(self._names)}; yield each row"
        )

    def fitted(self, row: Row) -> Row:
        """Return a row from `shape` with its values checked, for `batch`."""
        made: list[Any] = []
        for name, fit, value in zip(self._names, self._fits, row, strict=True):
            try:
                made.append(fit(value))
            except Misfit as misfit:
                raise _mismatch(name, misfit) from None
        return made

    def batch(self, rows: list[Row]) -> pa.RecordBatch:
        """Rows from `shape`, at least a single row, as a record batch. Values are checked here; errors name the row."""
        arrays = []
        for field, fit, values in zip(self._schema, self._fits, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(fitted_array(values, field, fit))
            except Misfit as misfit:
                raise _mismatch(field.name, misfit) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _mismatch(name: str, misfit: Misfit) -> OutputMismatch:
    return OutputMismatch(f"output column {name!r}: {misfit}", row=misfit.place)


def _wrong_columns(item: Mapping[Any, Any], names: list[str]) -> str:
    missing = [name for name in names if name not in item]
    if missing:
        found = sorted(map(str, item))
        return f"output column {missing[0]!r}: found no such key among {found}, expected a value (or None)"
    unknown = sorted(str(name) for name in item if name not in names)
    return f"output column {unknown[0]!r}: found in the row, expected only {', '.join(names)}"


def fit_batches(produced: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert the result of a `BatchFunction`, as it comes, to non-empty batches of exactly `schema`.

    Raises `OutputMismatch`.
    """
    if produced is None:
        return
    if isinstance(produced, pa.RecordBatch | pa.Table):
        produced = [produced]
    elif isinstance(produced, Mapping | str | bytes) or not isinstance(produced, Iterable):
        raise OutputMismatch(f"output: found {type(produced).__name__}, expected record batches")
    for item in produced:
        yield from (batch for batch in _fit_batch(item, schema) if batch.num_rows)


def _fit_batch(item: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    if isinstance(item, pa.Table):
        return [batch for part in item.to_batches() for batch in _fit_batch(part, schema)]
    if not isinstance(item, pa.RecordBatch):
        raise OutputMismatch(f"output: found {type(item).__name__}, expected a pyarrow.RecordBatch")
    if item.schema.names != schema.names:
        raise OutputMismatch(f"output columns: found {item.schema.names}, expected {schema.names}")
    item = plain_rows(item, plain_schema(item.schema))
    for column, field in zip(item.columns, schema, strict=True):
        if column.type != field.type:
            raise OutputMismatch(f"output column {field.name!r}: found {column.type}, expected {field.type}; cast it")
        if column.null_count and not field.nullable:
            raise OutputMismatch(f"output column {field.name!r}: found {column.null_count} nulls, expected none")
    return [pa.RecordBatch.from_arrays(item.columns, schema=schema)]
