"""A Python step over a batch of rows: a function of users, or expressions (`select`, `where`).

A row is refused if an expression fails for it, or if a declared column cannot hold its value: it becomes a bad record,
and the other rows continue. An expression that fails for a batch is evaluated for halves of the batch, down to single
rows. A function of users that raises is not called again for halves, because its result for a row may depend on other
rows.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from holdfast import errors
from holdfast.arrays import plain_rows, plain_schema
from holdfast.calls.declared import AsyncCalls, CallPlace
from holdfast.casts import cast_in_range
from holdfast.exchange.partition import without
from holdfast.expressions.failing import in_parts
from holdfast.graph.program import MapBatches
from holdfast.sources.schema_fit import fits, forbidden_nulls

_END = object()

Refuse = Callable[[pa.RecordBatch, Mapping[int, str], bool], None]
"""Function that takes rows out of a batch, by number, each with the reason. The flag is False for the input of a step,
and True for its result."""


def refuse_all(rows: pa.RecordBatch, reasons: Mapping[int, str], is_result: bool) -> None:
    """Raise `BadRecord`, since no row can be written to the dead letters here."""
    raise errors.BadRecord(f"{next(iter(reasons.values()))}: correct the row, or filter it out before")


def made(
    step: MapBatches,
    rows: pa.RecordBatch,
    where: Callable[[], str],
    refuse: Refuse = refuse_all,
    place: CallPlace | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the result of a step for rows, batch by batch."""
    if not rows.num_rows:
        return
    if isinstance(step.fn, AsyncCalls):
        from holdfast.calls.answering import answered  # an event loop, which most programs do not need

        yield from answered(step.fn, rows, place or CallPlace(), refuse)
        return
    if step.by_row:
        yield from _by_row(rows, step, refuse)
        return
    for part in _parts(rows, step, where):
        yield _conform(part, step, refuse)


def _parts(batch: pa.RecordBatch, step: MapBatches, where: Callable[[], str]) -> Iterator[object]:
    """Yield the batches that a function of users makes of a batch. Only errors inside the function count as its
    failures."""
    parts: Iterator[object] | None = None
    while True:
        try:
            if parts is None:
                found = step.fn(batch)
                parts = iter([found] if isinstance(found, pa.RecordBatch) else found)
            part = next(parts, _END)
        except errors.HoldfastError:
            raise
        except errors.USER_ERRORS as error:
            raise errors.UserFunctionError(
                f"{step} raised {errors.in_user_code(error)} at {where()}, {batch.num_rows} rows"
            ) from error
        if part is _END:
            return
        yield part


def _by_row(batch: pa.RecordBatch, step: MapBatches, refuse: Refuse) -> list[pa.RecordBatch]:
    """Evaluate expressions; rows for which they fail are refused."""
    found, failed = in_parts(batch, step.fn)
    if failed:
        refuse(batch, {row: f"{step} failed: {reason}" for row, reason in failed.items()}, False)
    return found


def _conform(part: object, step: MapBatches, refuse: Refuse) -> pa.RecordBatch:
    """Return the rows with the declared schema; rows with a value that a column cannot hold are refused."""
    if not isinstance(part, pa.RecordBatch):
        raise errors.UserFunctionError(f"{step} gave a {type(part).__name__}, not a pyarrow.RecordBatch")
    if part.schema.equals(step.schema):
        return part
    if part.schema.names != step.schema.names:
        raise errors.UserFunctionError(f"{step} gave the columns {part.schema.names}, declared are {step.schema.names}")
    rows = plain_rows(part, plain_schema(part.schema))
    columns, reasons = [], dict[int, str]()
    for column, field in zip(rows.columns, step.schema, strict=True):
        if not convertible(column.type, field.type):
            raise errors.UserFunctionError(
                f"{step} gave column {field.name!r} as {column.type}, declared is {field.type}: cast it in the function"
            )
        values, outside = cast_in_range(column, field.type)
        columns.append(values)
        for row in () if outside is None else np.flatnonzero(outside).tolist():
            reasons.setdefault(row, f"{step} gave in column {field.name!r} a value that {field.type} cannot hold")
    fitted = pa.RecordBatch.from_arrays(columns, schema=step.schema)
    nulls = forbidden_nulls(fitted)
    for row in () if nulls is None else np.flatnonzero(nulls[0]).tolist():
        reasons.setdefault(
            row, f"{step} gave a null in column {nulls[1] if nulls else ''!r}, which is declared not null"
        )
    if not reasons:
        return fitted
    reasons = dict(sorted(reasons.items()))
    refuse(rows, reasons, True)
    return without(fitted, np.array(list(reasons), np.int64))


def convertible(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of `found` keep their meaning in `wanted`, if they fit: numbers of another width, times of
    another unit. Text is not a number, a number is not a boolean, and a time without a zone cannot get a zone.
    """
    types = pa.types
    if fits(found, wanted):
        return True
    if types.is_integer(found):
        return bool(types.is_integer(wanted) or types.is_floating(wanted) or types.is_decimal(wanted))
    if (types.is_list(found) or types.is_large_list(found)) and (types.is_list(wanted) or types.is_large_list(wanted)):
        return convertible(found.value_type, wanted.value_type)
    if types.is_struct(found) and types.is_struct(wanted):
        return [field.name for field in found] == [field.name for field in wanted] and all(
            convertible(one.type, other.type) for one, other in zip(found, wanted, strict=True)
        )
    if types.is_map(found) and types.is_map(wanted):
        return convertible(found.key_type, wanted.key_type) and convertible(found.item_type, wanted.item_type)
    kinds = (types.is_floating, types.is_decimal, types.is_date, types.is_time, types.is_duration)
    return any(is_kind(found) and is_kind(wanted) for is_kind in kinds)
