"""From what a function gives out to record batches of the declared schema; what does not match is an error at once,
inside the call that gave it, so that the row is known and can still be undone.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

import pyarrow as pa

from holdfast.functions.values import Misfit, fit_for

Row = list[Any]


class OutputMismatch(TypeError):
    """Output that is not of the declared schema: column, found, expected."""


def row_fitter(schema: pa.Schema) -> Callable[[Any], Row]:
    """A function from one yielded dict or tuple to the row's values in schema order. Raises `OutputMismatch`."""
    names: list[str] = schema.names
    fits = [fit_for(field.type, field.nullable) for field in schema]
    width = len(names)
    known = frozenset(names)
    take: Callable[[Any], tuple[Any, ...]] = itemgetter(*names) if width > 1 else lambda item: (item[names[0]],)

    def misfit(values: Iterable[Any]) -> OutputMismatch:
        for name, fit, value in zip(names, fits, values, strict=True):
            try:
                fit(value)
            except Misfit as error:
                return OutputMismatch(f"output column {name!r}: {error}")
        raise AssertionError("every value fits")

    def fit_row(item: Any) -> Row:
        values = item
        if isinstance(item, Mapping):
            if item.keys() != known:
                raise OutputMismatch(_wrong_columns(item, names))
            values = take(item)
        elif not isinstance(item, tuple):
            raise OutputMismatch(
                f"output row: found {item!r:.200} ({type(item).__name__}), expected a dict or a tuple with the columns "
                f"{', '.join(names)}; yield each row"
            )
        elif len(item) != width:
            raise OutputMismatch(f"output row: found {len(item)} values, expected {width} ({', '.join(names)})")
        try:
            return [fit(value) for fit, value in zip(fits, values, strict=True)]
        except Misfit:
            raise misfit(values) from None

    return fit_row


def _wrong_columns(item: Mapping[Any, Any], names: list[str]) -> str:
    missing = [name for name in names if name not in item]
    if missing:
        found = sorted(map(str, item))
        return f"output column {missing[0]!r}: found no such key among {found}, expected a value (or None)"
    unknown = sorted(str(name) for name in item if name not in names)
    return f"output column {unknown[0]!r}: found in the row, expected only {', '.join(names)}"


def rows_to_batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Fitted rows as a record batch."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def fit_batches(produced: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    """What a `BatchFunction` returned, as non-empty batches of exactly `schema`. Raises `OutputMismatch`."""
    if produced is None:
        return []
    if isinstance(produced, pa.RecordBatch | pa.Table):
        produced = [produced]
    elif isinstance(produced, Mapping | str | bytes) or not isinstance(produced, Iterable):
        raise OutputMismatch(f"output: found {type(produced).__name__}, expected record batches")
    return [batch for item in produced for batch in _fit_batch(item, schema) if batch.num_rows]


def _fit_batch(item: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    if isinstance(item, pa.Table):
        return [batch for part in item.to_batches() for batch in _fit_batch(part, schema)]
    if not isinstance(item, pa.RecordBatch):
        raise OutputMismatch(f"output: found {type(item).__name__}, expected a pyarrow.RecordBatch")
    if item.schema.names != schema.names:
        raise OutputMismatch(f"output columns: found {item.schema.names}, expected {schema.names}")
    for column, field in zip(item.columns, schema, strict=True):
        if column.type != field.type:
            raise OutputMismatch(f"output column {field.name!r}: found {column.type}, expected {field.type}; cast it")
        if column.null_count and not field.nullable:
            raise OutputMismatch(f"output column {field.name!r}: found {column.null_count} nulls, expected none")
    return [pa.RecordBatch.from_arrays(item.columns, schema=schema)]
